// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// node is one server that counts, with all that stands between it and the callers: a queue, lanes, a circuit breaker and
// a watch of its own, so that a server that hangs holds up nobody who asks another. Safe for concurrent use.
type node struct {
	store    *Store
	address  address
	dialer   *dialer
	client   *redis.Client
	queue    *queue
	idle     chan *lane    // lanes that nobody uses
	checking chan struct{} // holds one: a Check is under way
	breaker  breaker
	reporter breakerReporter

	ctx     context.Context // ends when the node is given up, or the store closes
	cancel  context.CancelFunc
	running sync.WaitGroup
	opened  chan struct{} // wakes the watch when the breaker opens
	closing sync.Once
	heard   atomic.Int64 // when the batch was sent that was answered last, in nanoseconds since the store was made
	quiet   atomic.Int64 // when the first batch was sent of those that were given up with none answered since, likewise; 0: none was
	silent  atomic.Int64 // when the last of them was given up, likewise
	wanted  atomic.Int64 // when a server last said that this one is to be asked, in nanoseconds since the store was made
}

// newNode returns a node that is ready at once: it connects in the background.
func newNode(s *Store, a address) *node {
	settings := &s.settings
	n := &node{
		store:    s,
		address:  a,
		queue:    newQueue(settings.queueMax, settings.lanes),
		opened:   make(chan struct{}, 1),
		checking: make(chan struct{}, 1),
		reporter: breakerReporter{logger: settings.logger, server: a.String(), start: s.reporter.start},
	}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.breaker.changed = n.breakerChanged
	n.dialer = newDialer(a, settings.tls, settings.timeout)
	n.client = redis.NewClient(clientOptions(a, n.dialer, settings.lanes))
	n.idle = make(chan *lane, settings.lanes)
	for range settings.lanes {
		n.idle <- newLane(n)
		n.running.Go(n.dispatch)
	}
	n.running.Go(n.watch)
	return n
}

// clientName is what connections call themselves, for CLIENT LIST.
const clientName = "penstock"

// clientOptions turns off everything in go-redis that would send a command twice, wait on its own account, or start a
// goroutine.
func clientOptions(a address, d *dialer, lanes int) *redis.Options {
	return &redis.Options{
		Network:  a.network,
		Addr:     a.target,
		Username: a.username,
		Password: a.password,
		DB:       a.database,
		Dialer:   d.open,
		Protocol: 2, // pushed messages would be looked for before every reply
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			// Scripts loaded this way are never evicted, as those of EVAL are. A user who may not name a connection goes
			// without a name.
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
		// The lanes' own, as many that the watch warms up beside them, one for Check and one for the census: a lane never waits
		// for one.
		PoolSize:         2*lanes + 2,
		MaxIdleConns:     lanes,
		PipelinePoolSize: -1, // lanes use the connections that were warmed up
		DisableIdentity:  true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
}

// admit makes a call of checks, unless there is no sense in sending it.
func (n *node) admit(ctx context.Context, checks []core.Check) (*call, *Failure) {
	if ctx.Err() != nil {
		return nil, gaveUp(ctx)
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
		c.source = sourceOf(&checks[0])
	}
	c.cmd = newTake(context.Background(), core.Micros(n.store.pinned.Load()), checks)
	return c, nil
}

// take asks checks in one call.
func (n *node) take(ctx context.Context, checks []core.Check, results []core.Result) *Failure {
	c, failure := n.admit(ctx, checks)
	if failure == nil {
		failure = n.carry(ctx, c)
	}
	if failure != nil {
		return failure
	}
	return n.read(c, checks, results)
}

// read takes the results out of a call that was answered, and ends it.
func (n *node) read(c *call, checks []core.Check, results []core.Result) *Failure {
	err := c.cmd.results(checks, results)
	n.recycle(c)
	if err != nil {
		return &Failure{Kind: KindScript, Cause: err}
	}
	return nil
}

// carry has the call sent and waits for its end. If the result is nil, the call was answered and belongs to the caller;
// otherwise the caller must not touch it any more.
func (n *node) carry(ctx context.Context, c *call) *Failure {
	if ctx.Done() == nil && n.queue.len() == 0 {
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

// enqueue leaves a call to the dispatchers, and those that are to be sent with it. Their callers wait for so long, 0 if they do
// not wait. Where there is no room, it ends them, or others.
func (n *node) enqueue(c *call, patience time.Duration) {
	now := n.store.clock()
	for each := c; each != nil; each = each.next {
		each.queued = now
		if patience > 0 {
			each.timer.Reset(patience)
		}
	}
	n.refuseAll(n.queue.push(c), errQueueFull)
}

// refuseAll answers a call, and those that were to be sent with it, without sending them. Nil is none.
func (n *node) refuseAll(c *call, failure *Failure) {
	for c != nil {
		next := c.next // once it is answered, the call is its caller's
		c.next = nil
		n.refuse(c, failure)
		c = next
	}
}

// refuse answers a call without sending it.
func (n *node) refuse(c *call, failure *Failure) {
	if c.trial {
		n.breaker.release()
	}
	if !c.answer(callWaiting, failure) {
		n.recycle(c)
	}
}

// wait returns nil when the call was answered; it then belongs to the caller again. Otherwise it belongs to the lane,
// now or when a lane comes to it. waited is how long it was in the queue.
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
			} // or else it was sent, and its batch has a deadline
		case <-ctx.Done():
			failure = gaveUp(ctx)
		case <-n.ctx.Done():
			failure = n.gone()
		}
	}
	c.timer.Stop()
	switch left, sent := c.leave(); {
	case left && !sent && failure == errGone:
		return 0, errRetired
	case left:
		return 0, failure
	}
	<-c.done // the answer came in this very moment
	return n.outcome(c)
}

