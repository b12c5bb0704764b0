// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"maps"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/events"
)

// eventCollector collects events.
type eventCollector []events.Event

// Write implements [events.Sink].
func (w *eventCollector) Write(all []events.Event) (int, error) {
	*w = append(*w, all...)
	return len(all), nil
}

const reported = "events: {}\nblock: {ip: 192.0.2.66}\n" + shop

// TestDenialsOfFilters: a bridge whose policy reports denials asks its filters for their denials,
// and reports these like its own. A report is ignored if it is malformed, or if the policy does not
// deny the request.
func TestDenialsOfFilters(t *testing.T) {
	log, all := events.New(events.Options{}), new(eventCollector)
	detach := log.Attach(all)
	h := open(t, reported, func(o *Options) { o.Events = log })
	if w := h.post(h.call(h.question("/api/x", "192.0.2.1")), wire.ContentType); w.Header().Get(wire.DenialsHeader) != "1" {
		t.Errorf("the header is %q", w.Header().Get(wire.DenialsHeader))
	}
	report := func(path, peer string, units ...wire.Units) wire.Item {
		item := h.question(path, peer)
		item.Kind, item.Units = wire.KindDenied, units
		return item
	}
	items := []wire.Item{
		report("/api/x", "192.0.2.1", wire.Units{Check: 0, Cost: 7}),
		report("/api/x", "192.0.2.1", wire.Units{Check: 0, Cost: 3, Max: 5}),
		report("/api/x", "192.0.2.66", wire.Units{Check: -1, Cost: 2}),
		report("/api/x", "192.0.2.2", wire.Units{Check: -1, Cost: 4}), // the bridge did not answer
		report("/free", "192.0.2.1", wire.Units{Check: -1, Cost: 4}),  // the policy does not deny this request
		report("/api/x", "192.0.2.1", wire.Units{Check: 0, Cost: 0}),
		report("/api/x", "192.0.2.1", wire.Units{Check: 0, Cost: 1, Max: -1}),
		report("/api/x", "192.0.2.1"),
		report("/api/x", "192.0.2.1", wire.Units{Cost: 1}, wire.Units{Cost: 1}),
	}
	want := []wire.Status{wire.StatusOK, wire.StatusOK, wire.StatusOK, wire.StatusOK, wire.StatusUnknown, wire.StatusInvalid,
		wire.StatusInvalid, wire.StatusInvalid, wire.StatusInvalid}
	for i, a := range h.ask(items...) {
		if a.Status != want[i] || len(a.Results) > 0 {
			t.Errorf("item %d: status %d, %d results, want %d", i, a.Status, len(a.Results), want[i])
		}
	}
	if used := h.readUsed("/api/x", "192.0.2.1"); used != 1 {
		t.Errorf("reports have charged %d units", used-1)
	}
	detach()
	counts := map[string]uint64{}
	for _, e := range *all {
		counts[fmt.Sprint(e.Kind, " ", e.Client, " ", e.Rule, " ", e.Decision, e.Reason)] += e.Count
	}
	if want := map[string]uint64{"denied ip:192.0.2.1 api denied": 10, "denied ip:192.0.2.66 block[0] blocked": 2,
		"denied ip:192.0.2.2 api degraded_denied": 4, "dropped   rate": 5}; !maps.Equal(counts, want) {
		t.Errorf("got  %v\nwant %v", counts, want)
	}
}

// TestFiltersAreNotAskedForDenials: filters are not asked if the policy reports no denials, or if
// the bridge reports no events.
func TestFiltersAreNotAskedForDenials(t *testing.T) {
	for text, log := range map[string]*events.Log{shop: events.New(events.Options{}), reported: nil} {
		h := open(t, text, func(o *Options) { o.Events = log })
		w := h.post(h.call(h.question("/api/x", "192.0.2.1")), wire.ContentType)
		if got := w.Header().Get(wire.DenialsHeader); got != "" {
			t.Errorf("the header is %q while denials are reported: %v", got, h.b.policy.Current().ReportsDenials())
		}
		if a := h.ask(wire.Item{Kind: wire.KindDenied, Ask: h.question("/api/x", "192.0.2.1").Ask, Units: []wire.Units{{Cost: 1}}})[0]; a.Status != wire.StatusOK {
			t.Errorf("a report is answered %d", a.Status)
		}
	}
}
