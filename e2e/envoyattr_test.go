// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"testing"
)

// attrPolicy limits user agents that match a pattern. It reads them from an attribute of Envoy.
const attrPolicy = `name: shop
rules:
  - {name: bots, match: {attr: {request.useragent: ["BadBot*"]}}, per: ["attr:request.useragent"], limit: 3/31d fixed_window}
`

// TestEnvoyAttributesAreBytes tests that an attribute stays a text if a client's value contains a
// tab or bytes that are not UTF-8, or has 8 bytes.
func TestEnvoyAttributesAreBytes(t *testing.T) {
	t.Parallel()
	s := &site{set: longDeadline + "\non_error: deny"}
	useEnvoy(t, nil, s)
	s.startBridge(t, attrPolicy)
	for _, agent := range []string{"BadBot/1.0", "BadBot/1.0\tx", "BadBot/1.0 \xff", "BadBot/\xc3\x28\x80",
		"BadBot\tx", "BadBot\x80\x81"} { // these two have 8 bytes, like numbers
		statuses := map[int]int{}
		for range 8 {
			statuses[s.sendsOne(t, fmt.Sprintf("GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: %s\r\n\r\n", agent))]++
		}
		if statuses[http.StatusOK] != 3 || statuses[http.StatusTooManyRequests] != 5 {
			t.Errorf("%q: %v, want 3 passed and 5 refused", agent, statuses)
		}
	}
	statuses := map[int]int{}
	for range 8 {
		statuses[s.sendsOne(t, "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: Good\t\xff\r\n\r\n")]++
	}
	if statuses[http.StatusOK] != 8 {
		t.Errorf("another agent: %v", statuses)
	}
}
