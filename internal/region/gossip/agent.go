// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/lua"
)

// Bounds of an agent.
const (
	scriptsMax   = 512              // the number of calls of the store in one pipeline
	tellTime     = 8 * time.Second  // the time for a message, and for reading its counters
	tellerTime   = 3 * time.Second  // another agent takes over after three intervals and this time
	idleInterval = time.Second      // the interval if no rule has across: gossip
	keepMin      = 10 * time.Minute // the least time for which a changed counter is kept
)

// knownPrefix begins the key that records how many units were charged to a counter for other
// regions. The rest of the key is the counter's own key without [regionstore.KeyPrefix].
const knownPrefix = regionstore.KeyPrefix + "~told:"

// epochKey is the key of a random word, which changes when Redis has lost its data.
const epochKey = regionstore.ChangedKey + ":epoch"

// Store is the Redis with the counters of this region.
type Store interface {
	EvalAll(ctx context.Context, script *lua.Script, calls []redisstore.ScriptCall) (replies []any, errs []error, err error)
	Eval(ctx context.Context, script *lua.Script, call redisstore.ScriptCall) (reply any, err error)
}

// Policy is what an agent must know about the policy in force.
type Policy struct {
	Namespace string          // the beginning of its keys
	Rules     map[string]bool // the rules with across: gossip
	Interval  time.Duration   // 0 without such rules
	Keep      time.Duration   // for how long a change matters: two of the longest windows
}

// Options configures an agent. All fields are required.
type Options struct {
	Region string // this one
	Store  Store
	Policy func() Policy // returns the policy in force
	Peers  []*Peer       // the other regions
	Logger *slog.Logger
}

// Agent reports to other regions what this region has counted, and charges to this region's
// counters what the other regions report. It is safe for concurrent use.
type Agent struct {
	o       Options
	id      string
	heard   map[string]*heard // by region
	instant counter.Micros    // the instant at which the store decides; 0 means its own clock

	failed, invalid, early, late, charged atomic.Uint64
}

// heard holds what an agent knows about the messages from one other region.
type heard struct {
	at       atomic.Int64 // when the last message arrived, in milliseconds; 0 for never
	counters atomic.Uint64
}

// New returns an agent that sends nothing until Run is called.
func New(o Options) *Agent {
	a := &Agent{o: o, id: rand.Text(), heard: make(map[string]*heard, len(o.Peers))}
	for _, p := range o.Peers {
		a.heard[p.Name] = new(heard)
	}
	return a
}

// Run reports changed counters to the other regions until ctx is done.
func (a *Agent) Run(ctx context.Context) {
	var telling sync.WaitGroup
	for _, p := range a.o.Peers {
		telling.Go(func() {
			for ctx.Err() == nil {
				interval := a.o.Policy().Interval
				if interval > 0 {
					a.tellAll(ctx, p)
				} else {
					interval = idleInterval
				}
				pause := time.NewTimer(interval)
				select {
				case <-ctx.Done():
				case <-pause.C:
				}
				pause.Stop()
			}
		})
	}
	telling.Wait()
}

// Agent.tellAll reports to a region all counters that have changed since the last report. It logs
// when reports begin to fail, and when they succeed again.
func (a *Agent) tellAll(ctx context.Context, p *Peer) {
	err := a.tell(ctx, p)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.failed.Add(1)
		if !p.broken {
			a.o.Logger.Warn("a region cannot be told what this one counts, so both may admit more than the limit", "region", p.Name, "error", err)
		}
	case p.broken:
		a.o.Logger.Info("a region is told again what this one counts", "region", p.Name)
	}
	p.broken = err != nil
}

// Agent.tell is like tellAll, but logs nothing. It also sends a message without counters, as a sign
// of life. While it waits for the answer to a message, it already reads the counters of the next
// message.
func (a *Agent) tell(ctx context.Context, p *Peer) error {
	now := a.prepare(ctx, p.cursor)
	for {
		var next *prepared
		var reading sync.WaitGroup
		if now.more && now.epoch == p.ownEpoch {
			reading.Go(func() { next = a.prepare(ctx, now.last) })
		}
		more, err := a.deliver(ctx, p, now)
		reading.Wait()
		if err != nil || !more {
			return err
		}
		if next == nil || p.cursor != now.last {
			next = a.prepare(ctx, p.cursor)
		}
		now = next
	}
}

// prepared is a message that is ready to be sent, with the page of changes from which it was made.
type prepared struct {
	page
	message
	begun time.Time
	err   error
}

// Agent.prepare makes the message about the counters that changed after an instant.
func (a *Agent) prepare(ctx context.Context, after int64) *prepared {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	own := a.o.Policy()
	m := &prepared{message: message{from: a.o.Region}, begun: time.Now()}
	if m.page, m.err = a.page(ctx, &own, after); m.err == nil {
		m.counters, m.err = a.own(ctx, &own, m.names)
	}
	return m
}

