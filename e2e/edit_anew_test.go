// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// anewEdit is an edit of the policy, with the changes and the new counters that the log must
// report.
type anewEdit struct {
	what string
	text string // the policy without its name
	says string // the logged changes
	anew string // the logged counters that begin anew; "" if there are none
}

// anewEdits is a sequence of edits. After each of them, the test requests /a from 127.0.0.1 as the
// user ann.
var anewEdits = []anewEdit{
	{what: "begin", text: "rules: [{name: api, limit: 100/1h fixed_window}, {name: other, match: {path: /b}, limit: 7/1h}]"},
	{what: "count", text: "rules: [{name: api, limit: 120/1h fixed_window}, {name: other, match: {path: /b}, limit: 7/1h}]",
		says: "rules changed: api (limit)"},
	{what: "window", text: "rules: [{name: api, limit: 120/2h fixed_window}, {name: other, match: {path: /b}, limit: 9/1h}]",
		says: "rules changed: api (limit), other (limit)", anew: "api 120/2h fixed_window: its window or algorithm is new"},
	{what: "cost, match, action of another", text: "rules: [{name: api, match: {path: [/a, /c]}, cost: 2, limit: 120/2h fixed_window}, " +
		"{name: other, match: {path: /b}, limit: 9/1h, action: log_only}]", says: "rules changed: api (match, cost), other (action)"},
	{what: "algorithm", text: "rules: [{name: api, limit: 120/2h sliding_window}]",
		says: "rules removed: other; rules changed: api (match, limit, cost)",
		anew: "api 120/2h sliding_window: its window or algorithm is new"},
	{what: "to a bucket", text: "rules: [{name: api, limit: 120/2h burst 50}]", says: "rules changed: api (limit)",
		anew: "api 120/2h burst 50: its window or algorithm is new"},
	{what: "burst", text: "rules: [{name: api, limit: 120/2h burst 60}]", says: "rules changed: api (limit)"},
	{what: "one of two limits", text: "rules: [{name: api, limit: [100/2h burst 60, 900/1d]}]", says: "rules changed: api (limit)",
		anew: "api 900/1d: its window or algorithm is new"},
	{what: "per", text: "rules: [{name: api, per: [client, host], limit: [100/2h burst 60, 900/1d]}]", says: "rules changed: api (per)",
		anew: "api: it counts per client and host instead of per client"},
	{what: "name of the rule", text: "rules: [{name: web, per: [client, host], limit: [100/2h burst 60, 900/1d]}]",
		says: "rules added: web; rules removed: api", anew: "web: it was called api"},
	{what: "calendar", text: "rules: [{name: web, per: [client, host], limit: 900/day}]", says: "rules changed: web (limit)",
		anew: "web 900/day: its window or algorithm is new"},
	{what: "penalty, list and headers", text: "penalty: {}\nblock: {ip: 192.0.2.7}\nheaders: x-ratelimit\nrules: [{name: web, per: [client, host], limit: 900/day}]",
		says: "changed: block, penalty, headers"},
	{what: "identify", text: "identify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: web, per: [client, host], limit: 900/day}]",
		says: "changed: identify, block, penalty, headers", anew: "those of clients that are now identified differently"},
}

// TestTheLogSaysWhichCountersBeginAnew compares the log of every edit with the counters in Redis.
// There must be new counters if and only if the log reports them.
func TestTheLogSaysWhichCountersBeginAnew(t *testing.T) {
	t.Parallel()
	const asked = 3
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit("name: shop\n" + anewEdits[0].text)
	redis := redistest.Start(t)
	p := startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
	keys := map[string]bool{}
	for i, edit := range anewEdits {
		if i > 0 {
			p.checkEdit(t, file, edit, i)
		}
		before := keys
		keys = map[string]bool{}
		for range asked {
			if got := p.ask(t.Context(), "GET", "/a", "X-User", "ann"); got.status != 200 {
				t.Fatalf("%s: status %d", edit.what, got.status)
			}
		}
		fresh := false
		for key := range readUsed(t, redis, "rl1:*") {
			keys[key] = true
			fresh = fresh || !before[key]
		}
		if i > 0 && fresh != (edit.anew != "") {
			t.Errorf("%s: new counters: %t, the log says %q; counters %v", edit.what, fresh, edit.anew, keys)
		}
	}
}

// checkEdit makes the edit, which is the nth, and checks the line that Caddy logs.
func (p *process) checkEdit(t *testing.T, file *policyFile, edit anewEdit, nth int) {
	t.Helper()
	file.edit("name: shop\n" + edit.text)
	eventually.Until(t, patience, edit.what+": the log tells of the edit", func() bool { return len(p.logLines(editInForce)) >= nth })
	lines := p.logLines(editInForce)
	said, anew, _ := strings.Cut(lines[len(lines)-1].Changes, "; counters that start at zero: ")
	if len(lines) != nth || said != edit.says || anew != edit.anew {
		t.Errorf("%s: %d lines, the last says %q and anew %q,\nwant %d, %q and %q", edit.what, len(lines), said, anew, nth, edit.says,
			edit.anew)
	}
}
