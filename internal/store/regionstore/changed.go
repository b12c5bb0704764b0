// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/survive"
)

// These are the bounds of the names of changed counters.
const (
	// MarkEvery is the longest time from a change of a counter until its name is written.
	MarkEvery   = 100 * time.Millisecond
	changedMax  = 1 << 14 // the number of names between two writes; further ones are left out
	marksMax    = 1 << 12 // the number of names in one command
	markTime    = 2 * time.Second
	lastMarking = time.Second // the time for the last write of a store that closes
)

// ChangedKey holds the set of the counters that have changed. TellerKey exists while an agent tells
// other regions about them. ReadKey holds the instant of the last change that an agent has read.
const (
	ChangedKey = "rl1:~gossip:{~gossip}"
	TellerKey  = ChangedKey + ":teller"
	ReadKey    = ChangedKey + ":read"
)

// ChangedMax is the greatest number of names in the set. If there are more, those that changed
// first are removed. UntoldMax is the bound while no agent tells other regions about the counters.
const (
	ChangedMax = 1 << 20
	UntoldMax  = 1 << 14
)

// MarkCall returns the keys and the arguments of the script that adds names to the set. The set
// keeps at most untoldMax of them while no agent tells other regions about them.
func MarkCall(names []string, untoldMax int) (keys []string, args []any) {
	args = append(make([]any, 0, 2+len(names)), ChangedMax, untoldMax)
	for _, name := range names {
		args = append(args, name)
	}
	return []string{ChangedKey, TellerKey, ReadKey}, args
}

// Changed is a counter that has changed.
type Changed struct {
	Key    string
	Limit  counter.Limit
	Bounds *counter.Bounds // the boundaries of a calendar window
}

// String returns the counter's name in the set, which [ParseChanged] reads.
func (c *Changed) String() string {
	var b strings.Builder
	b.WriteString(c.Limit.String())
	b.WriteByte('|')
	b.WriteString(c.BoundsText())
	b.WriteByte('|')
	b.WriteString(c.Key)
	return b.String()
}

// BoundsText returns the boundaries of a calendar window, with commas between them.
func (c *Changed) BoundsText() string {
	if c.Bounds == nil {
		return ""
	}
	b := c.Bounds
	return fmt.Sprintf("%d,%d,%d,%d", int64(b[0]), int64(b[1]), int64(b[2]), int64(b[3]))
}

// ParseChanged reads a name, which may come from another machine.
func ParseChanged(name string) (c Changed, err error) {
	limit, rest, _ := strings.Cut(name, "|")
	bounds, key, ok := strings.Cut(rest, "|")
	if c.Key = key; !ok {
		return c, errors.New("the name of a counter has a limit, boundaries and a key")
	}
	if c.Limit, err = counter.ParseLimit(limit); err != nil {
		return c, err
	}
	if bounds != "" {
		c.Bounds = new(counter.Bounds)
		words := strings.Split(bounds, ",")
		if len(words) != len(c.Bounds) {
			return c, fmt.Errorf("a calendar window has %d boundaries, not %d", len(c.Bounds), len(words))
		}
		for i, word := range words {
			at, err := strconv.ParseInt(word, 10, 64)
			if err != nil || at < 1 || at > boundMax || i > 0 && counter.Micros(at) <= c.Bounds[i-1] {
				return c, fmt.Errorf("%.30q is not a boundary of a calendar window", word)
			}
			c.Bounds[i] = counter.Micros(at)
		}
	}
	switch {
	case len(key) > KeyBytesMax:
		return c, fmt.Errorf("a key of %d bytes is too long: it may have %d", len(key), KeyBytesMax)
	case !strings.HasSuffix(key, counter.KeyTail(&c.Limit)):
		return c, fmt.Errorf("the key is not that of a counter with the limit %.60q", limit)
	case (c.Limit.Calendar() != 0) != (c.Bounds != nil):
		return c, errors.New("the bounds of a calendar window are missing, or there is none")
	}
	return c, nil
}

