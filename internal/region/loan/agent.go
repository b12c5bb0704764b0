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
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// These are the bounds of an agent.
const (
	asksMax     = 256     // questions that are asked at once, at most half from one source
	countersMax = 1 << 14 // counters whose last question is remembered, 64 bytes each
	pauseMin    = 100 * time.Millisecond
	pauseMax    = time.Second     // the longest pause; pauses grow while no units are lent
	callTime    = 2 * time.Second // the time for a question to another region, and for a call of the store
	listenAgain = time.Second
	earlyMax    = counter.Second // a loan whose lender's clock is further ahead than this is given back

	// While requests wait, a loan is held until all of it is restored, but for at most holdMax, and
	// for at most idleMax after the last part that was restored.
	holdMax   = time.Second
	idleMax   = 250 * time.Millisecond
	partPause = 4 * time.Millisecond
)

// Policy is what an agent must know about the policy in force.
type Policy struct {
	Namespace string // the beginning of its keys
	Here      policy.Division
	Names     []string // its regions, sorted
}

// Options configures an agent. All fields but Writeoffs and Tell are required.
type Options struct {
	Name string // this region
	// Writeoffs is the Redis of this region, which holds what is known of regions that were written
	// off. If Writeoffs is nil, no region was ever written off.
	Writeoffs writeoff.Redis
	// Store holds the counters of this region. It must not repeat a call after an error.
	Store counter.Store
	// Listen calls received with each question that is published in this region, until ctx is done
	// or the connection ends. It calls begun as soon as it listens.
	Listen func(ctx context.Context, begun func(), received func(message string)) error
	// Publish sends a message to the proxies of this region.
	Publish func(ctx context.Context, message []byte) error
	// Tell sends a message to all agents of this region, which receive it in the same way as
	// questions. If Tell is nil, a recall that another region sends to this agent does not reach
	// the region's other agents.
	Tell func(ctx context.Context, message []byte) error
	// Policy returns the policy in force.
	Policy func() Policy
	// Peers are the other regions.
	Peers  []*Peer
	Logger *slog.Logger
}

// Agent borrows units from other regions for this region, and lends this region's units to them. It
// is safe for concurrent use.
type Agent struct {
	o       Options
	seed    maphash.Seed
	pauses  []pause // by the hash of a key
	running sync.WaitGroup
	places  chan struct{}   // one for each question that is being asked
	asks    *sources.Counts // counts these questions by source
	lends   *sources.Counts // counts the questions of other regions that are being answered

	listening atomic.Bool
	counts    counts
	lent      book
	tallies   tallies
	recalls   recalls
	returning sync.Mutex // held while a loan is removed from lent and from recalls
	holds     holds
	rounds    rounds
	writeoffs writeoffs

	holdMax, idleMax time.Duration
}

// counts are the statistics of an agent, except those of its peers.
type counts struct {
	questions, repeated, dropped, invalid, lost, lent, lentUnits, backUnits, failed, strangers atomic.Uint64
}

// pause says when the other regions may be asked for units of a counter again. If several counters
// share a place in the table, only the counter that was the subject of the last question has a
// pause. Otherwise a client with many counters would cause pauses for the counters of other
// clients.
type pause struct {
	mu     sync.Mutex
	key    uint64        // the hash of the counter's key
	asking bool          // a question is under way
	short  bool          // this region denied requests when the last question was asked
	until  time.Time     // the end of the pause
	length time.Duration // how long the pause is
	empty  bool          // the last question brought nothing

	far       time.Time     // no other region is asked before this time
	farLength time.Duration // the last pause after a question in vain; it doubles each time, and is 0 after units were lent
	farShort  bool          // this region denied requests when other regions were last asked
	denied    time.Time     // when a question said that requests are denied
	scarce    time.Time     // no request waits before this time: see [Agent.deem]
	moves     int           // questions in a row that brought too little
}

// pause.ofLocked assigns the pause to a counter, without delaying its first question.
func (p *pause) ofLocked(key uint64) {
	if p.key == key {
		return
	}
	p.key, p.asking, p.short, p.until, p.length, p.empty = key, false, false, time.Time{}, 0, false
	p.far, p.farLength, p.scarce, p.moves, p.denied = time.Time{}, 0, time.Time{}, 0, time.Time{}
}

// pause.ends reports whether a question may be asked now. If so, it records that the question is
// under way. A region that begins to deny requests does not wait for the end of a pause.
func (p *pause) ends(key uint64, now time.Time, short bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	if short {
		p.denied = now
	}
	if p.asking || now.Before(p.until) && (!short || p.short) {
		return false
	}
	p.asking, p.short = true, short
	return true
}

// pause.endsFor is like pause.ends, but for a question for which requests wait. Only a pause after
// a question that brought no units delays such a question. Another question may be under way.
func (p *pause) endsFor(key uint64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	p.denied = now
	if p.empty && p.short && now.Before(p.until) {
		return false
	}
	p.asking, p.short = true, true
	return true
}

