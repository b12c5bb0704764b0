// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// inventRequests sends n requests from an address, each for a different counter.
func (e *fakeEnvoy) inventRequests(f *Filter, address string, from, n uint32) (streams []*Stream) {
	e.properties["source.address"] = address + ":4711"
	for id := from; id < from+n; id++ {
		s := f.NewStream(id)
		s.RequestHeaders(get("/api/x", "x-id", address+" "+strconv.Itoa(int(id))))
		streams = append(streams, s)
		e.now += burstSpan / burstMin // so that no request waits for the end of a turn
	}
	return streams
}

// countAsked answers the oldest call. It returns the number of the call's questions about counters
// of an address, and the number of all its questions.
func (e *fakeEnvoy) countAsked(f *Filter, address string) (own, all int) {
	e.t.Helper()
	c, _, items := e.check()
	for i := range items {
		if text := items[i].Ask.Headers[0].Text; len(text) > len(address) && text[:len(address)] == address {
			own++
		}
	}
	c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(1)}, len(items))...))
	f.endTurns()
	return own, len(items)
}

// TestAFloodDelaysItsOwnAddress: after thousands of requests from one address, each for a different
// counter, the requests from another address are in the next call.
func TestAFloodDelaysItsOwnAddress(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, policyByHeaders(t, "X-Id"))
	e.inventRequests(f, "192.0.2.1", 0, 5000)
	f.Flush() // the first call is made
	e.inventRequests(f, "192.0.2.2", 5000, 3)
	if own, all := e.countAsked(f, "192.0.2.2"); own != 0 || all != batchItemsMax {
		t.Fatalf("%d of %d questions of the first call", own, all)
	}
	if own, all := e.countAsked(f, "192.0.2.2"); own != 3 || all != batchItemsMax {
		t.Errorf("%d of %d questions of the next call are the other client's, want 3 and a full call", own, all)
	}
	// two clients with many requests share the calls
	e.inventRequests(f, "192.0.2.3", 6000, 1000)
	e.countAsked(f, "192.0.2.3")
	if own, _ := e.countAsked(f, "192.0.2.3"); own != batchItemsMax/2 {
		t.Errorf("%d questions of a second client with many are in a call, want half of it", own)
	}
	for len(e.calls) > 0 {
		e.countAsked(f, "")
	}
	if len(e.resumed) != 6003 || f.calls.sources.queued != 0 {
		t.Errorf("%d were decided, and %d are counted as waiting", len(e.resumed), f.calls.sources.queued)
	}
}

// TestEachWorkerHasOtherNeighbors: two sources that share a count in one filter rarely share one in
// another filter.
func TestEachWorkerHasOtherNeighbors(t *testing.T) {
	const victim, n = 7, 1 << 16
	neighbors, still := 0, 0
	for neighbors < 100 {
		first, second := withKey(t), withKey(t)
		for source := uint32(victim + 2); source < n; source += 2 {
			if first.indexOf(source) != first.indexOf(victim) {
				continue
			}
			neighbors++
			if second.indexOf(source) == second.indexOf(victim) {
				still++
			}
		}
	}
	if still > neighbors/10 {
		t.Errorf("%d sources share a count with another in one filter, and %d of these in both", neighbors, still)
	}
}

