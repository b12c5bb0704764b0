// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/ledger"
)

// batchPath is the path of a batch of one feed.
func batchPath(n int) string { return fmt.Sprintf("/v1/batches/%032x/%d", 1, n) }

// walkReports sends batches as a node, and reads their contents page by page.
func (s *served) walkReports() {
	s.t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	var batch strings.Builder
	for region, units := range map[string]int{"eu": 3, "us": 4} {
		fmt.Fprintf(&batch, `{"time":%q,"kind":"usage","policy":"shop","rule":"far","client":"user:5","admitted":1,"units":%d,"region":%q}`+"\n",
			now.Format(time.RFC3339Nano), units, region)
		fmt.Fprintf(&batch, `{"time":%q,"kind":"denied","policy":"shop","rule":"far","client":"user:5","status":429,"count":%d,"region":%q}`+"\n",
			now.Format(time.RFC3339Nano), units, region)
		fmt.Fprintf(&batch, `{"time":%q,"kind":"usage","policy":"shop","rule":"far","latency":[[8,%d,0]],"region":%q}`+"\n", now.Format(time.RFC3339Nano), units, region)
	}
	for i := range 5 {
		fmt.Fprintf(&batch, `{"time":%q,"kind":"usage","policy":"shop","rule":"api","tier":"gold","client":"user:%d","admitted":%d,"denied":%[3]d,"units":9}`+"\n",
			now.Format(time.RFC3339Nano), i, i)
		fmt.Fprintf(&batch, `{"time":%q,"kind":"denied","policy":"shop","rule":"api","client":"user:%d","status":429,"ip":"192.0.2.1","retry_after_ms":1500,"latency_us":87,"count":%d}`+"\n",
			now.Format(time.RFC3339Nano), i, i+1)
	}
	for _, endpoint := range []string{"/api/*", ""} {
		fmt.Fprintf(&batch, `{"time":%q,"kind":"usage","policy":"shop","rule":"api","endpoint":%q,"latency":[[8,90,0],[40,0,10]]}`+"\n", now.Format(time.RFC3339Nano), endpoint)
	}
	const ndjson = "application/x-ndjson"
	s.checkAnswer(s.ask(ledger.Node, "PUT", batchPath(1), batch.String(), "Content-Type", ndjson), 200, `"repeated":false`)
	s.checkAnswer(s.ask(ledger.Node, "PUT", batchPath(1), batch.String(), "Content-Type", ndjson), 200, `"repeated":true`)
	s.checkAnswer(s.ask(ledger.Node, "PUT", batchPath(2), "nonsense", "Content-Type", ndjson), 422, "line 1")
	s.checkAnswer(s.ask(ledger.Node, "PUT", "/v1/batches/x/2", batch.String(), "Content-Type", ndjson), 422, "path.feed")
	for _, path := range []string{"/v1/usage?month=" + now.Format("2006-01"), "/v1/events?rule=api&kind=denied", "/v1/metrics?granularity=day", "/v1/top?rule=api",
		"/v1/metrics/endpoints?granularity=minute", "/v1/metrics/clients?", "/v1/usage?by=region"} {
		whole := s.checkAnswer(s.ask(ledger.Viewer, "GET", path, ""), 200)
		if strings.HasPrefix(path, "/v1/top") {
			s.checkAnswer(whole, 200, `"clients":[{"client":"user:4","denied":4,"policy":"shop","rule":"api"}`)
			continue
		}
		if want, got := rowsOf(s.t, whole.body), s.readPages(path); len(want) == 0 || strings.Join(got, "\n") != strings.Join(want, "\n") {
			s.t.Errorf("%s: page by page\n%s\nat once\n%s", path, got, want)
		}
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?client="+url.QueryEscape("user:3"), ""), 200, `"units":9`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/events?limit=1", ""), 200, `"ip":"192.0.2.1"`, `"retry_after_ms":1500,"latency_us":87`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?month=1999-01", ""), 200, `"usage":[]`)
	s.checkRegions()
	s.checkAnswer(s.ask(ledger.Editor, "POST", client("user:3")+"/forgetting", `{"reason":"asked for"}`), 403)
	s.checkAnswer(s.ask(ledger.Admin, "POST", client("user:3")+"/forgetting", `{"reason":"asked for"}`), 200, `"denials":1`, `"events":1`, `"usage":1`)
	s.checkAnswer(s.ask(ledger.Admin, "POST", client("user:4")+"/forgetting", `{"reason":"asked for"}`), 200, `"denials":1`, `"events":1`, `"usage":1`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("user:3")+"/changes", ""), 200, `"action":"forget-usage"`, `"reason":"asked for"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/metrics/endpoints?granularity=day&rule=api&limit=1", ""), 200, `"endpoint":""`, `"admitted":90,"denied":10,"p50_us":9.`, `"p99_us":2508.8`)
	for _, path := range []string{"/v1/usage", "/v1/events", "/v1/top", "/v1/metrics/clients"} {
		if a := s.checkAnswer(s.ask(ledger.Viewer, "GET", path, ""), 200); strings.Contains(a.body, "user:3") || !strings.Contains(a.body, "user:2") {
			s.t.Errorf("after a client was forgotten, %s has %s", path, a.body)
		}
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?limit=1", ""), 200, `{"client":"","policy":"shop","rule":"api","tier":"gold","admitted":7,"denied":7,"units":18}`)
	for _, path := range []string{"/v1/usage?month=now", "/v1/usage?after=nonsense", "/v1/events?kind=admin", "/v1/metrics?granularity=second",
		"/v1/metrics/endpoints?granularity=second", "/v1/metrics/clients?client=%00", "/v1/metrics/endpoints?after=nonsense",
		"/v1/events?after=" + url.QueryEscape("' OR 1=1"), "/v1/usage?client=%00", "/v1/top?from=yesterday"} {
		s.checkAnswer(s.ask(ledger.Viewer, "GET", path, ""), 422)
	}
}

// checkRegions checks that usage, events and latencies can be distinguished by region, and that a
// client is forgotten in each.
func (s *served) checkRegions() {
	s.t.Helper()
	const key = `{"client":"user:5","policy":"shop","rule":"far","tier":"",`
	in := func(region string, units int) string {
		return key + fmt.Sprintf(`"region":%q,"admitted":1,"denied":0,"units":%d}`, region, units)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?rule=far", ""), 200, `"usage":[`+key+`"admitted":2,"denied":0,"units":7}]`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?by=region", ""), 200, `"usage":[`+in("eu", 3)+","+in("us", 4)+"]")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?region=us", ""), 200, `"usage":[`+in("us", 4)+"]")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?region=ap", ""), 200, `"usage":[]`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?by=tier", ""), 422)
	if a := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/events?region=eu", ""), 200, `"region":"eu"`, `"count":3`); strings.Contains(a.body, `"count":4`) {
		s.t.Errorf("events of eu: %s", a.body)
	}
	if a := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/metrics/endpoints?region=us", ""), 200, `"region":"us","admitted":4`); strings.Contains(a.body, `"eu"`) {
		s.t.Errorf("endpoints of us: %s", a.body)
	}
	s.checkAnswer(s.ask(ledger.Admin, "POST", client("user:5")+"/forgetting", `{"reason":"asked for"}`), 200, `"events":2`, `"usage":1`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage?by=region&limit=1", ""), 200, `"usage":[{"client":"","policy":"shop","rule":"far","tier":"","region":"eu","admitted":1,"denied":0,"units":3}]`)
}

// rowsOf returns the rows of an answer that has exactly one list.
func rowsOf(t *testing.T, body string) (rows []string) {
	t.Helper()
	var answer map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	for _, list := range answer {
		var all []json.RawMessage
		if json.Unmarshal(list, &all) == nil {
			for _, row := range all {
				rows = append(rows, string(row))
			}
		}
	}
	return rows
}

// readPages returns the rows of a list, one on each page.
func (s *served) readPages(path string) (rows []string) {
	s.t.Helper()
	after := ""
	for range 100 {
		a := s.checkAnswer(s.ask(ledger.Viewer, "GET", path+"&limit=1"+after, ""), 200)
		rows = append(rows, rowsOf(s.t, a.body)...)
		var page struct{ Next string }
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			s.t.Fatal(err)
		}
		if page.Next == "" {
			return rows
		}
		after = "&after=" + url.QueryEscape(page.Next)
	}
	s.t.Fatalf("%s has no end", path)
	return nil
}
