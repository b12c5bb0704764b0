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

// batchMax is how many calls go into one pipeline. Larger ones save nothing more, and a call in one waits for all before
// it: 128 scripts are about a millisecond of Redis.
const batchMax = 128

// A call may spend queueWaitMin in the queue, or queueTimeouts timeouts if they are longer: a server that hangs is known by
// then. A call that waited longer fails as one too many; the server is not to blame, as it answers.
const (
	queueWaitMin  = time.Second
	queueTimeouts = 3
)

// What has become of a call. Its caller and a lane race for it, so that exactly one of them ends it.
const (
	callWaiting  uint32 = iota // in the queue: no lane has seen it
	callSent                   // a lane has put it into a batch
	callAnswered               // the lane has written failure and signalled done: the call is the caller's
	callLeft                   // the caller is gone: the call is the lane's, which must not send it if it has not yet
)

// call is one Take on its way. Calls are pooled; each has a timer and a channel of its own, so that a caller can leave at
// its deadline whatever the lane does.
type call struct {
	state    atomic.Uint32
	trial    bool          // the breaker is half open and this call is the one that is tried
	asking   bool          // the server has the call's slot only in part yet, and wants to be told that we know
	kept     bool          // it is sent even if its caller leaves
	source   uint32        // whose call it is, for the queue
	queued   time.Duration // since when it is in the queue, by the store's clock
	waited   time.Duration // how long it was in the queue when it was sent
	deadline time.Time     // its caller's, if there is one
	next     *call         // in the queue: the call that is to be sent with this one
	behind   *call         // in the queue: the one that is sent after it
	cmd      *takeCmd
	failure  *Failure // set by the lane before done; nil: cmd holds the answer
	timer    *time.Timer
	done     chan struct{} // holds one
}

func newCall() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &call{timer: timer, done: make(chan struct{}, 1)}
}

// prepare makes the call ready to be sent.
func (c *call) prepare(ctx context.Context, trial bool) {
	c.state.Store(callWaiting)
	c.trial, c.asking, c.kept, c.source, c.queued, c.waited = trial, false, false, 0, 0, 0
	c.deadline, _ = ctx.Deadline()
}

// leave reports whether the caller may go, and whether the call had been sent by then. If he may not, the answer is there.
func (c *call) leave() (left, sent bool) {
	if c.kept {
		return true, true
	}
	if c.state.CompareAndSwap(callWaiting, callLeft) {
		return true, false
	}
	return c.state.CompareAndSwap(callSent, callLeft), true
}

// answer gives the call back to its caller and reports whether the caller was still there.
func (c *call) answer(from uint32, failure *Failure) bool {
	c.failure = failure
	if !c.state.CompareAndSwap(from, callAnswered) {
		return false
	}
	c.done <- struct{}{}
	return true
}