// withKey returns the sources of a new filter, whose hash has a random key.
func withKey(t *testing.T) *sources {
	f, err := New(newEnvoy(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &f.calls.sources
}

// TestAFloodLeavesHalfOfTheQueues: requests of one address beyond half of the queues are denied
// with 503, even if they end before the bridge is asked about them. Requests of another address
// find room.
func TestAFloodLeavesHalfOfTheQueues(t *testing.T) {
	for _, resets := range []bool{false, true} {
		e := newEnvoy(t)
		f := withPolicy(t, e, policyByHeaders(t, "X-Id"))
		flood := e.inventRequests(f, "192.0.2.1", 0, waitingMax+1000)
		if n := waitingMax + 1000 - sourceMax; e.counts[CounterFull] != n || e.responses[sourceMax].Status != 503 {
			t.Errorf("counted %v, want %d denied", e.count(), n)
		}
		if resets {
			for _, s := range flood {
				s.Done()
			}
		}
		before := e.counts[CounterFull]
		e.inventRequests(f, "192.0.2.2", 30_000, 1000)
		if n := e.counts[CounterFull] - before; n != 0 {
			t.Errorf("%d requests of another address are denied", n)
		}
		for f.Flush(); len(e.calls) > 0; f.endTurns() {
			e.countAsked(f, "")
		}
		decided := sourceMax + 1000
		if resets {
			decided = 1000
		}
		if len(e.resumed) != decided || f.calls.sources.queued != 0 || f.calls.held != 0 {
			t.Errorf("%d were let through, want %d; %d are counted as waiting, with %d bytes", len(e.resumed), decided, f.calls.sources.queued, f.calls.held)
		}
		for i := range f.calls.sources.each {
			if n := f.calls.sources.each[i].queued; n != 0 {
				t.Fatalf("%d of source %d are counted as waiting", n, i)
			}
		}
	}
}

// TestAFloodLeavesHalfOfTheBytes: the headers of requests of one address take at most half of the
// bytes that a worker keeps for waiting requests. Requests of another address find room.
func TestAFloodLeavesHalfOfTheBytes(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, policyByHeaders(t, "X-Id"))
	large, n := strings.Repeat("a", 60<<10), uint32(heldBytesMax/(60<<10)+100)
	request := func(address string, id uint32) *Stream {
		e.properties["source.address"] = address + ":4711"
		s := f.NewStream(id)
		s.RequestHeaders(get("/api/x", "x-id", address+" "+strconv.Itoa(int(id)), "x-unread", large))
		e.now += burstSpan / burstMin // so that no request waits for the end of a turn
		return s
	}
	var flood []*Stream
	for id := range n {
		flood = append(flood, request("192.0.2.1", id))
	}
	if f.calls.held > heldBytesMax/2 || e.counts[CounterFull] == 0 {
		t.Errorf("%d bytes are held for one address, and %d requests are denied", f.calls.held, e.counts[CounterFull])
	}
	before := e.counts[CounterFull]
	for id := range uint32(100) {
		request("192.0.2.2", n+id)
	}
	if denied := e.counts[CounterFull] - before; denied != 0 {
		t.Errorf("%d of 100 requests of another address are denied", denied)
	}
	for _, s := range flood {
		s.Done()
	}
	request("192.0.2.1", 2*n)
	for f.Flush(); len(e.calls) > 0; f.endTurns() {
		e.countAsked(f, "")
	}
	if len(e.resumed) != 101 || f.calls.held != 0 {
		t.Errorf("%d were let through, want 101; %d bytes are held", len(e.resumed), f.calls.held)
	}
	for i := range f.calls.sources.each {
		if held := f.calls.sources.each[i].held; held != 0 {
			t.Fatalf("%d bytes of source %d are counted", held, i)
		}
	}
}

// TestASharedCounterHasPlacesForOthers: with a counter that all clients share, a client with
// thousands of requests takes at most half of the places in the queue of the counter. The requests
// of another client are not denied, and are in the next calls.
func TestASharedCounterHasPlacesForOthers(t *testing.T) {
	e := newEnvoy(t)
	p := shopPolicy(t, "1000000/1h")
	p.Rules[0].Per = nil
	f := withPolicy(t, e, p)
	e.properties["source.address"] = "192.0.2.1:4711"
	e.sendFlood(f, 0, 8000, "/api/x")
	if n := f.calls.sources.queued; n > gateSourceMax+waveMax {
		t.Errorf("%d requests of one client wait, want at most %d", n, gateSourceMax)
	}
	denied := len(e.responses)
	e.properties["source.address"] = "192.0.2.2:4711"
	e.sendFlood(f, 8000, gateAheadMax, "/api/x")
	if len(e.responses) != denied {
		t.Errorf("%d requests of another client are denied", len(e.responses)-denied)
	}
	for range 2 { // the call under way, and the next one
		c, _, items := e.check()
		c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(900_000)}, len(items))...))
		e.settleTurns(f)
	}
	for id := uint32(8000); id < 8000+gateAheadMax; id++ {
		if !slices.Contains(e.resumed, id) {
			t.Fatalf("request %d of the other client is not among the first %d that are admitted", id, len(e.resumed))
		}
	}
	units := int64(900_000)
	e.answerAll(f, &units)
	if n := f.calls.sources.queued; n != 0 || len(e.resumed)+len(e.responses) != 8000+gateAheadMax || len(f.gates.byKey) != 0 {
		t.Errorf("%d wait, %d are resumed, %d are denied", n, len(e.resumed), len(e.responses))
	}
}