// noteAsked records that a question has been asked. The pauses grow while nothing is borrowed.
func (p *pause) noteAsked(key uint64, now time.Time, units int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	if p.empty = units == 0; !p.empty {
		p.length = pauseMin
	} else {
		p.length = min(max(pauseMin, 2*p.length), pauseMax)
	}
	p.asking, p.until = false, now.Add(p.length)
}

// noteDropped records that a question was not asked, because too many others are being asked.
func (p *pause) noteDropped(key uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(key)
	p.asking = false
}

// New returns an agent that does nothing until Run is called.
func New(o Options) *Agent { return newAgent(o, countersMax) }

// newAgent returns an agent with room for the pauses and tallies of the given number of counters.
func newAgent(o Options, counters int) *Agent {
	return &Agent{o: o, seed: maphash.MakeSeed(), pauses: make([]pause, counters), places: make(chan struct{}, asksMax),
		tallies: make(tallies, counters), asks: sources.New(), lends: sources.New(),
		recalls: recalls{sources: sources.New()}, holds: holds{sources: sources.New()},
		rounds: rounds{byKey: make(map[string]*round)}, holdMax: holdMax, idleMax: idleMax}
}

// Run borrows units for this region until ctx is done.
func (a *Agent) Run(ctx context.Context) {
	if a.o.Writeoffs != nil {
		a.running.Go(func() { a.followWriteoff(ctx) })
	}
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
	a.returnHeld(ctx)
}

// Agent.hear handles a message in this region: the question of a proxy, or a recall that another
// agent of this region passes on. In answer to a question, it asks the other regions for units,
// unless it has asked them a short time ago.
func (a *Agent) hear(ctx context.Context, message string) {
	q := new(Question)
	if err := json.Unmarshal([]byte(message), q); err != nil {
		a.counts.invalid.Add(1)
		return
	}
	if len(q.Recall) > 0 {
		a.sendBack(ctx, q)
		return
	}
	own := a.o.Policy()
	whole, err := check(q, own.Namespace)
	if err == nil {
		if part, ok := own.Here.Limit(&whole); !ok || part.Count() != q.Part {
			err = errShares // the proxy has another policy
		}
	}
	if err != nil {
		a.counts.invalid.Add(1)
		if q.Need > 0 && len(q.Key) <= regionstore.KeyBytesMax && len(q.ID) <= regionstore.IDBytesMax {
			a.refuse(ctx, q, []string{q.ID})
		}
		return
	}
	q.Shares = own.Here.Shares
	if q.Need > 0 {
		a.await(ctx, q, []string{q.ID})
		return
	}
	p, key := a.pauseOf(q)
	if !p.ends(key, time.Now(), q.Short) {
		a.counts.repeated.Add(1)
		return
	}
	if r := a.rounds.join(q); !a.start(ctx, q, r) {
		p.noteDropped(key)
		a.leave(ctx, r)
	}
}

// pauseOf returns the pause for a question, and the hash of its key.
func (a *Agent) pauseOf(q *Question) (p *pause, key uint64) {
	key = a.hash(q.Key)
	return &a.pauses[key%uint64(len(a.pauses))], key
}

// Agent.start begins to ask the other regions, in the background, for the units of a question in a
// round. It returns false if too many questions are being asked, in all or for the same source.
func (a *Agent) start(ctx context.Context, q *Question, r *round) bool {
	leave, ok := a.enter(q)
	if !ok {
		a.counts.dropped.Add(1)
		return false
	}
	a.running.Go(func() {
		units := a.borrow(ctx, q, r)
		leave()
		if units == 0 && r.moving.Load() {
			units = 1 // the same pause as after a loan, because the next question might bring units
		}
		p, key := a.pauseOf(q)
		p.noteAsked(key, time.Now(), units)
		a.leave(ctx, r)
	})
	return true
}

// Agent.enter reserves a place for a question that is to be asked, until the caller calls leave.
func (a *Agent) enter(q *Question) (leave func(), ok bool) {
	from, ok := a.asks.Enter(q.Source, asksMax)
	if ok {
		select {
		case a.places <- struct{}{}:
			return func() { <-a.places; from.Leave() }, true
		default:
		}
	}
	from.Leave()
	return nil, false
}

// Agent.restoreParts restores a loan to this region's counter. The counter can take back no more
// units than it has counted. While requests wait for units, each restored part admits some of them,
// and then the counter can take a further part. restoreParts returns how many units were restored
// and how many were not. After an error, the units that were not restored must not be used.
func (a *Agent) restoreParts(ctx context.Context, q *Question, l Loan, r *round) (restored, rest int64, err error) {
	rest = l.Units
	for begun, progress := time.Now(), time.Now(); ; {
		own := a.o.Policy()
		restoring, end := context.WithTimeout(ctx, callTime)
		part, err := a.restore(restoring, &own, q, Loan{ID: l.ID, Units: rest, Receipt: l.Receipt, At: l.At})
		end()
		if err != nil {
			return restored, rest, err
		}
		now := time.Now()
		if part > 0 {
			l.At, progress = 0, now // the clock has reached the lender's reading
			restored, rest = restored+part, rest-part
			a.tally(q, l.Receipt, -part)
			r.restored.Add(part)
			a.publish(ctx, &regionstore.Answer{Key: q.Key, Units: part})
		}
		if rest == 0 || r.restored.Load() >= r.need.Load() || now.Sub(progress) > a.idleMax || now.Sub(begun) > a.holdMax {
			return restored, rest, nil
		}
		time.Sleep(partPause)
	}
}

