// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/lua"
)

// batchMax is the greatest number of calls in one pipeline. Larger batches would save no more, and
// each call waits for those ahead of it in its batch: Redis takes about a millisecond for 128
// scripts.
const batchMax = 128

// A call may spend queueWaitMin in the queue, or queueTimeouts timeouts if that is longer; within
// that time, a server that hangs is detected. A call that waits longer fails as an overload,
// because the server still answers.
const (
	queueWaitMin  = time.Second
	queueTimeouts = 3
)

// The states of a call. Its caller and a lane race for it with compare-and-swap, so that exactly
// one of them ends the call.
const (
	callWaiting uint32 = iota // in the queue
	callSent                  // a lane has put it into a batch
	// the lane has set failure and signaled done; the call belongs to the caller
	callAnswered
	// the caller has given up; the call belongs to the lane, which must not send it any more
	callLeft
)

// call is one Take in progress. Calls are pooled. Each call has its own timer and channel, so that
// a caller can leave at its deadline, whatever the lane does.
type call struct {
	state    atomic.Uint32
	trial    bool          // whether the breaker is half open and tries this call
	asking   bool          // sent with ASKING: the server is still importing the call's slot
	kept     bool          // whether the call is sent even if its caller leaves
	source   uint32        // the client, for fair queueing
	checks   int           // the number of checks, at least 1
	queued   time.Duration // when it was enqueued, by the store's clock
	waited   time.Duration // how long it was in the queue before it was sent
	deadline time.Time     // the caller's deadline; zero if there is none
	next     *call         // in the queue: the next call to send together with this one
	behind   *call         // in the queue: the next call of the same source
	cmd      *takeCmd
	failure  *Failure // the failure, set by the lane before done; nil if cmd has the answer
	timer    *time.Timer
	done     chan struct{} // has capacity one
}

func newCall() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &call{timer: timer, done: make(chan struct{}, 1)}
}

// call.prepare resets a pooled call for sending.
func (c *call) prepare(ctx context.Context, trial bool) {
	c.state.Store(callWaiting)
	c.trial, c.asking, c.kept, c.source, c.queued, c.waited = trial, false, false, 0, 0, 0
	c.checks = 1
	c.deadline, _ = ctx.Deadline()
}

// call.isLate reports whether the caller's deadline has passed.
func (c *call) isLate(now time.Time) bool { return !c.deadline.IsZero() && !now.Before(c.deadline) }

// call.leave reports whether the caller may abandon the call, and whether the call has been sent.
// If the caller may not abandon it, the answer has arrived.
func (c *call) leave() (left, sent bool) {
	if c.kept {
		return true, true
	}
	if c.state.CompareAndSwap(callWaiting, callLeft) {
		return true, false
	}
	return c.state.CompareAndSwap(callSent, callLeft), true
}

// call.answer returns the call to its caller and reports whether the caller was still waiting.
func (c *call) answer(from uint32, failure *Failure) bool {
	c.failure = failure
	if !c.state.CompareAndSwap(from, callAnswered) {
		return false
	}
	c.done <- struct{}{}
	return true
}

// lane sends the waiting calls as one pipeline. A lane belongs to the goroutine that took it from
// node.idle. A caller that finds an idle lane sends its call itself. That saves two goroutine
// switches, which take as long as the round trip on a machine with few cores. Otherwise a
// dispatcher takes the lane.
type lane struct {
	node     *node
	pipe     redis.Pipeliner
	first    [1]*call      // the argument of batchOne
	calls    []*call       // the calls of the batch
	checks   int           // number of checks in the batch
	commands []redis.Cmder // of the batch
	again    []*call       // calls of the batch to send a second time
	taken    []*call       // calls taken from the queue
	epoch    uint64        // the breaker's epoch when the batch began
	trial    bool          // whether the batch contains the call that the breaker tries
	sent     time.Duration // when the batch began, by the store's clock
	deadline time.Time     // the deadline of the batch
}

func newLane(n *node) *lane {
	return &lane{
		node:     n,
		pipe:     n.client.Pipeline(),
		calls:    make([]*call, 0, batchMax),
		commands: make([]redis.Cmder, 0, batchMax+1),
		again:    make([]*call, 0, batchMax),
		taken:    make([]*call, 0, batchMax),
	}
}