// Agent.deliver sends a message to a region. It reports whether there are more changes after the
// peer's cursor.
func (a *Agent) deliver(ctx context.Context, p *Peer, m *prepared) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	switch {
	case m.err != nil:
		return false, m.err
	case m.epoch == "":
		return false, nil // another agent reports
	case m.epoch != p.ownEpoch:
		again := p.cursor > 0
		p.ownEpoch, p.cursor = m.epoch, 0
		if again {
			return true, nil
		}
	}
	r, err := p.send(ctx, m.encode())
	if err != nil {
		return false, err
	}
	p.answered.Store(time.Now().UnixMilli())
	p.told.Add(uint64(len(m.counters)))
	p.delay.Store(int64(m.age + time.Since(m.begun)))
	if err := a.markEarly(ctx, m.counters, r.Early); err != nil {
		return false, err
	}
	before := p.epoch
	if p.epoch = r.Epoch; before != "" && before != r.Epoch {
		p.cursor = 0 // the region's Redis has lost what it was told
		return true, nil
	}
	p.cursor = max(p.cursor, m.last)
	return m.more, nil
}

// Agent.own reads how many units of the counters this region itself has counted. It leaves out
// counters without such units, and counters of rules that no longer have across: gossip.
func (a *Agent) own(ctx context.Context, own *Policy, names []string) (told []Told, err error) {
	var calls []redisstore.ScriptCall
	var of []string
	for _, name := range names {
		c, err := own.read(name)
		if err != nil {
			a.invalid.Add(1)
			continue
		}
		of, calls = append(of, name), append(calls, redisstore.ScriptCall{Keys: keysOf(&c), Args: a.argsOf(&c)})
	}
	err = a.evalAll(ctx, lua.GossipOwn, calls, func(i int, reply string) error {
		if reply == "" {
			return nil
		}
		t := Told{Name: of[i]}
		if n, err := fmt.Sscanf(reply, "%d %d %d", &t.Start, &t.Used, &t.Before); n != 3 {
			return fmt.Errorf("reply %.60q is not what a counter has: %w", reply, err)
		}
		t.Used, t.Before = min(t.Used, counter.CountMax), min(t.Before, counter.CountMax)
		told = append(told, t)
		return nil
	})
	return told, err
}

// Agent.markEarly marks counters as changed again if their windows have not begun in another
// region, so that they are reported again.
func (a *Agent) markEarly(ctx context.Context, told []Told, early []int) error {
	var names []string
	for _, i := range early {
		if i >= 0 && i < len(told) {
			names = append(names, told[i].Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	keys, args := regionstore.MarkCall(names, regionstore.ChangedMax)
	_, err := a.o.Store.Eval(ctx, lua.GossipMark, redisstore.ScriptCall{Keys: keys, Args: args})
	return err
}

// Policy.read parses the name of a counter. It rejects an invalid name, because the name may come
// from another machine.
func (own *Policy) read(name string) (c regionstore.Changed, err error) {
	if c, err = regionstore.ParseChanged(name); err != nil {
		return c, err
	}
	rest, ok := strings.CutPrefix(c.Key, own.Namespace)
	rule, _, braces := strings.Cut(rest, ":{")
	switch {
	case !ok || !braces || !own.Rules[rule]:
		return c, fmt.Errorf("the counter %.100q is not of a rule with across: gossip", c.Key)
	case !policy.Tellable(&c.Limit, 0):
		return c, fmt.Errorf("the limit %q cannot be told: only windows can", c.Limit.String())
	}
	return c, nil
}

func keysOf(c *regionstore.Changed) []string {
	return []string{c.Key, knownPrefix + strings.TrimPrefix(c.Key, regionstore.KeyPrefix)}
}

// calendarAlgorithm is the script's number for calendar windows.
const calendarAlgorithm = 5

// Agent.argsOf returns the arguments that scripts pass to their function counter_of.
func (a *Agent) argsOf(c *regionstore.Changed) []any {
	algorithm := int(c.Limit.Algorithm())
	if c.Bounds != nil {
		algorithm = calendarAlgorithm
	}
	return []any{int64(a.instant), algorithm, int64(c.Limit.Window()), c.BoundsText()}
}

// Agent.evalAll executes a script once for each call, and passes each reply to the function done.
// If Redis rejects a call because of the call's counter, evalAll counts a failure and continues
// with the next call. Any other error ends it.
func (a *Agent) evalAll(ctx context.Context, script *lua.Script, calls []redisstore.ScriptCall, done func(i int, reply string) error) error {
	at := 0
	for some := range slices.Chunk(calls, scriptsMax) {
		replies, errs, err := a.o.Store.EvalAll(ctx, script, some)
		if err != nil {
			return err
		}
		for i := range some {
			if errs[i] != nil && !ofCounter(errs[i]) {
				return errs[i]
			}
			reply, ok := replies[i].(string)
			if errs[i] != nil || !ok {
				a.failed.Add(1)
				continue
			}
			if err := done(at+i, reply); err != nil {
				return err
			}
		}
		at += len(some)
	}
	return nil
}

// ofCounter reports whether an error of Redis concerns only one counter, so that calls for other
// counters can still succeed.
func ofCounter(err error) bool {
	for _, prefix := range []string{"OOM ", "STALE ", "CORRUPT ", "WRONGTYPE ", "ERR "} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}
