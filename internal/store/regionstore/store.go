// SPDX-License-Identifier: Apache-2.0

// Package regionstore asks for units of other regions when those of this region run low.
//
// # Promise
//
// A [Store] answers like the store below it, except that it sets [counter.Result.LeasedIn], so that
// a denial is remembered only for as long as a loan takes. After a call in which a counter with a
// [counter.Check.WholeLimit] has a quarter of its units left or less, it asks the region's agent
// for more, in the background. A call never waits for that. A question can be lost: the next call
// repeats it. For one counter there is at most one question in [askEvery]. The times of the last
// questions are kept in a table of fixed size. If two counters share a place in the table, units
// are requested less often for both. Questions of one address take at most half of the queue, so a
// client with many counters leaves room for questions of other clients.
//
// A front whose requests have goroutines of their own can let a denied request wait for a loan,
// with [Store.Await]. At most [WaitersMax] requests of a process wait, [LineMax] of them for one
// counter and [SourceMax] of one address, each for at most [Agency.WaitMax], by default a second.
// Those of one counter are decided in the order of their arrival. A request stops waiting when it
// is admitted, or when all agents that heard the question have said that they are done with it:
// then no part of a loan can arrive any more.
//
// Requests under limits with a [counter.Check.WholeLimit] are denied while the region is written
// off. After the region was taken back, they are denied until it may use its parts of limits again:
// see package writeoff. The state is read before the first such request, and then every second.
//
// A counter with [counter.Check.Gossip] whose units were charged is noted, and its name is written
// to a set in Redis within [MarkEvery], for the region's agent. The set is bounded, as are the
// names in memory. Names that are left out are counted, and are written when their counters change
// again.
//
// # Price
//
// A check whose rule does not lend units costs one comparison. A question costs one PUBLISH, and
// some allocations. A check with [counter.Check.Gossip] costs a look-up in a table. All such checks
// of a process together cost one command every [MarkEvery]. After its first question, a process
// keeps a subscription to [AnswerChannel]. A request that waits calls the store again when units
// have arrived, and when it stops waiting.
//
// # When not to use it
//
// Do not use it over a store in memory, which has no agent.
package regionstore

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/survive"
)

// These are the bounds of the questions.
const (
	askEvery  = 50 * time.Millisecond // the least time between two questions for one counter
	placesMax = 1 << 14               // the number of counters whose last question is remembered, in 8 bytes each
	queueMax  = 1024                  // the number of questions that wait to be sent; further ones are dropped
	sendTime  = 2 * time.Second       // a question that takes longer is dropped

	// loanTime is the approximate duration of a loan. A denial is remembered for that time.
	loanTime = 250 * counter.Millisecond
)

// These are the channel on which questions are published, the channel on which agents publish what
// they did, and the key that determines on which server the channels are.
const (
	Channel       = "rl1:~loans"
	AnswerChannel = "rl1:~loaned"
	ChannelKey    = "rl1:~loans:{~loans}"
)

// KeyPrefix begins the keys of all counters. The name of their policy follows.
const KeyPrefix = "rl1:"

// KeyBytesMax is the greatest length of a key for which units are requested.
const KeyBytesMax = 2048

// Question is a request for units of a counter.
type Question struct {
	Key    []byte          `json:"key"`
	Limit  string          `json:"limit"` // the limit over all regions
	Part   int64           `json:"part"`  // the part of the limit that belongs to the asking region
	Want   int64           `json:"want"`
	Short  bool            `json:"short,omitempty"`  // whether requests are denied
	Bounds *counter.Bounds `json:"bounds,omitempty"` // the boundaries of a calendar window
	// Shares are the shares by which the asking region divides limits. The region's agent fills
	// them in.
	Shares [policy.RegionsMax]uint16 `json:"shares,omitzero"`
	// Need is the number of units for which requests wait, and ID identifies the question in the
	// answer. Both are empty if no request waits.
	Need int64  `json:"need,omitempty"`
	ID   string `json:"id,omitempty"`
	// Of is the region whose part is to be lent by its steward, after the region was written off.
	Of string `json:"of,omitempty"`
	// Ahead reports whether the asking agent can hold units that its counter cannot take yet, and
	// units that become usable later. Agents of earlier releases cannot.
	Ahead bool `json:"ahead,omitempty"`
	// Recall holds the IDs of loans whose units become usable later, and which the asking region
	// needs back. Agents of one region also send it to each other.
	Recall []string `json:"recall,omitempty"`
	// Scarce reports whether units are scarce in the region that lends, too. The agent of that
	// region fills it in.
	Scarce bool `json:"-"`
	// Source is the [counter.Check.Source] of the request that has waited longest, or of the
	// request whose counter ran low. Agents bound the questions of one source. Source is 0 if it is
	// unknown.
	Source uint32 `json:"source,omitempty"`
}

