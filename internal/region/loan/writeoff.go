// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/region/writeoff"
)

// writeoffPath is the path at which an agent receives what another region knows about which region
// uses which part of limits. The agent answers with what it knows itself.
const writeoffPath = "/v1/writeoff"

// writeoffEvery is how often an agent reads the state of the regions in Redis, and sends it to the
// other regions.
const writeoffEvery = time.Second

// errStale reports that an agent was stopped while it lent the part of another region. The region
// may have been taken back meanwhile, so what was charged is lost until the window ends.
var errStale = errors.New("the state of the regions was read too long ago")

// message holds what agents tell each other about the state of the regions: which are written off,
// and who uses their parts.
type message struct {
	Entries map[string]writeoff.Entry `json:"regions"`
}

// writeoffs is what an agent knows about the state of the regions: see message.
type writeoffs struct {
	mu     sync.Mutex
	state  writeoff.State
	read   time.Time // when the Redis of this region was last read; the zero time if it never was
	failed bool      // a failure was logged
}

// followWriteoff reads the state of the regions at intervals, and sends it to the other regions,
// until ctx is done.
func (a *Agent) followWriteoff(ctx context.Context) {
	for ctx.Err() == nil {
		a.refreshWriteoff(ctx)
		var telling sync.WaitGroup
		for _, p := range a.o.Peers {
			if p.tell != nil {
				telling.Go(func() { a.tell(ctx, p) })
			}
		}
		telling.Wait()
		select {
		case <-ctx.Done():
		case <-time.After(writeoffEvery):
		}
	}
}

// refreshWriteoff reads the state of the regions in Redis, and adds what other regions have sent.
func (a *Agent) refreshWriteoff(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	names, known, begun := a.o.Policy().Names, a.entries(), time.Now()
	s, err := writeoff.Update(reading, a.o.Writeoffs, 0, func(s *writeoff.State) {
		s.Here, s.Names = a.o.Name, names
		s.Merge(known)
	})
	k := &a.writeoffs
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil && !k.failed && ctx.Err() == nil:
		k.failed = true
		a.o.Logger.Error("the state of the regions cannot be read or written, so the last one remains in force, and this agent lends no part of "+
			"another region; if the value is damaged, delete the key, and the agent writes it anew", "key", writeoff.Key, "error", err)
	case err == nil && k.failed:
		k.failed = false
		a.o.Logger.Info("the state of the regions can be read again")
	}
	if err == nil {
		k.read = begun
		a.mergeLocked(names, s.Entries)
	}
}

// mergeLocked adds entries of the policy's regions, and logs those that are new.
func (a *Agent) mergeLocked(names []string, entries map[string]writeoff.Entry) {
	for name, e := range entries {
		if !slices.Contains(names, name) || !a.writeoffs.state.Merge(map[string]writeoff.Entry{name: e}) {
			continue
		}
		if e.Forgotten() {
			a.o.Logger.Warn("a region is written off", "region", name, "steward", e.Steward)
		} else {
			a.o.Logger.Info("a region is taken back", "region", name)
		}
	}
}

// Agent.entries returns a copy of all that is known.
func (a *Agent) entries() map[string]writeoff.Entry {
	a.writeoffs.mu.Lock()
	defer a.writeoffs.mu.Unlock()
	return maps.Clone(a.writeoffs.state.Entries)
}

// Agent.entry returns who uses the part of a region, and when this region's Redis was read.
func (a *Agent) entry(name string) (e writeoff.Entry, read time.Time) {
	a.writeoffs.mu.Lock()
	defer a.writeoffs.mu.Unlock()
	return a.writeoffs.state.Entries[name], a.writeoffs.read
}

// Agent.tell exchanges the state with another region. An agent of an earlier release does not know
// such messages.
func (a *Agent) tell(ctx context.Context, p *Peer) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := p.tell(ctx, message{a.entries()})
	if errors.Is(err, context.Canceled) {
		return // this agent ends
	}
	switch before := note(&p.tellFailure, err); {
	case err != nil && before == "":
		a.o.Logger.Warn("a region does not answer, or not as expected; units are borrowed as far as it answers", "region", p.Name, "error", err)
	case err == nil && before != "":
		a.o.Logger.Info("a region answers again", "region", p.Name)
	}
	if err == nil {
		p.answered.Store(time.Now().UnixMilli())
		p.askFailure.Store(nil) // the region answers again; the next question, which would also clear the failure, may come much later
		_ = a.told(answer)
	}
}