// boundMax is the latest boundary of a window that is accepted. Scripts cannot represent all
// greater numbers exactly.
const boundMax = 1 << 53

// changes collects the counters that have changed.
type changes struct {
	store   *Store
	started sync.Once
	dirty   chan struct{} // has a value while there are names

	mu    sync.Mutex
	names map[string]Changed // by their keys

	left, removed atomic.Uint64
	untold        atomic.Bool // whether no agent told other regions about counters at the last write, and a warning was logged
}

// changes.note collects the counters of a call that might have changed.
func (s *changes) note(checks []counter.Check, results []counter.Result, err error) {
	if s.store.agency.Mark == nil {
		return
	}
	for i := range checks {
		c := &checks[i]
		if !c.Gossip || c.Op != counter.OpTake && c.Op != counter.OpUpTo && c.Op != counter.OpForce || err == nil && results[i].Granted == 0 {
			continue
		}
		s.add(c)
	}
}

func (s *changes) add(c *counter.Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.names[string(c.Key)]; ok && known.Limit == *c.Limit {
		return
	}
	if len(s.names) >= changedMax || len(c.Key) > KeyBytesMax {
		s.left.Add(1)
		return
	}
	changed := Changed{Key: string(c.Key), Limit: *c.Limit}
	if c.Bounds != nil {
		bounds := *c.Bounds
		changed.Bounds = &bounds
	}
	if s.names == nil {
		s.names = make(map[string]Changed)
		s.started.Do(func() { survive.Go(&s.store.running, s.store.logger, s.run) })
		s.wake()
	}
	s.names[changed.Key] = changed
}

// changes.run writes the names until the store is closed.
func (s *changes) run() {
	for {
		select {
		case <-s.store.ctx.Done():
			s.write(lastMarking)
			return
		case <-s.dirty:
		}
		pause := time.NewTimer(MarkEvery)
		select {
		case <-s.store.ctx.Done():
		case <-pause.C:
			s.write(markTime)
		}
		pause.Stop()
	}
}

// changes.write writes the names. After an error it keeps them for the next attempt.
func (s *changes) write(atMost time.Duration) {
	s.mu.Lock()
	names := s.names
	s.names = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	texts := make([]string, 0, len(names))
	for _, changed := range names {
		texts = append(texts, changed.String())
	}
	for some := range slices.Chunk(texts, marksMax) {
		if !s.mark(ctx, some) {
			s.keep(names)
			return
		}
	}
}

// changes.mark writes some names, and returns false if that failed.
func (s *changes) mark(ctx context.Context, names []string) bool {
	removed, told, err := s.store.agency.Mark(ctx, names)
	s.removed.Add(uint64(removed))
	switch untold := err != nil || !told; {
	case s.store.ctx.Err() != nil:
	case untold && !s.untold.Swap(true):
		s.store.logger.Warn("no agent of the region tells the others what it counts, so each region admits the whole limit: start penstock region, "+
			"and let this user of Redis run scripts on its keys", "key", ChangedKey, "error", err)
	case !untold && s.untold.Swap(false):
		s.store.logger.Info("an agent of the region tells the others again what it counts")
	}
	return err == nil
}

// changes.keep adds names that could not be written to those of the next attempt.
func (s *changes) keep(names map[string]Changed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = make(map[string]Changed)
	}
	for key, changed := range names {
		if _, ok := s.names[key]; ok {
			continue
		}
		if len(s.names) >= changedMax {
			s.left.Add(1)
			continue
		}
		s.names[key] = changed
	}
	s.wake()
}

// changes.wake makes changes.run write the names soon.
func (s *changes) wake() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// ChangesLeft returns two numbers: how many times a changed counter was left out because too many
// had changed, and how many names were removed although this region's agent may not have read them.
func (s *Store) ChangesLeft() (left, removed uint64) {
	return s.changes.left.Load(), s.changes.removed.Load()
}
