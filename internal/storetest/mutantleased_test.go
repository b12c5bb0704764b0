// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

// leasedMutants break what is promised of leases.
var leasedMutants = map[string][]mutant{
	"how long units may be out is known": {
		{"knows of no lease", answering(func(_ *core.Check, r *core.Result) { r.LeasedIn = 0 })},
		{"tells who leases only", answering(func(c *core.Check, r *core.Result) {
			if c.Age == 0 {
				r.LeasedIn = 0
			}
		})},
		{"forgets leases", keeping(func(_ *Model, _ *core.Check, _ *core.Result, s *core.Slot) { s.State.Leased = 0 })},
		{"remembers the last lease", keeping(lastLease)},
		{"calls every grant a lease", keeping(everyGrant)},
		{"forgets leases when a window ends", eachAsked(forgetAtTheEnd)},
		{"counts from the epoch", answering(func(_ *core.Check, r *core.Result) {
			if r.LeasedIn > 0 {
				r.LeasedIn += r.At
			}
		})}},
	"a bucket holds back what a lease's time brings": {
		{"holds nothing back", eachAsked(ageless(core.OpUpTo))},
		{"holds half of it back", eachAsked(halfAge)},
		{"holds back what is needed", eachAsked(shareAll)}},
	"a lease comes back without what was refilled": {
		{"credits leases in full", eachAsked(ageless(core.OpGiveBack))},
		{"credits nothing of leases", eachAsked(creditNoLease)},
		{"does not look at longer leases", eachAsked(forgetLonger)}},
}

func init() {
	for promise, list := range leasedMutants {
		mutants[promise] = list
	}
}

func lastLease(m *Model, c *core.Check, r *core.Result, s *core.Slot) {
	if c.Age > 0 && r.Granted > c.Cost && c.Op == core.OpUpTo {
		s.State.Leased = m.now + c.Age
	}
}

func everyGrant(m *Model, c *core.Check, r *core.Result, s *core.Slot) {
	if c.Age > 0 && r.Granted > 0 && c.Op == core.OpUpTo {
		s.State.Leased = max(s.State.Leased, m.now+c.Age)
	}
}

func forgetAtTheEnd(m *Model, c *core.Check) {
	if s, ok := m.counters[string(c.Key)]; ok && s.State.At+c.Limit.Window() <= m.now {
		s.State.Leased = 0
		m.counters[string(c.Key)] = s
	}
}

func ageless(op core.Op) func(*Model, *core.Check) {
	return func(_ *Model, c *core.Check) {
		if c.Op == op && c.Limit.Algorithm() == core.TokenBucket {
			c.Age = 0
		}
	}
}

func halfAge(_ *Model, c *core.Check) {
	if c.Op == core.OpUpTo {
		c.Age = (c.Age + 1) / 2
	}
}

func creditNoLease(_ *Model, c *core.Check) {
	if c.Op == core.OpGiveBack && c.Age > 0 {
		c.Receipt = 0
	}
}

func forgetLonger(m *Model, c *core.Check) {
	if s, ok := m.counters[string(c.Key)]; ok && c.Op == core.OpGiveBack {
		s.State.Leased = 0
		m.counters[string(c.Key)] = s
	}
}
