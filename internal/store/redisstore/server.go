// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/survive"
	"github.com/penstock/penstock/lua"
)

// node is one server that holds counters, with its own queue, lanes, circuit breaker and background
// watch. A server that hangs therefore does not delay calls to another. A node is safe for
// concurrent use.
type node struct {
	store    *Store
	address  address
	dialer   *dialer
	client   Client // the client for counters, and for the store's own background work
	values   Client // the client for plain values, which therefore never take a lane's connection
	queue    *queue
	idle     chan *lane    // free lanes
	checking chan struct{} // held by the running Check; its capacity is one
	breaker  breaker
	pinger   pinger
	pace     pace
	reporter breakerReporter

	ctx     context.Context // ends when the node is replaced, or the store closes
	cancel  context.CancelFunc
	running sync.WaitGroup
	opened  chan struct{} // signals the watch that the breaker has opened
	// inspected is closed after the first attempt to connect, even a failed one.
	inspected  chan struct{}
	inspection sync.Once
	closing    sync.Once
	// when the latest answered batch was sent, in nanoseconds since the store was created
	lastAnswered atomic.Int64
	repliedAt    atomic.Int64 // when a reply to a batch last arrived, by the same clock
	// the sending time of the first batch that timed out since the last answer, by the same clock;
	// 0 if none has timed out
	firstTimeout atomic.Int64
	lastTimeout  atomic.Int64 // when the latest of those batches timed out, by the same clock
	// gaveUpAfter is how long the latest batch that timed out had taken, in nanoseconds.
	gaveUpAfter atomic.Int64
	silence     silence
	lateness    lateness
	wanted      atomic.Int64 // when a server last redirected to this one, by the same clock
	// failedKey is a key of the latest batch that failed as a whole; nil if none has failed.
	failedKey  atomic.Pointer[string]
	setsSingly atomic.Bool // whether the server has denied MSET
}

// newNode returns a node that can be used at once; it connects in the background.
func newNode(s *Store, a address) *node {
	settings := &s.settings
	n := &node{
		store:     s,
		address:   a,
		queue:     newQueue(settings.queueMax, settings.lanes),
		opened:    make(chan struct{}, 1),
		checking:  make(chan struct{}, 1),
		inspected: make(chan struct{}),
		reporter:  breakerReporter{logger: settings.logger, server: a.String(), start: s.reporter.start},
	}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.breaker.changed = n.breakerChanged
	n.pinger.late = make(chan struct{}, 1)
	n.pace.most.Store(paceStart)
	n.dialer = newDialer(a, settings.tls, settings.timeout, settings.patience)
	n.dialer.late = n.pinger.lateReply
	n.client = redis.NewClient(clientOptions(a, n.dialer, settings.lanes))
	n.values = redis.NewClient(valueOptions(a, n.dialer))
	n.idle = make(chan *lane, settings.lanes)
	for range settings.lanes {
		n.idle <- newLane(n)
		survive.Go(&n.running, settings.logger, n.dispatch)
	}
	survive.Go(&n.running, settings.logger, n.watch)
	survive.Go(&n.running, settings.logger, n.pingWhenLate)
	return n
}

// clientName is the connection name shown by CLIENT LIST.
const clientName = "penstock"

// clientOptions disables everything in go-redis that would send a command twice, wait on its own,
// or start a goroutine.
func clientOptions(a address, d *dialer, lanes int) *redis.Options {
	return &redis.Options{
		Network:  a.network,
		Addr:     a.target,
		Username: a.username,
		Password: a.password,
		DB:       a.database,
		Dialer:   d.open,
		Protocol: 2, // with RESP3, go-redis looks for push messages before every reply
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			// Scripts loaded with SCRIPT LOAD are never evicted, unlike scripts of EVAL. If the
			// user has no right to name a connection, it remains unnamed.
			var load *redis.StringCmd
			_, _ = conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				load = pipe.ScriptLoad(ctx, lua.Take)
				pipe.ClientSetName(ctx, clientName)
				return nil
			})
			return load.Err()
		},
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		ReadTimeout:           TimeoutMax, // the batch's own deadline always comes first
		WriteTimeout:          TimeoutMax,
		// A lane must never wait for a connection. So there are two for each lane, one of them for
		// the watch's warm-up, and one each for Check, for counting nodes and for metrics.
		PoolSize:         2*lanes + 3,
		MaxIdleConns:     lanes,
		PipelinePoolSize: -1, // lanes use the pool's warm connections
		DisableIdentity:  true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
}

