// SPDX-License-Identifier: Apache-2.0

package front

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestAbortedRequestsCostUnread tests that a request costs the value of the setting unread if Envoy
// responds because the client did not finish its request. This applies to rules that read the cost
// from a header and to rules that read it from the body.
func TestAbortedRequestsCostUnread(t *testing.T) {
	for where, cost := range map[string]string{"header": "header: X-Cost", "body": "json: usage.total"} {
		f := openFront(t, "name: "+where+"\nrules: [{name: all, limit: 100/31d, "+
			"cost_after: {estimate: 1, "+cost+", default: 1, unread: 30}}]\n")
		s := f.NewStream()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, newBell()); v != Continue {
			t.Fatalf("%s: verdict %d", where, v)
		}
		settling := s.Settling()
		s.Release()
		settling.Begin(&Beginning{Headers: [][2]string{{":status", "408"}}, Ends: true,
			Details: "request_overall_timeout"})
		settling.End()
		eventually.Until(t, 10*time.Second, where+": the client is charged 30", func() bool {
			_, fields, _ := ask(t, f, request("/"))
			n, _ := strconv.Atoi(fields[response.FieldRemaining])
			return n <= 70
		})
	}
}
