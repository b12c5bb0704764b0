// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// charges is a job with the further charges of several jobs that found no place in the queue.
// Charges of the same counter are one check.
type charges struct {
	source uint32
	jobs   int             // the number of jobs that end with this one
	checks []counter.Check // the capacity is ChecksMax, so that the checks never move
}

// Source implements [Job].
func (m *charges) Source() uint32 { return m.source }

// Due implements [Job].
func (m *charges) Due() []counter.Check { return m.checks }

// Release implements [Job].
func (m *charges) Release() {}

// excess holds the queued jobs with merged charges of one source.
type excess struct {
	known  map[string]*counter.Check // by the key of the counter
	latest *charges                  // the job to which checks of further counters are added, or nil
	jobs   int
}

// excess.add adds a further charge. The result is false if the counter has no merged charge yet and
// the latest job has no room for another counter.
func (e *excess) add(c *counter.Check) bool {
	if merged := e.known[string(c.Key)]; merged != nil {
		addCost(merged, c)
		return true
	}
	if e.latest == nil || len(e.latest.checks) == counter.ChecksMax {
		return false
	}
	e.latest.checks = append(e.latest.checks, copyCheck(c))
	e.known[string(c.Key)] = &e.latest.checks[len(e.latest.checks)-1]
	return true
}

// excess.remove removes a job that leaves the queue.
func (e *excess) remove(m *charges) {
	for i := range m.checks {
		delete(e.known, string(m.checks[i].Key))
	}
	e.jobs--
	if e.latest == m {
		e.latest = nil
	}
}

// addCost adds the cost of a further charge to a charge of the same counter.
func addCost(to, c *counter.Check) {
	cost := min(to.Cost+c.Cost, counter.CountMax+1)
	if c.Bounds != nil && to.Bounds != nil && c.Bounds[0] > to.Bounds[0] { // a later period has begun
		*to = copyCheck(c)
	}
	to.Cost = cost
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