// The connections for plain values to one server.
const (
	valueConnsMax  = 8
	valueConnsIdle = 2
)

// valueOptions returns the options of the client for plain values. No request is decided with this
// client. Its commands have deadlines of seconds, and all of its connections can be waiting for a
// server that hangs.
func valueOptions(a address, d *dialer) *redis.Options {
	o := clientOptions(a, d, 0)
	o.PoolSize, o.MaxIdleConns = valueConnsMax, valueConnsIdle
	o.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		_ = conn.ClientSetName(ctx, clientName).Err()
		return nil
	}
	return o
}

// node.admit creates a call for checks, unless sending it would be useless.
func (n *node) admit(ctx context.Context, checks []counter.Check) (*call, *Failure) {
	if ctx.Err() != nil {
		return nil, contextFailure(ctx).notSent()
	}
	admitted, trial := n.breaker.admit()
	switch {
	case n.ctx.Err() != nil:
		if n.store.ctx.Err() != nil {
			return nil, errClosed
		}
		return nil, errRetired
	case !admitted:
		return nil, errBreakerOpen
	}
	c := n.store.calls.Get().(*call)
	c.prepare(ctx, trial)
	if len(checks) > 0 {
		c.source, c.checks = sourceOf(&checks[0]), len(checks)
	}
	c.cmd = newTake(context.Background(), counter.Micros(n.store.pinned.Load()), checks)
	return c, nil
}

// node.take runs checks in one call.
func (n *node) take(ctx context.Context, checks []counter.Check, results []counter.Result) *Failure {
	c, failure := n.admit(ctx, checks)
	if failure == nil {
		failure = n.carry(ctx, c)
	}
	if failure != nil {
		return failure
	}
	return n.read(c, checks, results)
}

// node.read decodes the results of an answered call and recycles it.
func (n *node) read(c *call, checks []counter.Check, results []counter.Result) *Failure {
	err := c.cmd.results(checks, results)
	n.recycle(c)
	if err != nil {
		return &Failure{Kind: KindScript, Cause: err}
	}
	return nil
}

// node.carry sends the call and waits for its end. If the result is nil, the call was answered and
// belongs to the caller. Otherwise the caller must no longer use the call.
func (n *node) carry(ctx context.Context, c *call) *Failure {
	if n.mayCarry(ctx) {
		select {
		case l := <-n.idle:
			l.batchOne(c)
			n.idle <- l
			<-c.done
			_, failure := n.outcome(c)
			return failure
		default:
		}
	}
	n.enqueue(c, n.store.settings.queueWait)
	_, failure := n.wait(ctx, c)
	return failure
}

// node.mayCarry reports whether a caller may send its calls itself, which takes up to the patience
// of a batch.
func (n *node) mayCarry(ctx context.Context) bool {
	if n.queue.len() > 0 {
		return false
	}
	deadline, ok := ctx.Deadline()
	return ctx.Done() == nil || ok && time.Until(deadline) > n.store.settings.patience
}

// node.enqueue passes a call, and the calls linked to it, to the dispatchers. Their callers wait
// for at most the duration patience; 0 means that they do not wait. If the queue is full, enqueue
// rejects these calls or others.
func (n *node) enqueue(c *call, patience time.Duration) {
	now := n.store.clock()
	for each := c; each != nil; each = each.next {
		each.queued = now
		if patience > 0 {
			each.timer.Reset(patience)
		}
	}
	n.rejectAll(n.queue.push(c), errQueueFull)
}

// rejectAll fails a call, and the calls linked to it, without sending them. The call may be nil.
func (n *node) rejectAll(c *call, failure *Failure) {
	for c != nil {
		next := c.next // after the answer the call belongs to its caller
		c.next = nil
		n.reject(c, failure)
		c = next
	}
}

// node.reject fails a call without sending it.
func (n *node) reject(c *call, failure *Failure) {
	if c.trial {
		n.breaker.release()
	}
	if !c.answer(callWaiting, failure) {
		n.recycle(c)
	}
}