// IDBytesMax is the greatest length of the ID of a question.
const IDBytesMax = 64

// An Answer is what an agent publishes about a counter: that the agent restored units to the
// counter, or that it has finished some questions, or both.
type Answer struct {
	Key   []byte   `json:"key"`
	Units int64    `json:"units,omitempty"`
	Done  []string `json:"done,omitempty"` // the IDs of the questions
	// More reports whether another question might bring units. If it is false, the other regions
	// have none, or do not answer.
	More bool `json:"more,omitempty"`
	// Moving reports whether units are under way between other regions, so that another question
	// might bring some of them.
	Moving bool `json:"moving,omitempty"`
	// RefusedMillis is for how long no request should wait for the counter: the other regions had
	// fewer units than were needed. RefusedMillis is 0 if no such time is known.
	RefusedMillis int64 `json:"refused_ms,omitempty"`
}

// An Agency reaches the agents of this region, through Redis.
type Agency struct {
	// Publish sends a message to the agents, and returns the number of those that received it.
	Publish func(ctx context.Context, message []byte) (heard int64, err error)
	// Listen calls the function named received for each message of the agents on [AnswerChannel],
	// until ctx is done or the connection ends. It calls the function named begun as soon as it
	// listens. If Listen is nil, no request waits.
	Listen func(ctx context.Context, begun func(), received func(message string)) error
	// Writeoffs reads the value of [writeoff.Key], or nil if there is none. If Writeoffs is nil,
	// the region is never written off.
	Writeoffs func(ctx context.Context) ([]byte, error)
	// Mark writes the names of counters that have changed to the set at [ChangedKey]. It returns
	// how many other names were removed from the set, and whether an agent tells the other regions
	// about the counters. If Mark is nil, the regions do not tell each other anything.
	Mark func(ctx context.Context, names []string) (removed int64, told bool, err error)
	// WaitMax bounds how long a request waits. If it is 0, the bound is a second.
	WaitMax time.Duration
}

// Store is a [counter.Batcher] over another one. It is safe for concurrent use.
type Store struct {
	inner   counter.Batcher
	agency  Agency
	logger  *slog.Logger
	seed    maphash.Seed
	asked   []atomic.Int64 // the millisecond of the last question, by the hash of a key
	queue   chan ticket
	sources *sources.Counts // number of questions in the queue, by source
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	lines   lines
	changes changes

	writeoffs writeoffs
	unheard   atomic.Bool // whether no agent received the last question, and a warning was logged
}

// ticket is a question that is to be sent.
type ticket struct {
	question Question
	line     *line // the line of the requests that wait, or nil
	source   sources.Source
}

var _ counter.Batcher = (*Store)(nil)

// New returns a store over inner. The caller closes the store before inner.
func New(inner counter.Batcher, agency Agency, logger *slog.Logger) *Store {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{inner: inner, agency: agency, logger: logger, seed: maphash.MakeSeed(), asked: make([]atomic.Int64, placesMax),
		queue: make(chan ticket, queueMax), sources: sources.New()}
	s.lines.begin(s)
	s.changes.store, s.changes.dirty = s, make(chan struct{}, 1)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	survive.Go(&s.running, logger, s.send)
	return s
}

// Close stops sending questions. Questions that still wait are dropped.
func (s *Store) Close() {
	s.cancel()
	s.running.Wait()
}

// Take implements [counter.Store].
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	e, err := s.writeoff(ctx, checks)
	if err != nil {
		return err
	}
	if e != nil {
		call := [1]counter.Call{{Checks: checks, Results: results}}
		s.takeAll(ctx, e, call[:])
		return call[0].Err
	}
	err = s.inner.Take(ctx, checks, results)
	if err == nil {
		s.look(checks, results, false)
	}
	s.changes.note(checks, results, err)
	return err
}

