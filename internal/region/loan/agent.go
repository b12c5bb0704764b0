// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Bounds of an agent.
const (
	asksMax     = 256     // questions of this region that are being asked
	countersMax = 1 << 14 // counters whose last question is remembered, 16 bytes each
	pauseMin    = 100 * time.Millisecond
	pauseMax    = time.Second     // after questions that brought nothing
	callTime    = 2 * time.Second // of a question to another region, and of a call of the store
	listenAgain = time.Second
	earlyMax    = counter.Second // a loan whose lender's clock is further ahead is given back
)

// Policy is what an agent must know of a policy.
type Policy struct {
	Namespace string // the beginning of its keys
	Here      policy.Division
}

// Options configures an agent. All fields are required.
type Options struct {
	// Store holds the counters of this region. It must not repeat calls.
	Store counter.Store
	// Listen calls received for each question that is published in this region, until ctx is done
	// or the connection ends. It calls begun once it listens.
	Listen func(ctx context.Context, begun func(), received func(message string)) error
	// Policy returns the policy in force.
	Policy func() Policy
	// Peers are the other regions.
	Peers  []*Peer
	Logger *slog.Logger
}

// Agent borrows units of other regions for this one, and lends them units. It is safe for
// concurrent use.
type Agent struct {
	o       Options
	seed    maphash.Seed
	pauses  []pause // by the hash of a key
	running sync.WaitGroup
	places  chan struct{} // one for each question that is being asked

	listening atomic.Bool
	counts    counts
	lent      book
}

// counts are the statistics of an agent besides those of its peers.
type counts struct {
	questions, repeated, dropped, invalid, lost, lent, lentUnits, backUnits, failed atomic.Uint64
}

// pause is when a counter may be asked for again. Counters with the same hash share one.
type pause struct {
	mu     sync.Mutex
	asking bool          // a question is under way
	short  bool          // the last question was one of a region that denied requests
	until  time.Time     // the end of the pause
	length time.Duration // of the pause
}

// ends reports whether a question may be asked now. If so, the question counts as under way. A
// region that begins to deny requests does not wait for the end of a pause.
func (p *pause) ends(now time.Time, short bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || now.Before(p.until) && (!short || p.short) {
		return false
	}
	p.asking, p.short = true, short
	return true
}

// begins notes that a question has been asked. The pauses grow while nothing is borrowed.
func (p *pause) begins(now time.Time, units int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if units > 0 {
		p.length = pauseMin
	} else {
		p.length = min(max(pauseMin, 2*p.length), pauseMax)
	}
	p.asking, p.until = false, now.Add(p.length)
}

// New returns an agent that does nothing yet.
func New(o Options) *Agent {
	return &Agent{o: o, seed: maphash.MakeSeed(), pauses: make([]pause, countersMax), places: make(chan struct{}, asksMax)}
}

// Run borrows units for this region until ctx is done.
func (a *Agent) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.o.Listen(ctx, func() { a.listening.Store(true) }, func(message string) { a.hear(ctx, message) })
		a.listening.Store(false)
		if err != nil && ctx.Err() == nil {
			a.o.Logger.Warn("the region's questions cannot be heard", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
	a.running.Wait()
}

// hear asks the other regions for units, unless they were asked a short time ago.
func (a *Agent) hear(ctx context.Context, message string) {
	q := new(Question)
	if err := json.Unmarshal([]byte(message), q); err != nil {
		a.counts.invalid.Add(1)
		return
	}
	own := a.o.Policy()
	whole, err := check(q, own.Namespace)
	if err != nil {
		a.counts.invalid.Add(1)
		return
	}
	if part, ok := own.Here.Limit(&whole); !ok || part.Count() != q.Part { // the proxy has another policy
		a.counts.invalid.Add(1)
		return
	}
	q.Shares = own.Here.Shares
	p := &a.pauses[a.hash(q.Key)%countersMax]
	if !p.ends(time.Now(), q.Short) {
		a.counts.repeated.Add(1)
		return
	}
	select {
	case a.places <- struct{}{}:
	default:
		a.counts.dropped.Add(1)
		p.begins(time.Now(), 0)
		return
	}
	a.counts.questions.Add(1)
	a.running.Go(func() {
		defer func() { <-a.places }()
		p.begins(time.Now(), a.borrow(ctx, q))
	})
}

// borrow asks all other regions, and restores what they lend. It returns the units.
func (a *Agent) borrow(ctx context.Context, q *Question) int64 {
	var units atomic.Int64
	var asking sync.WaitGroup
	for _, peer := range a.o.Peers {
		asking.Go(func() {
			asked, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			l, err := peer.ask(asked, q)
			if err != nil || l.Units == 0 {
				return
			}
			own := a.o.Policy()
			restoring, end := context.WithTimeout(context.WithoutCancel(ctx), callTime)
			defer end()
			restored, err := a.restore(restoring, &own, q, l)
			if err != nil {
				a.counts.lost.Add(uint64(l.Units))
				a.o.Logger.Warn("borrowed units could not be restored, and are lost until their window ends", "region", peer.Name,
					"units", l.Units, "error", err)
			}
			units.Add(restored)
			if rest := l.Units - restored; err == nil && rest > 0 {
				a.giveBack(restoring, peer, q, Loan{ID: l.ID, Units: rest, Receipt: l.Receipt})
			}
		})
	}
	asking.Wait()
	return units.Load()
}

// restore restores a loan, once this region's clock has reached the lender's reading. If that takes
// too long, nothing is restored.
func (a *Agent) restore(ctx context.Context, own *Policy, q *Question, l Loan) (int64, error) {
	units, err := Restore(ctx, a.o.Store, own.Here, own.Namespace, q, l)
	early := new(EarlyError)
	if !errors.As(err, &early) {
		return units, err
	}
	if early.Wait > earlyMax {
		return 0, nil
	}
	select {
	case <-ctx.Done():
		return 0, nil
	case <-time.After(time.Duration(early.Wait) * time.Microsecond):
	}
	if units, err = Restore(ctx, a.o.Store, own.Here, own.Namespace, q, l); errors.As(err, &early) {
		return 0, nil
	}
	return units, err
}

// giveBack returns to a region what could not be restored here, because fewer units were counted.
func (a *Agent) giveBack(ctx context.Context, peer *Peer, q *Question, rest Loan) {
	taken, err := peer.giveBack(ctx, q, rest)
	if lost := rest.Units - taken; err != nil || lost > 0 {
		a.counts.lost.Add(uint64(lost))
	}
}

// takeBack restores what another region returns of a loan of this agent, once.
func (a *Agent) takeBack(ctx context.Context, r *returned) (Loan, error) {
	if err := a.lent.remove(a.hash(r.Question.Key), r.Loan); err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	own := a.o.Policy()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	units, err := Restore(ctx, a.o.Store, own.Here, own.Namespace, &r.Question, r.Loan)
	if err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	a.counts.backUnits.Add(uint64(units))
	return Loan{Units: units}, nil
}

// lend answers a question of another region.
func (a *Agent) lend(ctx context.Context, q *Question) (Loan, error) {
	own := a.o.Policy()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	l, err := Lend(ctx, a.o.Store, own.Here, own.Namespace, q)
	if err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	if l.Units > 0 {
		a.counts.lent.Add(1)
		a.counts.lentUnits.Add(uint64(l.Units))
		l = a.lent.add(a.hash(q.Key), l, time.Now())
	}
	return l, nil
}