// node.wait waits for the end of a call. If the result named failure is nil, the call was answered
// and belongs to the caller again. Otherwise the call belongs to the lane. The result named waited
// is how long the call was in the queue.
func (n *node) wait(ctx context.Context, c *call) (waited time.Duration, failure *Failure) {
	for failure == nil {
		select {
		case <-c.done:
			return n.outcome(c)
		case <-c.timer.C:
			switch {
			case c.kept:
				failure = errTimeout
			case c.state.CompareAndSwap(callWaiting, callLeft):
				return 0, errOverloaded
			} // otherwise the call was sent, and its batch has a deadline
		case <-ctx.Done():
			failure = contextFailure(ctx)
		case <-n.ctx.Done():
			failure = n.gone()
		}
	}
	c.timer.Stop()
	switch left, sent := c.leave(); {
	case left && !sent && failure == errGone:
		return 0, errRetired
	case left && !sent:
		return 0, failure.notSent()
	case left:
		return 0, failure
	}
	<-c.done // the answer has just arrived
	return n.outcome(c)
}

// node.outcome returns the failure of an answered call, or nil, and how long it was in the queue.
// It recycles a call that failed.
func (n *node) outcome(c *call) (waited time.Duration, failure *Failure) {
	c.timer.Stop()
	waited, failure = c.waited, c.failure
	if failure != nil {
		n.recycle(c)
	}
	return waited, failure
}

// node.answered is invoked when a batch has been answered. The argument named sent is when the
// batch was sent, on the store's clock.
func (n *node) answered(sent time.Duration) {
	for {
		lastAnswered := n.lastAnswered.Load()
		if int64(sent) <= lastAnswered || n.lastAnswered.CompareAndSwap(lastAnswered, int64(sent)) {
			break
		}
	}
	n.repliedAt.Store(int64(n.store.clock()))
	if n.firstTimeout.Load() != 0 {
		n.firstTimeout.Store(0)
	}
}

// noteTimeout records that a batch timed out after the given time. noteTimeout reports whether the
// server works: it has answered a batch that was sent after this one, or it has answered a PING
// since then, and some batch recently. For the time starvedMax, a late answer to a PING, or the
// lateness of this process itself, also excuses the server.
func (n *node) noteTimeout(sent, took time.Duration) (healthy bool) {
	lastAnswered := n.lastAnswered.Load()
	if lastAnswered > int64(sent) {
		return true
	}
	n.silence.note(int64(sent), lastAnswered, n.store.settings.silentMax)
	if n.worksSince(sent) && !n.silent() {
		return true
	}
	now := n.store.clock()
	if (n.answersSince(sent) || n.store.settings.processLate(took)) && now-time.Duration(n.silence.first.Load()) < starvedMax {
		return true
	}
	n.firstTimeout.CompareAndSwap(0, int64(sent))
	n.gaveUpAfter.Store(int64(now - sent))
	n.lastTimeout.Store(int64(now))
	return false
}

// node.hung reports whether the server has answered nothing, not even a PING, for 1.5 times the
// timeout while the call waited. That is long enough for one batch and its successor to time out. A
// single late answer makes only one batch fail. If this process itself is late, a timeout takes
// longer (see readDeadline), so the duration of the latest timeout is used.
func (n *node) hung(c *call) bool {
	firstTimeout := n.firstTimeout.Load()
	if firstTimeout == 0 || c.queued == 0 || n.pinger.verdict.Load() != pingUnanswered {
		return false
	}
	begin := max(time.Duration(firstTimeout), c.queued)
	timeout := max(n.store.settings.timeout, time.Duration(n.gaveUpAfter.Load()))
	return time.Duration(n.lastTimeout.Load())-begin >= timeout*3/2
}

// node.drop ends a call whose caller has left before it was sent.
func (n *node) drop(c *call) {
	if c.trial {
		n.breaker.release()
	}
	c.timer.Stop()
	n.recycle(c)
}

func (n *node) recycle(c *call) {
	c.cmd, c.failure = nil, nil
	n.store.calls.Put(c)
}

// breakerChanged is called under the breaker's lock.
func (n *node) breakerChanged(state BreakerState) {
	n.reporter.recordState(time.Now(), state)
	n.pinger.restart()
	if state == BreakerOpen {
		select {
		case n.opened <- struct{}{}:
		default:
		}
		n.store.rediscover()
	}
}

// node.gone returns the failure of a call that was in flight when the node closed.
func (n *node) gone() *Failure {
	if n.store.ctx.Err() != nil {
		return errClosed
	}
	return errGone
}

// node.close fails all waiting calls, closes the connections and waits until all goroutines of the
// node have ended.
func (n *node) close() {
	n.closing.Do(func() {
		n.cancel()
		n.dialer.close() // unblocks the lanes and the watch
		n.running.Wait()
		for range n.store.settings.lanes {
			<-n.idle // waits, because a caller might still be sending its own call
		}
		_ = n.client.Close()
		_ = n.values.Close()
	})
}