// TakeAll implements [counter.Batcher].
func (s *Store) TakeAll(ctx context.Context, calls []counter.Call) {
	var own *writeoff.Entry
	for i := range calls {
		e, err := s.writeoff(ctx, calls[i].Checks)
		if err != nil {
			failAll(calls, err)
			return
		}
		if e != nil {
			own = e
		}
	}
	s.takeAll(ctx, own, calls)
}

// Store.takeAll answers calls. The argument named own is the entry of this region, or nil if the
// region was never written off.
func (s *Store) takeAll(ctx context.Context, own *writeoff.Entry, calls []counter.Call) {
	if own != nil {
		s.takeShut(ctx, own, calls)
	} else {
		s.inner.TakeAll(ctx, calls)
	}
	for i := range calls {
		c := &calls[i]
		if c.Err == nil && (own == nil || !own.Forgotten()) {
			s.look(c.Checks, c.Results, own != nil)
		}
		s.changes.note(c.Checks, c.Results, c.Err)
	}
}

func failAll(calls []counter.Call, err error) {
	for i := range calls {
		calls[i].Err = err
	}
}

// Store.look requests units of the counters that run low. The argument back is true if the region
// was taken back. As long as the region must not use its own part, look requests nothing: the
// region could not use borrowed units either, and their lenders would lose them.
func (s *Store) look(checks []counter.Check, results []counter.Result, back bool) {
	for i := range checks {
		c := &checks[i]
		if c.WholeLimit == nil || c.Op > counter.OpUpTo {
			continue
		}
		r := &results[i]
		if r.Remaining*4 > c.Limit.Capacity() && (!r.Denied || r.Wait == counter.Never) {
			continue
		}
		if back && r.Denied && r.Wait == counter.Never {
			continue
		}
		s.ask(c, r.Denied, time.Now().UnixMilli())
		if r.Denied && r.LeasedIn == 0 {
			r.LeasedIn = loanTime // otherwise the denial would be remembered until the window ends
		}
	}
}

// Store.ask queues a question, unless units of the counter were requested a short time ago.
func (s *Store) ask(c *counter.Check, short bool, nowMillis int64) {
	place := &s.asked[maphash.Bytes(s.seed, c.Key)%placesMax]
	last := place.Load()
	if nowMillis-last < askEvery.Milliseconds() || len(c.Key) > KeyBytesMax || !place.CompareAndSwap(last, nowMillis) {
		return
	}
	question := questionOf(c)
	question.Short = short
	s.push(ticket{question: question}) // if there is no room, the next call asks again
}

// Store.push queues a question, and reports whether there was room for it.
func (s *Store) push(t ticket) bool {
	var ok bool
	if t.source, ok = s.sources.Enter(t.question.Source, queueMax); ok {
		select {
		case s.queue <- t:
			return true
		default:
		}
	}
	t.source.Leave()
	return false
}

// questionOf returns a question for units of a check's counter.
func questionOf(c *counter.Check) Question {
	q := Question{Key: append([]byte(nil), c.Key...), Limit: c.WholeLimit.String(), Part: c.Limit.Count(), Want: c.Cost + c.Limit.Capacity(),
		Source: c.Source}
	if c.Bounds != nil {
		bounds := *c.Bounds
		q.Bounds = &bounds
	}
	return q
}

// Store.send publishes the questions.
func (s *Store) send() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case next := <-s.queue:
			next.source.Leave()
			s.lines.listen()
			if s.lines.prepare(&next) {
				s.sendOne(&next)
			}
		}
	}
}

func (s *Store) sendOne(t *ticket) {
	message, err := json.Marshal(&t.question)
	if err != nil {
		return // this is unreachable, because a question contains only numbers and texts
	}
	ctx, cancel := context.WithTimeout(s.ctx, sendTime)
	defer cancel()
	heard, err := s.agency.Publish(ctx, message)
	s.lines.sent(t, heard, err)
	switch unheard := err != nil || heard == 0; {
	case s.ctx.Err() != nil:
	case unheard && !s.unheard.Swap(true):
		s.logger.Warn("no agent of the region hears that a limit runs low, so the region has only its own part of it: start penstock region, and "+
			"let this user of Redis PUBLISH on the channel", "channel", Channel, "error", err)
	case !unheard && s.unheard.Swap(false):
		s.logger.Info("an agent of the region hears again when a limit runs low")
	}
}
