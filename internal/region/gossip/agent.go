// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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
	scriptsMax   = 512              // calls of the store in one pipeline
	tellTime     = 5 * time.Second  // of a message, and of reading its counters
	tellerTime   = 3 * time.Second  // after which another agent tells, beyond three intervals
	idleInterval = time.Second      // without rules that are told
	keepMin      = 10 * time.Minute // for which a changed counter is kept, at least
)

// knownPrefix begins the key of what was charged to a counter for other regions. The counter's own
// key without [regionstore.KeyPrefix] follows.
const knownPrefix = regionstore.KeyPrefix + "~told:"

// epochKey has a random word, which changes when Redis has lost its data.
const epochKey = regionstore.ChangedKey + ":epoch"

// Store holds the counters of this region.
type Store interface {
	EvalAll(ctx context.Context, script *lua.Script, calls []redisstore.ScriptCall) (replies []any, errs []error, err error)
	Eval(ctx context.Context, script *lua.Script, call redisstore.ScriptCall) (reply any, err error)
}

// Policy is what an agent must know of a policy.
type Policy struct {
	Namespace string          // the beginning of its keys
	Rules     map[string]bool // those with across: gossip
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

// Agent tells other regions what this one has counted, and hears what they have. It is safe for
// concurrent use.
type Agent struct {
	o       Options
	id      string
	heard   map[string]*heard // by region
	instant counter.Micros    // at which the store decides; 0 for its own clock

	failed, invalid, early, late, charged atomic.Uint64
}

// heard is what an agent has heard of another region.
type heard struct {
	at       atomic.Int64 // when the last message arrived, in milliseconds; 0 for never
	counters atomic.Uint64
}

// New returns an agent that does nothing yet.
func New(o Options) *Agent {
	a := &Agent{o: o, id: rand.Text(), heard: make(map[string]*heard, len(o.Peers))}
	for _, p := range o.Peers {
		a.heard[p.Name] = new(heard)
	}
	return a
}

// Run tells the other regions until ctx is done.
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

// The method tellAll tells a region about all counters that have changed since it was told last,
// and logs when that begins to fail, and when it ends to.
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

// The method tell is tellAll without the log. Every message is at least a sign of life.
func (a *Agent) tell(ctx context.Context, p *Peer) error {
	for {
		more, err := a.tellPage(ctx, p)
		if err != nil || !more {
			return err
		}
	}
}

// The method tellPage tells a region about some counters, and reports whether there are more.
func (a *Agent) tellPage(ctx context.Context, p *Peer) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	own := a.o.Policy()
	next, err := a.page(ctx, &own, p.cursor)
	switch {
	case err != nil:
		return false, err
	case next.epoch == "":
		return false, nil // another agent tells
	case next.epoch != p.ownEpoch:
		again := p.cursor > 0
		p.ownEpoch, p.cursor = next.epoch, 0
		if again {
			return true, nil
		}
	}
	m := message{from: a.o.Region}
	if m.counters, err = a.own(ctx, &own, next.names); err != nil {
		return false, err
	}
	r, err := p.send(ctx, m.encode())
	if err != nil {
		return false, err
	}
	p.answered.Store(time.Now().UnixMilli())
	p.told.Add(uint64(len(m.counters)))
	if err := a.markEarly(ctx, m.counters, r.Early); err != nil {
		return false, err
	}
	before := p.epoch
	if p.epoch = r.Epoch; before != "" && before != r.Epoch {
		p.cursor = 0 // the region's Redis has lost what it was told
		return true, nil
	}
	p.cursor = max(p.cursor, next.last)
	return next.more, nil
}

// The type page is some counters that have changed.
type page struct {
	epoch string // "" if another agent tells
	names []string
	last  int64 // the instant of the last change
	more  bool
}

// The method page reads the counters that changed after an instant.
func (a *Agent) page(ctx context.Context, own *Policy, after int64) (p page, err error) {
	lock := 3*own.Interval + tellerTime
	call := redisstore.ScriptCall{Keys: []string{regionstore.ChangedKey, regionstore.TellerKey, epochKey}, Args: []any{a.id,
		lock.Milliseconds(), after, pageMax, max(own.Keep, keepMin).Microseconds(), rand.Text()}}
	reply, err := a.o.Store.Eval(ctx, lua.GossipPage, call)
	if err != nil {
		return p, err
	}
	words, _ := reply.([]any)
	if len(words) == 0 {
		return p, nil
	}
	p.epoch, _ = words[0].(string)
	size := 0
	for i := 1; i+1 < len(words); i += 2 {
		name, _ := words[i].(string)
		score, _ := words[i+1].(string)
		at, err := strconv.ParseFloat(score, 64)
		if err != nil {
			return p, fmt.Errorf("reply %.30q is not the instant of a change", score)
		}
		if size += len(name); size > pageBytesMax && len(p.names) > 0 {
			p.more = true
			return p, nil
		}
		p.names, p.last = append(p.names, name), int64(at)
	}
	p.more = len(p.names) == pageMax
	return p, nil
}

// The method own reads this region's own units of counters. It leaves out those that have none, and
// those that the policy does not tell any more.
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

// The method markEarly marks counters again whose windows have not begun in another region.
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

// The method read reads the name of a counter, which may come from another machine.
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

// The method argsOf returns the arguments of the function counter_of of the scripts.
func (a *Agent) argsOf(c *regionstore.Changed) []any {
	algorithm := int(c.Limit.Algorithm())
	if c.Bounds != nil {
		algorithm = calendarAlgorithm
	}
	return []any{int64(a.instant), algorithm, int64(c.Limit.Window()), c.BoundsText()}
}

// The method evalAll calls a script for each call, and then done with each reply. The method skips
// calls that Redis rejects because of their counter.
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

// ofCounter reports whether an error is that of one counter, so that others can succeed.
func ofCounter(err error) bool {
	for _, prefix := range []string{"OOM ", "STALE ", "CORRUPT ", "WRONGTYPE ", "ERR "} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}
