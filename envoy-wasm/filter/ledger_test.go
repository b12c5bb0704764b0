// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// ledgerBridge is a bridge that supports leases. Its counters have a number of units for the
// current minute.
type ledgerBridge struct {
	*fakeEnvoy
	f       *Filter
	left    []int64 // units left for each check of a request
	tokens  map[string]int64
	kinds   map[wire.Kind]int
	calls   int
	next    uint32
	deaf    bool // the bridge does not support leases
	exact   bool // the bridge forbids remembering denials
	verdict bool // the bridge identifies the requests as another client's
	path    string
	// Calls about leases reach a bridge that does not support leases. Other calls reach a bridge
	// that does.
	mixed    bool
	late     bool            // a rejected call about leases is answered after the filter has given it up
	settled  []string        // receipts
	usage    bool            // the bridge wants reports of admissions
	reported int             // admissions
	versions map[string]int  // the reports, by their versions of the policy
	peers    map[string]bool // the addresses of reported and of other requests
	busy     int             // number of calls with reports that are answered 503
	lost     int             // number of calls with reports that get no answer
	// the number of calls about leases with settlements that a bridge without leases rejected
	denied int
}

func newLedger(t *testing.T, p corepolicy.Policy, left ...int64) *ledgerBridge {
	t.Helper()
	b := &ledgerBridge{fakeEnvoy: newEnvoy(t), left: left, tokens: map[string]int64{}, kinds: map[wire.Kind]int{}, path: "/api/x",
		versions: map[string]int{}, peers: map[string]bool{}}
	b.f = withPolicy(t, b.fakeEnvoy, p)
	return b
}

// ledgerBridge.answer answers one item.
func (b *ledgerBridge) answer(item *wire.Item) (a wire.Answer) {
	b.kinds[item.Kind]++
	if item.Ask.Peer.IsValid() {
		b.peers[item.Ask.Peer.String()] = true
	}
	if item.Kind == wire.KindDenied {
		if n := int(item.Units[0].Cost); n < 0 {
			b.reported -= n
		}
		return a
	}
	if item.Kind == wire.KindSettle {
		b.settled = append(b.settled, item.Settle.Receipt)
		return a
	}
	if item.Kind == wire.KindRefund {
		if back := item.Refund; back.Units < 1 || back.Units > b.tokens[back.Token] {
			b.t.Errorf("%d units go back by a receipt for %d", back.Units, b.tokens[back.Token])
		}
		b.left[0] += item.Refund.Units
		delete(b.tokens, item.Refund.Token)
		return a
	}
	refused := false
	for i := range b.left {
		refused = refused || b.left[i] < 1
	}
	for i := range b.left {
		if item.Kind == wire.KindFetch && item.Units[0].Check != i {
			continue
		}
		r := counter.Result{At: b.now, Remaining: b.left[i], Reset: counter.Minute, Next: counter.Minute}
		if b.left[i] < 1 {
			r.Denied, r.Wait = true, counter.Minute
		}
		own, all := int64(1), int64(1)
		for _, u := range item.Units {
			if u.Check == i {
				all = min(u.Max, max(u.Cost, b.left[i]/2), b.left[i])
			}
		}
		if item.Kind == wire.KindFetch {
			own = 0
		}
		if !refused {
			b.left[i] -= all
			r.Granted, r.Receipt, r.Remaining = max(own, 1), 77, b.left[i]
			if all > own {
				token := strconv.Itoa(len(b.tokens)) + " of " + strconv.Itoa(b.calls)
				b.tokens[token] = all - own
				a.Leases = append(a.Leases, wire.Lease{Check: i, Granted: all, Receipt: 77, Token: token})
			}
		}
		a.Results = append(a.Results, r)
	}
	if b.verdict {
		a.Verdict = &wire.Verdict{}
	}
	return a
}

// ledgerBridge.serve answers the calls in flight.
func (b *ledgerBridge) serve() {
	b.t.Helper()
	for b.wakes > 0 || len(b.fakeEnvoy.calls) > 0 {
		b.wakes = 0
		b.f.Flush()
		if len(b.fakeEnvoy.calls) == 0 {
			return
		}
		c, reader, items := b.check()
		b.calls++
		if (b.deaf || b.mixed) && reader.Leasing {
			if slices.ContainsFunc(items, func(i wire.Item) bool { return i.Kind == wire.KindSettle }) {
				b.denied++
			}
			if b.late {
				b.f.abandon(b.f.calls.flight, CounterTimeout)
			}
			c.answer(Reply{Status: 400})
			continue
		}
		if slices.ContainsFunc(items, func(i wire.Item) bool { return i.Kind == wire.KindDenied }) {
			switch {
			case b.busy > 0:
				b.busy--
				c.answer(Reply{Status: 503, Leases: b.leases()})
				continue
			case b.lost > 0:
				b.lost--
				c.answer(Reply{Status: 503})
				continue
			}
			b.versions[reader.Version]++
		}
		begin, add := wire.AppendReply, wire.AppendAnswer
		if reader.Leasing {
			begin, add = wire.AppendLeasingReply, wire.AppendLeasingAnswer
		}
		body := begin(nil)
		for i := range items {
			answer := b.answer(&items[i])
			body = add(body, &answer)
		}
		b.now += counter.Millisecond
		c.answer(Reply{Status: 200, Leases: b.leases(), Denials: b.usage, Usage: b.usage, Body: body})
	}
}

func (b *ledgerBridge) leases() string {
	switch {
	case b.deaf:
		return ""
	case b.exact:
		return wire.LeasingExact
	default:
		return wire.LeasingUsual
	}
}

// request sends a request and reports whether it was admitted.
func (b *ledgerBridge) request() bool {
	b.t.Helper()
	b.next++
	s := b.f.NewStream(b.next)
	action := s.RequestHeaders(get(b.path))
	b.serve()
	_, refused := b.responses[b.next]
	if action == Pause && !refused && !slices.Contains(b.resumed, b.next) {
		b.t.Fatalf("request %d is not decided", b.next)
	}
	s.ResponseHeaders(okHeaders("200"), true)
	s.Done()
	return !refused
}

// ledgerBridge.requests sends n requests at a steady pace and returns how many were admitted.
func (b *ledgerBridge) requests(n int, every counter.Micros) (admitted int) {
	b.t.Helper()
	for range n {
		if b.request() {
			admitted++
		}
		b.passTime(every)
	}
	return admitted
}

// passTime advances the clock and calls Tick whenever a tick is due.
func (b *ledgerBridge) passTime(d counter.Micros) {
	b.t.Helper()
	for end := b.now + d; b.now < end; {
		b.now = min(end, max(b.now+1, b.ticks))
		if b.now >= b.ticks {
			b.ticks = b.now + counter.Micros(b.every)*counter.Millisecond
			b.f.Tick()
			b.dropPolls()
			b.serve()
		}
	}
}

// dropPolls drops polls for a policy.
func (b *ledgerBridge) dropPolls() {
	b.fakeEnvoy.calls = slices.DeleteFunc(b.fakeEnvoy.calls, func(c madeCall) bool { return c.Path == policyPath })
}
