// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestWaitAndLatencyAreReadBack tests that the wait and the latency of an event are in its line,
// and in the event that is read from it.
func TestWaitAndLatencyAreReadBack(t *testing.T) {
	e := Event{Kind: KindDenied, Status: 429, RetryAfterMS: 1500, LatencyUS: 87, Count: 1}
	line := e.AppendJSON(nil)
	var back Event
	if err := json.Unmarshal(line, &back); err != nil || back.RetryAfterMS != 1500 || back.LatencyUS != 87 ||
		!strings.HasSuffix(string(line), `"status":429,"retry_after_ms":1500,"latency_us":87,"count":1}`) {
		t.Errorf("%s is read as %+v, %v", line, back, err)
	}
}