// node.dispatch passes waiting calls to lanes. It ends when the node closes. Callers that are still
// waiting notice that on their own.
func (n *node) dispatch() {
	for {
		select {
		case <-n.queue.ready:
		case <-n.ctx.Done():
			return
		}
		select {
		case l := <-n.idle:
			l.batchWaiting()
		case <-n.ctx.Done():
			return
		}
	}
}

// batchWaiting sends a batch of waiting calls, and frees the lane even if that panics.
func (l *lane) batchWaiting() {
	defer func() { l.node.idle <- l }()
	l.batch(nil)
}

// batchOne sends a batch that starts with one call.
func (l *lane) batchOne(first *call) {
	l.first[0] = first
	l.batch(l.first[:])
	l.first[0] = nil
}

// lane.batch sends the calls of the argument named first (at most batchMax; nil entries are
// skipped) together with waiting calls, and answers them. A late answer decides its calls as well,
// up to the patience of the store. A long wait in the queue, or a caller's short deadline, is not a
// failure of the server. A caller leaves when its own deadline passes, and its call then has no
// answer.
func (l *lane) batch(first []*call) {
	n, now := l.node, time.Now()
	l.sent, l.deadline = now.Sub(n.store.reporter.start), now.Add(n.store.settings.patience)
	l.epoch, l.trial = n.breaker.epoch.Load(), false
	l.calls, l.commands, l.again, l.checks = l.calls[:0], l.commands[:0], l.again[:0], 0
	for _, c := range first {
		l.admitAll(c, now)
	}
	for most := int(n.pace.most.Load()); len(l.calls) < batchMax && l.checks < most; {
		if l.taken = n.queue.take(l.taken[:0], batchMax-len(l.calls), most-l.checks); len(l.taken) == 0 {
			break
		}
		for _, c := range l.taken {
			l.admitAll(c, now)
		}
	}
	if n.queue.len() > 0 {
		n.queue.signal()
	}
	clear(l.taken)
	if len(l.calls) == 0 {
		return
	}
	l.send()
	clear(l.calls)
	clear(l.commands)
	clear(l.again)
}

// admitAll adds a call and the calls linked to it to the batch. The call may be nil.
func (l *lane) admitAll(c *call, now time.Time) {
	for c != nil {
		next := c.next // after admission the call might belong to its caller
		c.next = nil
		l.admit(c, now)
		c = next
	}
}

// lane.admit adds a call to the batch. It rejects the call if the caller has left, the server was
// silent for too long, the call waited for too long, or the breaker has opened.
func (l *lane) admit(c *call, now time.Time) {
	n := l.node
	waited := time.Duration(0)
	if c.queued != 0 {
		waited = l.sent - c.queued
	}
	switch {
	case c.state.Load() == callLeft:
		n.drop(c)
	case !c.trial && n.breaker.State() != BreakerClosed:
		n.reject(c, errBreakerOpen)
	case c.isLate(now):
		n.reject(c, errCallerLate)
	case n.hung(c):
		n.reject(c, errNotAsked)
	case waited > n.store.settings.queueWait:
		n.reject(c, errOverloaded)
	default:
		// The field is set before the state changes, because afterwards the call might belong to
		// its caller.
		c.waited = waited
		if !c.state.CompareAndSwap(callWaiting, callSent) {
			n.drop(c)
			return
		}
		if c.trial {
			// The trial might have begun after the batch, so its epoch applies.
			l.epoch, l.trial = n.breaker.epoch.Load(), true
		}
		l.appendCall(c)
	}
}

// appendCall appends a call to the pipeline.
func (l *lane) appendCall(c *call) {
	l.calls = append(l.calls, c)
	if c.asking {
		l.commands = append(l.commands, redis.NewStatusCmd(l.node.ctx, "asking"))
	}
	l.commands = append(l.commands, c.cmd)
	l.checks += c.checks
}

