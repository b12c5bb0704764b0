// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"time"

	"github.com/penstock/penstock/core/counter"
)

// After the other regions had fewer units than requests of this region needed, requests of this
// region do not wait for units. This lasts for 1/scarceParts of the window, but at least scarceMin
// and at most scarceMax. Meanwhile the agent asks the other regions in the background.
const (
	scarceParts = 20
	scarceMin   = 250 * time.Millisecond
	scarceMax   = 2 * time.Second
	// If a region that denies requests asks a question, the answers bring too little if they bring
	// less than 1/littleParts of the region's part.
	littleParts = 64
	// pullEvery is how often a region that does not deny requests yet asks the other regions, as
	// long as they lend.
	pullEvery = 500 * time.Millisecond
	// After a loan, a lender without units answers further questions with Moving for the time
	// lentRecently, because the units may still be on their way.
	lentRecently = 500 * time.Millisecond
	// deniedTime is for how long a region counts as denying requests after one of its proxies has
	// reported this to the agent.
	deniedTime = 500 * time.Millisecond
	// movesMax is how many questions in a row may bring too little because units are under way
	// between other regions. After that, units count as scarce, because those regions need what is
	// under way.
	movesMax = 3
)

// pause.farEnds reports whether other regions may be asked now and, if not, whether the last
// question to them was in vain. A region that denies requests waits for the end of the pause only
// if the last question was in vain and the region denied requests even then.
func (p *pause) farEnds(key uint64, now time.Time, short bool) (ask, vain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	if vain = p.farLength > 0; now.Before(p.far) && (!short || p.farShort && vain) {
		return false, vain
	}
	p.farShort = short
	return true, false
}

// pause.farBegins records that other regions have been asked. The time until they may be asked
// again grows as long as they lend nothing and no units are under way.
func (p *pause) farBegins(key uint64, now time.Time, lent, short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	if lent {
		p.far, p.farLength = now.Add(pullEvery), 0
		if short {
			p.far = time.Time{}
		}
		return
	}
	p.farLength = min(max(pauseMin, 2*p.farLength), pauseMax)
	p.far = now.Add(p.farLength)
}

// isScarce reports whether units of a counter are scarce in this region and requests were denied a
// moment ago.
func (a *Agent) isScarce(q *Question) bool {
	p, key := a.pauseOf(q)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	return p.key == key && now.Before(p.scarce) && now.Sub(p.denied) < deniedTime
}

// pause.refused returns for how many more milliseconds no request should wait for units.
func (p *pause) refused(key uint64, now time.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key != key {
		return 0
	}
	return max(0, p.scarce.Sub(now).Milliseconds())
}

// Agent.deem decides, after a question, whether units are scarce. They are scarce if the region
// denies requests and got fewer units than it needs.
func (a *Agent) deem(q *Question, r *round, units int64) {
	need := max(r.need.Load(), q.Part/littleParts, 1)
	whole, err := counter.ParseLimit(q.Limit)
	if err != nil || !q.Short || q.Need == 0 && r.need.Load() > 0 {
		return // in the last case, the question for which requests wait decides
	}
	length := min(max(scarceMin, time.Duration(whole.Window()/scarceParts)*time.Microsecond), scarceMax)
	p, key := a.pauseOf(q)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	if units >= need || r.back.Load() {
		p.moves = 0
		return
	}
	if p.moves++; r.moving.Load() && p.moves <= movesMax {
		return
	}
	p.scarce = time.Now().Add(length)
	r.refused.Store(length.Milliseconds())
}