// outcome returns what became of a call that was answered, and how long it was in the queue. A call that failed is ended.
func (n *node) outcome(c *call) (waited time.Duration, failure *Failure) {
	c.timer.Stop()
	waited, failure = c.waited, c.failure
	if failure != nil {
		n.recycle(c)
	}
	return waited, failure
}

// answered notes that a batch was answered that was sent at an instant of the store's clock.
func (n *node) answered(sent time.Duration) {
	for {
		heard := n.heard.Load()
		if int64(sent) <= heard || n.heard.CompareAndSwap(heard, int64(sent)) {
			break
		}
	}
	if n.quiet.Load() != 0 {
		n.quiet.Store(0)
	}
}

// gaveUpOn notes that a batch was not answered in time, and reports whether one that was sent after it was: then the server
// works.
func (n *node) gaveUpOn(sent time.Duration) (healthy bool) {
	if n.heard.Load() > int64(sent) {
		return true
	}
	n.quiet.CompareAndSwap(0, int64(sent))
	n.silent.Store(int64(n.store.clock()))
	return false
}

// hung reports whether the server has answered nothing for one and a half timeouts while the call waited: one batch and its
// successor were given up. A server that was only late once, as on a busy machine, costs the one batch.
func (n *node) hung(c *call) bool {
	quiet := n.quiet.Load()
	if quiet == 0 || c.queued == 0 {
		return false
	}
	begin := max(time.Duration(quiet), c.queued)
	return time.Duration(n.silent.Load())-begin >= n.store.settings.timeout*3/2
}

// drop ends a call that will not be sent.
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
	n.reporter.changed(time.Now(), state)
	if state == BreakerOpen {
		select {
		case n.opened <- struct{}{}:
		default:
		}
		n.store.nudge()
	}
}

// gone is the failure of a call that was under way when the node was closed.
func (n *node) gone() *Failure {
	if n.store.ctx.Err() != nil {
		return errClosed
	}
	return errGone
}

// close answers everyone who waits with an error, closes the connections and returns when no goroutine of the node is
// left.
func (n *node) close() {
	n.closing.Do(func() {
		n.cancel()
		n.dialer.close() // ends what lanes and watch are waiting for
		n.running.Wait()
		for range n.store.settings.lanes {
			<-n.idle // a caller may still be sending its own call
		}
		_ = n.client.Close()
	})
}
