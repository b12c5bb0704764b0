// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestALateAnswerAdmitsNoMore: if a client's burst delays the calls, the client gets exactly its
// limit, even with on_error: allow.
func TestALateAnswerAdmitsNoMore(t *testing.T) {
	for _, late := range []counter.Micros{60 * counter.Millisecond, 200 * counter.Millisecond, 900 * counter.Millisecond} {
		for _, limit := range []int64{5, 300} {
			e := newEnvoy(t)
			f := withPolicy(t, e, shopPolicy(t, strconv.FormatInt(limit, 10)+"/1h fixed_window"), "poll: 60m")
			units := limit
			e.sendFlood(f, 0, 2000, "/api/x")
			for range 100 {
				calls := e.calls
				e.calls = nil
				e.passTicks(f, late)
				calls, e.calls = e.calls, calls
				e.answerAll(f, &units)
				e.calls = append(e.calls, calls...)
			}
			if len(e.resumed) > int(limit) || e.counts[CounterDegraded] != 0 || len(e.resumed)+len(e.responses) != 2000 {
				t.Errorf("%v late at limit %d: %d admitted, %d denied, %v", late, limit, len(e.resumed), len(e.responses), e.count())
			}
			if e.counts[CounterOpen] != 0 || f.calls.held != 0 || len(f.gates.byKey) != 0 || len(f.calls.overdue) != 0 {
				t.Errorf("%v late: %d bytes, %d gates and %d calls are left; %v", late, f.calls.held, len(f.gates.byKey), len(f.calls.overdue), e.count())
			}
		}
	}
}

// TestACallThatIsLost: if one call is never answered while the bridge answers others, the requests
// of that call get 503 and no other request is delayed.
func TestACallThatIsLost(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "100/1h"))
	e.sendFlood(f, 1, 1, "/api/x")
	e.check() // never answered
	for id := uint32(2); e.responses[1].Status == 0; id++ {
		if id > 100 {
			t.Fatal("it waits for ever")
		}
		e.properties["source.address"] = "192.0.2.8:1"
		e.sendFlood(f, id, 1, "/api/x")
		e.passTicks(f, 60*counter.Millisecond)
		for len(e.calls) > 0 {
			c := e.calls[0]
			e.calls = e.calls[1:]
			if c.Path == checkPath {
				c.answer(replyWith(admittedWith(50)))
			}
		}
	}
	if e.responses[1].Status != 503 || e.counts[CounterFull] != 1 || e.counts[CounterDegraded] != 0 || f.calls.failures != 0 {
		t.Errorf("answered %d, %d failures, counted %v", e.responses[1].Status, f.calls.failures, e.count())
	}
	if n := len(e.resumed); n < 10 {
		t.Errorf("%d others were admitted", n)
	}
}

// TestOnErrorAllowsOnlyTheRest: when the bridge goes down, on_error allows only the units left
// of the limit.
func TestOnErrorAllowsOnlyTheRest(t *testing.T) {
	for used, want := range map[int64]int{0: 5, 3: 2, 5: 0} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "5/1h"))
		units := int64(5)
		for id := range uint32(used) {
			e.sendFlood(f, id, 1, "/api/x")
			e.answerAll(f, &units)
		}
		e.refuses = errNo
		e.sendFlood(f, 100, 50, "/api/x")
		if n := len(e.resumed) - int(used); n != want {
			t.Errorf("%d used before: %d are let through, want %d; %v", used, n, want, e.count())
		}
		e.now += 2 * counter.Hour // the counter has expired
		before := len(e.resumed)
		if e.sendFlood(f, 200, 50, "/api/x"); len(e.resumed)-before != 5 {
			t.Errorf("%d used before: %d are let through hours later", used, len(e.resumed)-before)
		}
	}
}

// TestALateAnswerUndoesNothing: the answer to an earlier call does not overwrite the answer to a
// later call.
func TestALateAnswerUndoesNothing(t *testing.T) {
	var u knownUses
	l, err := counter.ParseLimit("5/1h")
	if err != nil {
		t.Fatal(err)
	}
	checks := []counter.Check{{Key: []byte("k"), Limit: &l, Op: counter.OpTake}}
	u.learn(20, checks, []counter.Result{{Remaining: 1, Reset: counter.Hour}})
	u.learn(10, checks, []counter.Result{{Remaining: 4, Reset: counter.Hour}})
	if n := u.lastUsed(30, checks[0].Key); n != 4 {
		t.Errorf("%d are used", n)
	}
	if n := u.lastUsed(20+counter.Hour, checks[0].Key); n != 0 {
		t.Errorf("%d are used after a window", n)
	}
}

// TestNoClientChoosesARecord: the clients that share a record differ between Envoys. A client
// without its own record does not take units from other clients.
func TestNoClientChoosesARecord(t *testing.T) {
	places := func() (at []uint32) {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "5/1h"))
		e.refuses = errNo
		e.sendFlood(f, 0, 1, "/api/x")
		for slot := range e.shared {
			if slot != keyRecord {
				at = append(at, slot)
			}
		}
		return at
	}
	first := places()
	same := 0
	for range 10 {
		if slices.Equal(first, places()) {
			same++
		}
	}
	if len(first) != 1 || same > 2 {
		t.Errorf("the record %v is the same in %d of 10", first, same)
	}

	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "5/1h"))
	h := uint64(77)
	// all records of the counter belong to other counters, one of which has used up its limit
	for i := range uint64(recordWays) {
		value := make([]byte, recordBytes)
		setNumber(value, h+(i+1)<<32)
		setNumber(value[8:], uint64(e.now+counter.Hour))
		setNumber(value[16:], 5-i)
		e.Share(77^uint32(i), value, 0)
	}
	r := f.recordOf(h, e.now)
	if r.used != 0 || r.ends != 0 || r.at != 77^(recordWays-1) {
		t.Errorf("%+v", r)
	}
	if r = f.recordOf(h+1<<32, e.now); r.used != 5 {
		t.Errorf("another one's: %+v", r)
	}
}

// TestWorkersShareTheKeyOfRecords: two workers agree on one key from the beginning, even if neither
// finds a key at first.
func TestWorkersShareTheKeyOfRecords(t *testing.T) {
	e, other := newEnvoy(t), newEnvoy(t)
	f, g := withPolicy(t, e, shopPolicy(t, "5/1h")), withPolicy(t, other, shopPolicy(t, "5/1h"))
	e.shared = map[uint32]sharedValue{}
	other.shared = e.shared
	var first hashKey
	e.shares = func(uint32) { first = g.recordKey() }
	second := f.recordKey()
	if first != second || g.recordKey() != first || first == (hashKey{}) {
		t.Errorf("the keys %x and %x", first, second)
	}
}

// TestSipHash compares sums with those of SipHash-1-3 for the key 00 to 0f.
func TestSipHash(t *testing.T) {
	k := hashKey{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	if got := k.sum(nil); got != 0xabac0158050fc4dc {
		t.Errorf("%x", got)
	}
	seen := map[uint64]int{}
	for n := range 40 {
		seen[k.sum(make([]byte, n))] = n
	}
	if len(seen) != 40 {
		t.Errorf("%d sums of 40 lengths", len(seen))
	}
}
