// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"maps"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// startAll returns n admitted requests of an address that wait for their responses. Their receipts
// are the address.
func (e *fakeEnvoy) startAll(f *Filter, address string, n int) []*Stream {
	e.t.Helper()
	e.properties["source.address"] = address + ":4711"
	answer := reservedAnswer(10)
	answer.Receipt = address
	streams := make([]*Stream, n)
	for i := range streams {
		e.resumed = e.resumed[:0]
		streams[i] = admitted(e.t, e, f, uint32(i), answer, get("/api/x"))
	}
	return streams
}

// endAll ends the responses of the requests, each of which then has a cost to settle.
func endAll(streams []*Stream) {
	for _, s := range streams {
		s.ResponseHeaders(okHeaders("200", "x-cost", "40"), true)
		s.Done()
	}
}

// settleCall answers the oldest call, and returns its number of settlements by address.
func (e *fakeEnvoy) settleCall() map[string]int {
	e.t.Helper()
	c, _, items := e.check()
	settled := map[string]int{}
	for i := range items {
		if items[i].Kind == wire.KindSettle {
			settled[items[i].Settle.Receipt]++
		}
	}
	c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(1)}, len(items))...))
	return settled
}

// settleAll answers all calls, and returns their number of settlements by address.
func (e *fakeEnvoy) settleAll() map[string]int {
	e.t.Helper()
	all := map[string]int{}
	for len(e.calls) > 0 {
		for address, n := range e.settleCall() {
			all[address] += n
		}
	}
	return all
}

// TestABurstOfEndsDelaysItsOwnAddress: after thousands of streams of one address have ended at
// once, the settlement of another address is part of the next call. Two addresses with many
// settlements share the calls.
func TestABurstOfEndsDelaysItsOwnAddress(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	flood, second := e.startAll(f, "192.0.2.1", 4000), e.startAll(f, "192.0.2.3", 1000)
	other := e.startAll(f, "192.0.2.2", 3)
	endAll(flood)
	f.Flush() // the first call is made
	endAll(other)
	if got, want := e.settleCall(), map[string]int{"192.0.2.1": batchItemsMax}; !maps.Equal(got, want) {
		t.Fatalf("the first call has %v", got)
	}
	if got, want := e.settleCall(), map[string]int{"192.0.2.1": batchItemsMax - 3, "192.0.2.2": 3}; !maps.Equal(got, want) {
		t.Errorf("the next call has %v, want %v", got, want)
	}
	endAll(second)
	e.settleCall() // it was made before
	if got, want := e.settleCall(), map[string]int{"192.0.2.1": batchItemsMax / 2, "192.0.2.3": batchItemsMax / 2}; !maps.Equal(got, want) {
		t.Errorf("a call has %v, want %v", got, want)
	}
	e.settleAll()
	if len(e.calls) != 0 || e.counts[CounterUnsettled] != 0 {
		t.Errorf("%d calls are under way, counted %v", len(e.calls), e.count())
	}
}

// TestABurstOfEndsDropsItsOwnSettlements: if more settlements wait than there are places, the
// sources with the most settlements lose the latest of these, and the others lose none. A source
// that has lost settlements does not wait longer for later ones.
func TestABurstOfEndsDropsItsOwnSettlements(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	const more = 1000
	first := e.startAll(f, "192.0.2.1", settlingMax+more)
	second, other := e.startAll(f, "192.0.2.2", settlingMax), e.startAll(f, "192.0.2.3", more)
	f.NewStream(0).RequestHeaders(get("/api/x"))
	f.Flush() // a call is under way, so the settlements wait
	for _, c := range []struct {
		ended   []*Stream
		dropped int
		waiting map[uint16]int
	}{
		{first, more, map[uint16]int{first[0].source: settlingMax}},
		{other, more, map[uint16]int{first[0].source: settlingMax - more, other[0].source: more}},
		{second, settlingMax, map[uint16]int{first[0].source: (settlingMax - more) / 2, second[0].source: (settlingMax - more) / 2, other[0].source: more}},
	} {
		before := e.counts[CounterUnsettled]
		endAll(c.ended)
		waiting := map[uint16]int{}
		for _, d := range f.calls.settling {
			waiting[d.source]++
		}
		if n := e.counts[CounterUnsettled] - before; n != c.dropped || !maps.Equal(waiting, c.waiting) {
			t.Errorf("%d are dropped, want %d; %v wait by source, want %v", n, c.dropped, waiting, c.waiting)
		}
	}
	for _, source := range []uint16{first[0].source, second[0].source} {
		if turn, last := f.calls.settlers.each[source], f.calls.settling[settlingMax-1].turn; turn > last {
			t.Errorf("the next settlement of source %d waits for turn %d, but its last one is not behind %d", source, turn, last)
		}
	}
	if got := e.settleAll(); got["192.0.2.3"] != more || got["192.0.2.1"]+got["192.0.2.2"] != settlingMax-more || len(f.calls.settling) != 0 {
		t.Errorf("settled %v", got)
	}
}

// TestARedirectedRequestSettlesInTurn: after an internal redirect, the settlement belongs to the
// source of the request.
func TestARedirectedRequestSettlesInTurn(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	s := e.startAll(f, "192.0.2.9", 1)[0]
	source := s.source
	s.Done()
	e.properties["filter_state.num_internal_redirects"] = "1"
	again := f.NewStream(2)
	again.RequestHeaders(get("/api/y"))
	again.ResponseHeaders(okHeaders("200", "x-cost", "40"), true)
	if len(f.calls.settling) != 1 || f.calls.settling[0].source != source {
		t.Errorf("%d settlements wait", len(f.calls.settling))
	}
}
