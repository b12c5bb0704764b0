// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"bytes"
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// charges is a job with the further charges of several jobs that found no place in the queue.
// Charges of the same counter are one check.
type charges struct {
	source uint32
	jobs   int
	checks []counter.Check
}

// excess holds the queued jobs with merged charges of one source.
type excess struct {
	latest *charges // to which further charges are added; nil if it is no longer queued
	jobs   int
}

// Source implements [Job].
func (m *charges) Source() uint32 { return m.source }

// Due implements [Job].
func (m *charges) Due() []counter.Check { return m.checks }

// Release implements [Job].
func (m *charges) Release() {}

// charges.add adds the further charges among a job's checks. The result is false if there are none,
// or if all checks would not fit into one call.
func (m *charges) add(due []counter.Check) bool {
	all, fresh := 0, 0
	for i := range due {
		if due[i].Op == counter.OpForce {
			all++
			if m.find(due[i].Key) == nil {
				fresh++
			}
		}
	}
	if all == 0 || len(m.checks)+fresh > counter.ChecksMax {
		return false
	}
	m.jobs++
	for i := range due {
		if due[i].Op == counter.OpForce {
			m.charge(&due[i])
		}
	}
	return true
}

// charges.addKnown adds the further charges of the counters that already have one. The result is
// false if there are none.
func (m *charges) addKnown(due []counter.Check) bool {
	known := false
	for i := range due {
		if due[i].Op == counter.OpForce && m.find(due[i].Key) != nil {
			m.charge(&due[i])
			known = true
		}
	}
	if known {
		m.jobs++
	}
	return known
}

// charges.find returns the check of a counter, or nil.
func (m *charges) find(key []byte) *counter.Check {
	i := slices.IndexFunc(m.checks, func(c counter.Check) bool { return bytes.Equal(c.Key, key) })
	if i < 0 {
		return nil
	}
	return &m.checks[i]
}

// charges.charge adds the cost of a check to the cost of the counter.
func (m *charges) charge(c *counter.Check) {
	merged := m.find(c.Key)
	if merged == nil {
		m.checks = append(m.checks, copyCheck(c))
		return
	}
	cost := min(merged.Cost+c.Cost, counter.CountMax+1)
	if c.Bounds != nil && merged.Bounds != nil && c.Bounds[0] > merged.Bounds[0] { // a later period has begun
		*merged = copyCheck(c)
	}
	merged.Cost = cost
}

// jobsIn returns the number of jobs that a job of the queue stands for.
func jobsIn(job Job) int {
	if m, ok := job.(*charges); ok {
		return m.jobs
	}
	return 1
}

// Copy returns a job with a copy of the checks, for a caller that uses its checks again.
func Copy(checks []counter.Check) Job {
	copied := &copiedChecks{checks: make([]counter.Check, len(checks))}
	for i := range checks {
		copied.checks[i] = copyCheck(&checks[i])
	}
	return copied
}

// copiedChecks is a job that owns its checks.
type copiedChecks struct{ checks []counter.Check }

// Source implements [Job].
func (c *copiedChecks) Source() uint32 {
	if len(c.checks) == 0 {
		return 0
	}
	return c.checks[0].Source
}

// Due implements [Job].
func (c *copiedChecks) Due() []counter.Check { return c.checks }

// Release implements [Job].
func (c *copiedChecks) Release() {}

// copyCheck returns a copy of a check, with copies of what it points to.
func copyCheck(c *counter.Check) counter.Check {
	copied := *c
	copied.Key = slices.Clone(c.Key)
	copied.Limit, copied.UnshardedLimit, copied.WholeLimit = copyOf(c.Limit), copyOf(c.UnshardedLimit), copyOf(c.WholeLimit)
	copied.Bounds = copyOf(c.Bounds)
	return copied
}

func copyOf[T any](from *T) *T {
	if from == nil {
		return nil
	}
	return new(*from)
}