// lane sends a call and whatever else is waiting as one pipeline. It belongs to whoever has taken it from node.idle: a
// caller who finds one there sends his call himself, which saves two goroutine switches (as much as the round trip on a
// machine with few cores); otherwise one of the dispatchers.
type lane struct {
	node     *node
	pipe     redis.Pipeliner
	first    [1]*call      // of batchOne
	calls    []*call       // of the batch
	commands []redis.Cmder // of the batch
	again    []*call       // of the batch, those to send a second time
	taken    []*call       // from the queue
	epoch    uint64        // of the breaker, when the batch began
	trial    bool          // the batch has the call that is tried
	sent     time.Duration // when the batch began, by the store's clock
	deadline time.Time     // of the batch
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

// dispatch gives what is waiting to lanes. It ends when the node closes; callers who are still waiting then notice that
// by themselves.
func (n *node) dispatch() {
	for {
		select {
		case <-n.queue.wake:
		case <-n.ctx.Done():
			return
		}
		select {
		case l := <-n.idle:
			l.batch(nil)
			n.idle <- l
		case <-n.ctx.Done():
			return
		}
	}
}

// batchOne is batch for one call.
func (l *lane) batchOne(first *call) {
	l.first[0] = first
	l.batch(l.first[:])
	l.first[0] = nil
}

// batch sends the first calls, batchMax of them at most and those that are not nil, and whatever else is waiting, and answers
// them. Redis has the timeout to answer, from now on: how long a call has waited is not its fault, nor that a caller is in a
// hurry, who leaves without an answer.
func (l *lane) batch(first []*call) {
	n, now := l.node, time.Now()
	l.sent, l.deadline = now.Sub(n.store.reporter.start), now.Add(n.store.settings.timeout)
	l.epoch, l.trial = n.breaker.epoch.Load(), false
	l.calls, l.commands, l.again = l.calls[:0], l.commands[:0], l.again[:0]
	for _, c := range first {
		l.admitAll(c, now)
	}
	for len(l.calls) < batchMax {
		if l.taken = n.queue.take(l.taken[:0], batchMax-len(l.calls)); len(l.taken) == 0 {
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

// admitAll puts a call into the batch, with those that are to be sent with it; nil is none.
func (l *lane) admitAll(c *call, now time.Time) {
	for c != nil {
		next := c.next // once it is admitted, the call may be its caller's
		c.next = nil
		l.admit(c, now)
		c = next
	}
}

// admit puts a call into the batch, unless its caller has left, the server was silent for too long or the call has waited for
// too long, or the breaker has opened since.
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
		n.refuse(c, errBreakerOpen)
	case !c.deadline.IsZero() && !now.Before(c.deadline), n.hung(c):
		n.refuse(c, errTimeout)
	case waited > n.store.settings.queueWait:
		n.refuse(c, errOverloaded)
	default:
		c.waited = waited // before it is sent: then its caller may have it
		if !c.state.CompareAndSwap(callWaiting, callSent) {
			n.drop(c)
			return
		}
		if c.trial {
			l.epoch, l.trial = n.breaker.epoch.Load(), true // it may have begun after the batch; it ends with this call
		}
		l.add(c)
	}
}

// add puts a call at the end of the pipeline.
func (l *lane) add(c *call) {
	l.calls = append(l.calls, c)
	if c.asking {
		l.commands = append(l.commands, redis.NewStatusCmd(l.node.ctx, "asking"))
	}
	l.commands = append(l.commands, c.cmd)
}

// send runs the batch and answers its calls.
func (l *lane) send() {
	n, ctx := l.node, &batchContext{Context: l.node.ctx, deadline: l.deadline}
	n.store.batches.Add(1)
	whole := l.exec(ctx)
	slow, failed := l.heed(whole), false
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) {
			l.again = append(l.again, c)
			continue
		}
		if slow {
			failure = errSlow
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	if len(l.again) > 0 && l.sendAgain(ctx) {
		failed = true
	}
	if n.ctx.Err() != nil || slow {
		return // it failed because the node was closed, or the server answers others
	}
	n.breaker.report(l.epoch, failed)
}

// heed notes whether the server has answered anything of the batch, and reports whether it has not, though it has answered
// what was sent after it.
func (l *lane) heed(whole *Failure) (slow bool) {
	for _, c := range l.calls {
		if err := c.cmd.Err(); err == nil || isReply(err) {
			l.node.answered(l.sent)
			return false
		}
	}
	return whole != nil && whole.Kind == KindTimeout && l.node.gaveUpOn(l.sent) && !l.trial
}

// isReply reports whether an error is the server's answer.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// unknownScript reports whether Redis answered that it does not know the script.
func unknownScript(f *Failure) bool {
	return f != nil && f.Kind == KindScript && redis.HasErrorPrefix(f.Cause, "NOSCRIPT")
}

// exec sends the commands in one pipeline, once: takeCmd forbids the second time. The result is what became of the
// pipeline as a whole, for the commands that got no reply of their own.
func (l *lane) exec(ctx context.Context) *Failure {
	for _, command := range l.commands {
		command.SetErr(errUnanswered)
	}
	_ = l.pipe.BatchProcess(ctx, l.commands...)
	if _, err := l.pipe.Exec(ctx); err != nil {
		whole := *failureOf(err) // a copy: some failures are everybody's
		whole.whole = true
		return &whole
	}
	return nil
}

// outcomeOf says what became of one call of a pipeline.
func outcomeOf(c *call, whole *Failure) *Failure {
	switch err := c.cmd.Err(); err {
	case nil:
		return nil
	case errUnanswered:
		return whole
	default:
		return failureOf(err)
	}
}

// sendAgain loads the script and sends those calls a second time to which Redis has answered that it did not know it
// (after SCRIPT FLUSH or a restart): that answer alone proves that they were not executed. The load travels ahead of them
// on the same connection. It reports whether that failed.
func (l *lane) sendAgain(ctx *batchContext) (failed bool) {
	now := time.Now()
	l.calls, l.commands = l.calls[:0], l.commands[:0]
	l.commands = append(l.commands, redis.NewStringCmd(ctx, "script", "load", lua.Take))
	for _, c := range l.again {
		if c.state.Load() == callLeft || !now.Before(l.deadline) || !c.deadline.IsZero() && !now.Before(c.deadline) {
			l.finish(c, errTimeout)
			continue
		}
		l.add(c)
	}
	whole := l.exec(ctx)
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) && whole != nil {
			failure = whole // why the script could not be loaded
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	return failed
}

// finish answers a call that was sent.
func (l *lane) finish(c *call, failure *Failure) {
	if failure != nil && l.node.ctx.Err() != nil {
		failure = l.node.gone()
	}
	if !c.answer(callSent, failure) {
		l.node.recycle(c)
	}
}

// batchContext is the store's context with a batch's deadline: without the timer and the goroutine of the standard one,
// as go-redis puts the deadline on the connection.
type batchContext struct {
	context.Context
	deadline time.Time
}

// Deadline returns when the batch must have been answered.
func (c *batchContext) Deadline() (time.Time, bool) { return c.deadline, true }