// Agent.told is called with a message of another region. It adds what that region knows.
func (a *Agent) told(m message) error {
	if err := writeoff.Check(m.Entries); err != nil {
		return err
	}
	names := a.o.Policy().Names
	a.writeoffs.mu.Lock()
	defer a.writeoffs.mu.Unlock()
	a.mergeLocked(names, m.Entries)
	return nil
}

// answerTold answers another region.
func (a *Agent) answerTold(text []byte) (message, error) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return message{}, err
	}
	if err := a.told(m); err != nil {
		return message{}, err
	}
	return message{a.entries()}, nil
}

// Agent.lenders returns the regions that can lend units: those that are not written off, and the
// steward of each region that is written off, which lends that region's part.
func (a *Agent) lenders() []*Peer {
	entries, names := a.entries(), a.o.Policy().Names
	all := make([]*Peer, 0, len(a.o.Peers)+len(entries))
	for _, p := range a.o.Peers {
		if !entries[p.Name].Forgotten() {
			all = append(all, p)
		}
	}
	for name, e := range entries {
		switch at := slices.IndexFunc(a.o.Peers, func(p *Peer) bool { return p.Name == e.Steward }); {
		case !e.Forgotten() || !slices.Contains(names, name):
		case e.Steward == a.o.Name:
			all = append(all, stewardOf(name, &Peer{send: a.sendSelf}))
		case at >= 0:
			all = append(all, stewardOf(name, a.o.Peers[at]))
		}
	}
	return all
}

// stewardOf returns a lender of a region's part. Questions to it count as questions to the steward.
func stewardOf(name string, steward *Peer) *Peer {
	return &Peer{Name: name, send: func(ctx context.Context, path string, message any) (Loan, error) {
		switch m := message.(type) {
		case *Question:
			of := *m
			of.Of = name
			return steward.ask(ctx, &of)
		case *returned:
			of := *m
			of.Question.Of = name
			return steward.call(ctx, path, &of)
		}
		return Loan{}, errors.New("unreachable: a message of another kind")
	}}
}

// sendSelf answers a question of this region to itself as a steward.
func (a *Agent) sendSelf(ctx context.Context, _ string, message any) (Loan, error) {
	var l Loan
	var err error
	switch m := message.(type) {
	case *Question:
		l, err = a.lend(ctx, m)
	case *returned:
		l, err = a.takeBack(ctx, m)
	}
	if errors.Is(err, errNothing) {
		return Loan{}, nil
	}
	return l, err
}

// A lending says whose part a region lends, and under which key.
type lending struct {
	here  policy.Division
	entry writeoff.Entry
	read  time.Time
	q     *Question
}

// lendingOf returns whose part a question asks for, and the key of the counter to charge.
func (a *Agent) lendingOf(own *Policy, q *Question) (l lending, err error) {
	if q.Of == "" {
		l = lending{here: own.Here, q: q}
		l.entry, l.read = a.entry(a.o.Name)
		return l, nil
	}
	at := slices.Index(own.Names, q.Of)
	if at < 0 || at >= policy.RegionsMax {
		return lending{}, fmt.Errorf("%q is not a region of the policy", q.Of)
	}
	switch _, err := check(q, own.Namespace); {
	case err != nil:
		return lending{}, err
	case strings.HasPrefix(string(q.Key), own.Namespace+"~"):
		return lending{}, errors.New("the key is that of a part that a steward lends")
	}
	l.here = own.Here
	l.here.Self = uint8(at)
	l.entry, l.read = a.entry(q.Of)
	part := *q
	part.Key = writeoff.PartKey(own.Namespace, q.Key, q.Of, l.entry.Generation)
	l.q = &part
	return l, nil
}

// Agent.allowed reports whether this region may lend the part now.
func (a *Agent) allowed(ctx context.Context, own *Policy, l *lending) (bool, error) {
	switch {
	case a.o.Writeoffs == nil:
		return l.q.Of == "", nil
	case l.read.IsZero(), l.q.Of == "" && l.entry.Forgotten(), l.q.Of != "" && time.Since(l.read) > writeoff.FreshTime:
		return false, nil
	case l.q.Of == "" && l.entry.Generation == 0:
		return true, nil
	}
	part, err := partOf(l.here, own.Namespace, l.q)
	if err != nil {
		return false, err
	}
	look, err := take(ctx, a.o.Store, counter.Check{Key: l.q.Key, Limit: &part, Op: counter.OpLook, Bounds: l.q.Bounds})
	if err != nil {
		return false, err
	}
	if l.q.Of == "" {
		return !l.entry.Shuts(&part, l.q.Bounds, look.At), nil
	}
	return l.entry.Lends(a.o.Name, &part, l.q.Bounds, look.At), nil
}