// Agent.restore restores a loan as soon as this region's clock shows the time at which the lender's
// clock stood. If that takes too long, it restores nothing.
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

// Agent.giveBack returns to the lender those units of a loan that could not be restored here,
// because this region's counter had counted fewer units.
func (a *Agent) giveBack(ctx context.Context, peer *Peer, q *Question, rest Loan) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	taken, err := peer.giveBack(ctx, q, rest)
	if lost := rest.Units - taken; err != nil || lost > 0 {
		a.counts.lost.Add(uint64(lost))
	}
}

// Agent.tally records that units of a question's counter were lent or restored.
func (a *Agent) tally(q *Question, receipt counter.Micros, units int64) {
	if whole, err := counter.ParseLimit(q.Limit); err == nil && whole.Calendar() == 0 && units != 0 {
		a.tallies.add(a.hash(q.Key), receipt, whole.Window(), units, time.Now())
	}
}

// Agent.takeBack restores to this region's counter the units that a borrower returns of a loan. For
// each loan, this is done only once.
func (a *Agent) takeBack(ctx context.Context, r *returned) (Loan, error) {
	own := a.o.Policy()
	lent, err := a.lendingOf(&own, &r.Question)
	if err == nil {
		err = a.removeLent(a.hash(lent.q.Key), r.Loan)
	}
	if err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	units, err := Restore(ctx, a.o.Store, lent.here, own.Namespace, lent.q, r.Loan)
	if err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	a.counts.backUnits.Add(uint64(units))
	a.tally(lent.q, r.Loan.Receipt, -units)
	return Loan{Units: units}, nil
}

// Agent.removeLent removes a loan from everything that the agent remembers of its loans. The
// argument l is what the borrower has returned of that loan. removeLent returns an error if the
// agent remembers no such loan. Of several calls for one loan at the same time, only one succeeds.
func (a *Agent) removeLent(key uint64, l Loan) error {
	a.returning.Lock()
	defer a.returning.Unlock()
	err := a.lent.remove(key, l)
	if a.recalls.remove(key, l) {
		return nil // even if the full book has dropped the loan
	}
	return err
}

// Agent.lend answers the question of another region with a loan.
func (a *Agent) lend(ctx context.Context, q *Question) (Loan, error) {
	own := a.o.Policy()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var l Loan
	from, err := a.lendingOf(&own, q)
	// The recent loan may have gone to another agent of that region.
	lentBefore := time.Since(a.tallies.of(a.hash(q.Key)).at) < lentRecently
	if err == nil {
		var allowed bool
		if allowed, err = a.allowed(ctx, &own, &from); err == nil && allowed {
			l, err = a.lendOf(ctx, &own, &from)
		}
	}
	if l.Units > 0 && q.Of != "" && time.Since(from.read) > writeoff.FreshTime {
		err = errStale
	}
	if err != nil {
		a.counts.failed.Add(1)
		return Loan{}, err
	}
	if l.Units+l.Later > 0 {
		a.counts.lent.Add(1)
		a.counts.lentUnits.Add(uint64(l.Units + l.Later))
		l = a.lent.add(a.hash(from.q.Key), l, time.Now())
		if whole, err := counter.ParseLimit(q.Limit); err == nil && l.Later > 0 {
			a.recalls.add(a.hash(from.q.Key), l, q.Source, whole.Window(), time.Now())
		}
	}
	if len(q.Recall) > 0 {
		l.Back = a.recall(ctx, q)
	}
	l.Moving = !a.isScarce(q) && a.rounds.has(q.Key) || l.Units+l.Later == 0 && q.Need > 0 && lentBefore
	return l, nil
}

// Agent.lendOf lends units of this region's counter, and units that this agent holds. If this
// region lacks units itself, it lends as if the borrower did not deny requests yet.
func (a *Agent) lendOf(ctx context.Context, own *Policy, from *lending) (Loan, error) {
	whole, err := check(from.q, own.Namespace)
	if err != nil {
		return Loan{}, err
	}
	q, scarce := *from.q, a.isScarce(from.q)
	q.Scarce = scarce
	l, err := Lend(ctx, a.o.Store, from.here, own.Namespace, &q, a.tallies.of(a.hash(q.Key)))
	if err != nil || whole.Calendar() != 0 {
		return l, err
	}
	a.tally(&q, l.Receipt, l.Units+l.Later)
	if part, ok := from.here.Limit(&whole); ok && q.Of == "" && !scarce {
		l = a.lendHeld(ctx, &part, &q, l)
	}
	return l, nil
}
