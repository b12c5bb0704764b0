// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// usageLedger returns a bridge that counts usage.
func usageLedger(t *testing.T) *ledgerBridge {
	b := newLedger(t, shopLeased(t, "20000/1m fixed_window"), 20000)
	b.usage = true
	return b
}

// ledgerBridge.edit answers the filter's poll with another version of the policy.
func (b *ledgerBridge) edit(p corepolicy.Policy) {
	b.f.pollEnded(Reply{Status: 200, ETag: `"v2"`, Body: compact.AppendPolicy(nil, &p, "v2"), Denials: true, Usage: true})
}

// ledgerBridge.asked returns the number of requests that the bridge decided.
func (b *ledgerBridge) asked() int { return b.kinds[wire.KindAsk] + b.kinds[wire.KindLease] }

// checkCounted checks that the bridge knows of each admitted request, by its decision or by a
// report, and that the filter admitted requests itself.
func (b *ledgerBridge) checkCounted(admitted int) {
	b.t.Helper()
	if b.reported == 0 || b.asked()+b.reported != admitted {
		b.t.Errorf("%d were admitted, %d of them by the bridge, and %d are reported", admitted, b.asked(), b.reported)
	}
}

// TestAdmissionsAreReported: each request that the filter admits from leased units is reported
// once, if the bridge counts usage. A bridge of an earlier release gets no report.
func TestAdmissionsAreReported(t *testing.T) {
	b := usageLedger(t)
	admitted := b.requests(3000, counter.Millisecond)
	b.passTime(2 * counter.Second)
	b.checkCounted(admitted)
	if items := b.kinds[wire.KindDenied]; items > 6 {
		t.Errorf("%d reports of 3 seconds", items)
	}
	old := newLedger(t, shopLeased(t, "20000/1m fixed_window"), 20000)
	old.requests(3000, counter.Millisecond)
	old.passTime(2 * counter.Second)
	if old.reported+old.kinds[wire.KindDenied] > 0 {
		t.Errorf("%d are reported to a bridge that does not ask", old.reported)
	}
}

// TestABusyBridgeGetsTheReportAgain: a report is sent again if the bridge was too busy to read the
// call, but not if the answer is missing.
func TestABusyBridgeGetsTheReportAgain(t *testing.T) {
	b := usageLedger(t)
	admitted := b.requests(1000, counter.Millisecond)
	b.busy = 3
	admitted += b.requests(1000, counter.Millisecond)
	b.passTime(3 * counter.Second)
	if b.checkCounted(admitted); b.busy > 0 {
		t.Error("no call with a report met a busy bridge")
	}
	before := b.reported
	b.lost = 1
	admitted = b.requests(1000, counter.Millisecond)
	b.passTime(3 * counter.Second)
	if missing := admitted + before - b.reported; b.lost > 0 || missing <= 0 {
		t.Errorf("%d of %d are missing, which a lost call has reported", missing, admitted)
	}
}

// TestReportsOfAFormerPolicy: what was admitted under a former policy is reported under that
// policy, even by the successor of a filter that has ended.
func TestReportsOfAFormerPolicy(t *testing.T) {
	b := usageLedger(t)
	admitted := b.requests(500, counter.Millisecond)
	b.edit(shopLeased(t, "30000/1m fixed_window"))
	admitted += b.requests(1500, counter.Millisecond) // a counter is not leased in the second after its limit has changed
	b.f.End()
	heir := withPolicy(t, b.fakeEnvoy, shopLeased(t, "40000/1m fixed_window"))
	b.dropPolls()
	if !heir.Inherit(b.f) {
		t.Fatal("nothing is inherited")
	}
	b.f = heir
	b.serve()
	b.passTime(3 * counter.Second)
	b.checkCounted(admitted)
	if b.versions["v1"] == 0 || b.versions["v2"] == 0 {
		t.Errorf("the reports are about the versions %v", b.versions)
	}
}

// TestManyClientsOfOneCounter: clients that share a leased counter are each reported. Beyond the
// bound of a report, the bridge decides.
func TestManyClientsOfOneCounter(t *testing.T) {
	b := usageLedger(t)
	p := shopLeased(t, "20000/1m fixed_window")
	p.Rules[0].PerNone = true
	b.edit(p)
	admitted := 0
	for i := range 3000 {
		b.properties["source.address"] = fmt.Sprintf("192.0.%d.%d:4711", i%700/256, i%700%256)
		admitted += b.requests(1, counter.Millisecond/2)
	}
	b.passTime(3 * counter.Second)
	b.checkCounted(admitted)
	if len(b.peers) != 700 {
		t.Errorf("%d of 700 clients are reported or decided by the bridge", len(b.peers))
	}
}

