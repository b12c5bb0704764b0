// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

// leasedMutants holds, for each promise about leases, stores that break it on purpose.
var leasedMutants = map[string][]mutant{
	"how long units may be out is known": {
		{"knows of no lease", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.LeasedIn = 0 })},
		{"tells who leases only", changeAnswers(func(c *corecounter.Check, r *corecounter.Result) {
			if c.Age == 0 {
				r.LeasedIn = 0
			}
		})},
		{"forgets leases", changeStates(func(_ *Model, _ *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) { s.State.Leased = 0 })},
		{"remembers the last lease", changeStates(lastLease)},
		{"calls every grant a lease", changeStates(everyGrant)},
		{"forgets leases when a window ends", changeEachCheck(forgetAtTheEnd)},
		{"counts from the epoch", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) {
			if r.LeasedIn > 0 {
				r.LeasedIn += r.At
			}
		})}},
	"a bucket holds back what a lease's time brings": {
		{"holds nothing back", changeEachCheck(ageless(corecounter.OpUpTo))},
		{"holds half of it back", changeEachCheck(halfAge)},
		{"holds back what is needed", changeEachCheck(shareAll)}},
	"a lease comes back without what was refilled": {
		{"credits leases in full", changeEachCheck(ageless(corecounter.OpRefund))},
		{"credits nothing of leases", changeEachCheck(creditNoLease)},
		{"does not look at longer leases", changeEachCheck(forgetLonger)}},
}

func init() {
	for promise, list := range leasedMutants {
		mutants[promise] = list
	}
}

func lastLease(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Age > 0 && r.Granted > c.Cost && c.Op == corecounter.OpUpTo {
		s.State.Leased = m.now + c.Age
	}
}

func everyGrant(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Age > 0 && r.Granted > 0 && c.Op == corecounter.OpUpTo {
		s.State.Leased = max(s.State.Leased, m.now+c.Age)
	}
}

func forgetAtTheEnd(m *Model, c *corecounter.Check) {
	if s, ok := m.counters[string(c.Key)]; ok && s.State.At+c.Limit.Window() <= m.now {
		s.State.Leased = 0
		m.counters[string(c.Key)] = s
	}
}

func ageless(op corecounter.Op) func(*Model, *corecounter.Check) {
	return func(_ *Model, c *corecounter.Check) {
		if c.Op == op && c.Limit.Algorithm() == corecounter.TokenBucket {
			c.Age = 0
		}
	}
}

func halfAge(_ *Model, c *corecounter.Check) {
	if c.Op == corecounter.OpUpTo {
		c.Age = (c.Age + 1) / 2
	}
}

func creditNoLease(_ *Model, c *corecounter.Check) {
	if c.Op == corecounter.OpRefund && c.Age > 0 {
		c.Receipt = 0
	}
}

func forgetLonger(m *Model, c *corecounter.Check) {
	if s, ok := m.counters[string(c.Key)]; ok && c.Op == corecounter.OpRefund {
		s.State.Leased = 0
		m.counters[string(c.Key)] = s
	}
}