// lane.send runs the batch and answers its calls.
func (l *lane) send() {
	n, ctx := l.node, &batchContext{Context: l.node.ctx, deadline: l.deadline}
	n.store.batches.Add(1)
	whole, checks := l.exec(ctx), l.checks
	took := n.store.clock() - l.sent
	if whole == nil || whole.Kind == KindTimeout {
		n.pace.learn(took, n.store.settings.timeout, checks, whole == nil)
	}
	if whole != nil {
		n.failedKey.Store(l.calls[0].cmd.firstKey())
	}
	slow, failed := l.noteReplies(whole, took), n.lateness.lasts(l.sent, took, n.store.settings.timeout)
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) {
			l.again = append(l.again, c)
			continue
		}
		if slow {
			failure = failure.slow()
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	if len(l.again) > 0 && l.sendAgain(ctx) {
		failed = true
	}
	switch {
	case n.ctx.Err() != nil || slow: // the node was closed, or the server works
	case whole != nil && whole.Kind == KindTimeout && !l.trial && !n.silent():
		n.noteUnclear(l.epoch)
	default:
		n.breaker.report(l.epoch, failed)
	}
}

// noteReplies records whether the server has answered any call of the batch. The argument named
// took is how long the batch took. The result named slow is true if the server answered no call
// although it works.
func (l *lane) noteReplies(whole *Failure, took time.Duration) (slow bool) {
	for _, c := range l.calls {
		if err := c.cmd.Err(); isReply(err) || err == nil && c.cmd.isPlausible() {
			l.node.answered(l.sent)
			return false
		}
	}
	return whole != nil && whole.Kind == KindTimeout && l.node.noteTimeout(l.sent, took) && !l.trial
}

// isReply reports whether an error is a reply of the server.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// unknownScript reports whether Redis answered that it does not have the script.
func unknownScript(f *Failure) bool {
	return f != nil && f.Kind == KindScript && redis.HasErrorPrefix(f.Cause, "NOSCRIPT")
}

// lane.exec sends the commands in one pipeline, exactly once, because takeCmd disables retries. It
// returns the failure of the whole pipeline, which applies to the commands that got no individual
// reply.
func (l *lane) exec(ctx context.Context) *Failure {
	for _, command := range l.commands {
		command.SetErr(errUnanswered)
		if take, ok := command.(*takeCmd); ok {
			take.encoded = false
		}
	}
	_ = l.pipe.BatchProcess(ctx, l.commands...)
	if _, err := l.pipe.Exec(ctx); err != nil {
		whole := *failureOf(err) // a copy: some failures are shared
		whole.whole = true
		return &whole
	}
	return nil
}

// outcomeOf returns the failure of one call of a pipeline, or nil.
func outcomeOf(c *call, whole *Failure) *Failure {
	switch err := c.cmd.Err(); err {
	case nil:
		return nil
	case errUnanswered:
		if whole != nil && !c.cmd.encoded { // never written, as if there had been no connection
			return whole.notSent()
		}
		return whole
	default:
		failure := failureOf(err)
		if failure.Kind == KindScript && isOutOfMemory(err) {
			failure.newKeys = c.cmd.newKeys(err.Error())
		}
		return failure
	}
}

// sendAgain loads the script and resends the calls that Redis answered with NOSCRIPT, as after
// SCRIPT FLUSH or a restart. Such a reply proves that the calls were not executed. The command that
// loads the script precedes them on the same connection. sendAgain reports whether any call failed
// for a reason that concerns the whole server.
func (l *lane) sendAgain(ctx *batchContext) (failed bool) {
	now := time.Now()
	l.calls, l.commands = l.calls[:0], l.commands[:0]
	l.commands = append(l.commands, redis.NewStringCmd(ctx, "script", "load", lua.Take))
	for _, c := range l.again {
		// The call was not executed, because the server did not have the script.
		if c.state.Load() == callLeft || c.isLate(now) {
			l.finish(c, errCallerLate)
			continue
		}
		if !now.Before(l.deadline) {
			l.finish(c, errNotAsked)
			continue
		}
		l.appendCall(c)
	}
	whole := l.exec(ctx)
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) && whole != nil {
			failure = whole // the reason why loading failed
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	return failed
}

// lane.finish answers a call that was sent.
func (l *lane) finish(c *call, failure *Failure) {
	if failure != nil && l.node.ctx.Err() != nil {
		failure = l.node.gone()
	}
	if !c.answer(callSent, failure) {
		l.node.recycle(c)
	}
}

// batchContext is the node's context with a batch's deadline. A batchContext has no timer and no
// goroutine, because go-redis puts the deadline on the connection.
type batchContext struct {
	context.Context
	deadline time.Time
}

// Deadline returns the time by which the batch must be answered.
func (c *batchContext) Deadline() (time.Time, bool) { return c.deadline, true }