// TestRequestsWithoutALimitAreReported: requests of a tier without a limit need no call, but their
// usage is reported.
func TestRequestsWithoutALimitAreReported(t *testing.T) {
	b := usageLedger(t)
	p := shopLeased(t, "20000/1m fixed_window")
	p.Rules[0].Action, p.Rules[0].Limits = corepolicy.ActionAllow, nil
	b.edit(p)
	b.path = "/other"
	b.requests(2, counter.Millisecond)
	b.path = "/api/x"
	b.requests(50, counter.Millisecond)
	b.passTime(3 * counter.Second)
	if b.reported != 50 || b.asked() != 0 {
		t.Errorf("%d of 50 are reported, %d asked", b.reported, b.asked())
	}
}

// TestManyRequestsWithoutALimitAreReported: if more clients than fit into one report send requests
// without a limit, each client is reported although the bridge is not asked. Denials of many
// clients take no room from these reports.
func TestManyRequestsWithoutALimitAreReported(t *testing.T) {
	b := usageLedger(t)
	p := shopLeased(t, "20000/1m fixed_window")
	p.Rules[0].Action, p.Rules[0].Limits = corepolicy.ActionAllow, nil
	p.Rules = append(p.Rules, corepolicy.Rule{Name: "closed", Action: corepolicy.ActionBlock, Match: corepolicy.Match{Path: []string{"/closed"}}})
	b.edit(p)
	const clients = 2*denialsMax + 50
	for i := range clients {
		b.properties["source.address"] = fmt.Sprintf("192.0.%d.%d:4711", i/256, i%256)
		b.path = "/closed"
		b.requests(1, 100)
		b.path = "/api/x"
		b.requests(1, 100)
	}
	b.passTime(3 * counter.Second)
	if b.reported != clients {
		t.Errorf("%d of %d admissions are reported", b.reported, clients)
	}
}

// TestLongRequestsWithoutALimitAreReported: a client cannot avoid the count of its usage by long
// requests. A long question takes the room of several others.
func TestLongRequestsWithoutALimitAreReported(t *testing.T) {
	b := usageLedger(t)
	p := shopLeased(t, "20000/1m fixed_window")
	p.Rules[0].Action, p.Rules[0].Limits, p.Rules[0].Match = corepolicy.ActionAllow, nil, corepolicy.Match{}
	b.edit(p)
	b.path = "/api/" + strings.Repeat("x", 7*fetchBytesMax)
	const clients = denialsMax
	for i := range clients {
		b.properties["source.address"] = fmt.Sprintf("192.0.2.%d:4711", i)
		b.requests(2, 100)
		if most := b.f.denials.admits; most > denialsMax {
			t.Fatalf("the report has the size of %d usual items", most)
		}
	}
	b.passTime(3 * counter.Second)
	if b.reported != 2*clients || b.asked() != 0 {
		t.Errorf("%d of %d admissions are reported, %d asked", b.reported, 2*clients, b.asked())
	}
}

// TestABusyBridgeIsNotPressed: while a bridge is too busy to read a report, the filter does not
// send the report again and again. Meanwhile questions about requests reach the bridge, even under
// a later policy.
func TestABusyBridgeIsNotPressed(t *testing.T) {
	b := usageLedger(t)
	admitted := b.requests(500, counter.Millisecond)
	b.edit(shopLeased(t, "30000/1m fixed_window"))
	b.f.reportDenials(0)
	const most = 1000
	b.busy = most
	before := b.asked()
	if b.request() {
		admitted++
	}
	if sent := most - b.busy; sent < 1 || sent > 2 || b.asked() == before {
		t.Errorf("%d calls with the report met a busy bridge, and %d questions were answered", sent, b.asked()-before)
	}
	b.passTime(counter.Second)
	if sent := most - b.busy; sent < 2 || sent > 200 {
		t.Errorf("the report is sent %d times in a second", sent)
	}
	b.busy = 0
	b.passTime(3 * counter.Second)
	b.checkCounted(admitted)
}
