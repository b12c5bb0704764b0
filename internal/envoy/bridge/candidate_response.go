// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// keptResponse is a copy of a filter's report of a response.
type keptResponse struct {
	settledResponse
	pending        core.Settlement
	headers, paths []string // the headers and paths for which the filter was asked
}

// Pending implements [shadow.Response].
func (r *keptResponse) Pending() *core.Settlement { return &r.pending }

// Release implements [shadow.Response].
func (r *keptResponse) Release() {}

// keptResponse.covers reports whether the filter was asked for all data that a settlement
// needs.
func (r *keptResponse) covers(needs *core.Settlement) bool {
	among := func(names []string) func(string) bool {
		return func(name string) bool { return !slices.Contains(names, name) }
	}
	return !slices.ContainsFunc(needs.Headers(), among(r.headers)) && !slices.ContainsFunc(needs.Paths(), among(r.paths))
}

// candidate.responded starts the trial that waits for a response, if there is such a trial. The
// argument named asked is the settlement of the policy in force, which determines what the filter
// reports. candidate.responded does nothing without a candidate.
func (c *candidate) responded(number uint64, response *wire.Settle, asked *core.Settlement) {
	if c == nil {
		return
	}
	t := c.parked.unpark(number)
	if t == nil {
		return
	}
	settle := cloneSettle(response)
	if settle == nil {
		t.Drop()
		return
	}
	t.Source.(*requestCopy).response = &keptResponse{settledResponse: settledResponse{settle}, headers: slices.Clone(asked.Headers()),
		paths: slices.Clone(asked.Paths())}
	t.Start()
}

// cloneSettle copies the values of a report. cloneSettle returns nil if the values are too large
// together.
func cloneSettle(from *wire.Settle) *wire.Settle {
	size := 0
	clone := func(from []wire.Field) []wire.Field {
		all := make([]wire.Field, len(from))
		for i, f := range from {
			size += len(f.Name) + len(f.Text)
			all[i] = wire.Field{Name: strings.Clone(f.Name), Text: strings.Clone(f.Text)}
		}
		return all
	}
	settle := &wire.Settle{Status: from.Status, Headers: clone(from.Headers), Numbers: clone(from.Numbers)}
	if size > triedBytesMax {
		return nil
	}
	return settle
}

// parkedMax bounds the trials that wait for a response. If there are more, the oldest trial is
// dropped.
const parkedMax = 4096

// parkedTrials holds the trials that wait for a response, by the numbers of receipts. The type is
// safe for concurrent use.
type parkedTrials struct {
	mu     sync.Mutex
	trials map[uint64]*shadow.Trial
	order  []parkedAt // the numbers, with the oldest first; some are no longer in trials
}

type parkedAt struct {
	number uint64
	until  counter.Micros
}

// parkedTrials.park keeps a trial until unpark removes it, or until its receipt has expired.
func (p *parkedTrials) park(number uint64, t *shadow.Trial, now counter.Micros) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.order) > 0 && (len(p.order) >= parkedMax || p.order[0].until <= now) {
		if late := p.remove(p.order[0].number); late != nil {
			late.Drop()
		}
		p.order = p.order[1:]
	}
	if p.trials == nil {
		p.trials = make(map[uint64]*shadow.Trial)
	}
	p.trials[number] = t
	p.order = append(p.order, parkedAt{number, now + receiptTTL})
}

// parkedTrials.unpark removes the trial with a number and returns it, or nil.
func (p *parkedTrials) unpark(number uint64) *shadow.Trial {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remove(number)
}

// parkedTrials.remove does what unpark does, with the lock held.
func (p *parkedTrials) remove(number uint64) *shadow.Trial {
	t := p.trials[number]
	delete(p.trials, number)
	return t
}

// dropAll drops the trials that still wait. These trials count as untried.
func (p *parkedTrials) dropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number, t := range p.trials {
		t.Drop()
		delete(p.trials, number)
	}
	p.order = nil
}

var _ shadow.Response = (*keptResponse)(nil)
