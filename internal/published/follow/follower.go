// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/survive"
)

// follower makes a Source follow its policy, in two goroutines: one waits for announcements, and
// the other reads the policy.
type follower struct {
	source  *Source
	changed func(*policyfile.Document, error)
	wake    chan struct{} // receives a value after a change was announced
	reload  chan chan error
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Follow implements [live.Source].
func (s *Source) Follow(changed func(*policyfile.Document, error)) (live.Follower, error) {
	f := &follower{source: s, changed: changed, wake: make(chan struct{}, 1), reload: make(chan chan error)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	survive.Go(&f.running, f.source.o.Logger, f.listen)
	survive.Go(&f.running, f.source.o.Logger, f.run)
	return f, nil
}

// follower.listen makes follower.run read the policy when a change is announced, and when a
// subscription begins.
func (f *follower) listen() {
	wake := func() {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	for f.ctx.Err() == nil {
		f.source.o.Origin.Listen(f.ctx, wake)
		select {
		case <-f.ctx.Done():
		case <-time.After(about(listenAgain)):
		}
	}
}

// about returns a random duration that differs from span by at most a tenth of it.
func about(span time.Duration) time.Duration { return span - span/10 + rand.N(span/5) }

func (f *follower) run() {
	every := cmp.Or(f.source.o.Every, lookEvery)
	again := againFirst
	due := time.NewTimer(about(every))
	defer due.Stop()
	for {
		err := error(nil)
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
			err = f.look(false)
		case <-due.C:
			err = f.look(false)
		case answer := <-f.reload:
			if err = f.look(true); f.source.o.Trial {
				answer <- nil // the source of the policy in force reports the error
			} else {
				answer <- err
			}
		}
		pause := every
		if _, away := errors.AsType[*AwayError](err); away {
			pause = min(again, every)
			again = min(2*again, every)
		} else {
			again = againFirst
		}
		due.Reset(about(pause))
	}
}

// follower.look reads the policy. It delivers a new policy, or the reason why the policy is
// rejected. If always is true, it also delivers a result that is not new. If the origin does not
// answer, it delivers nothing.
func (f *follower) look(always bool) error {
	s := f.source
	s.mu.Lock()
	found, err := s.look(f.ctx)
	tell := false
	switch _, away := errors.AsType[*AwayError](err); {
	case away:
	case errors.Is(err, ErrNone):
		if !s.missing && !s.o.Trial {
			s.o.Logger.Warn("there is no published policy any more; the one in force stays", "policy", s.o.Policy, "origin", s.String())
		}
		s.missing = true
	default:
		if found == nil { // the origin does not give the text; the kind of the error stands for it
			found = &handed{text: []byte("denied: " + kindOf(err))}
		}
		tell = always || s.said != sha256.Sum256(found.text)
		if s.remember(found); err != nil && s.o.Trial {
			tell = false // the source of the policy in force reports the error
		}
	}
	s.mu.Unlock()
	if tell && err == nil {
		f.changed(found.document, nil)
	} else if tell {
		f.changed(nil, err)
	}
	return err
}

// Reload implements [live.Follower]. For a trial, it returns no error of the origin.
func (f *follower) Reload() error {
	answer := make(chan error, 1)
	select {
	case f.reload <- answer:
	case <-f.ctx.Done():
		return errors.New("the policy is no longer followed")
	}
	select {
	case err := <-answer:
		return err
	case <-f.ctx.Done():
		return errors.New("the policy is no longer followed")
	}
}

// Close implements [live.Follower].
func (f *follower) Close() error {
	f.cancel()
	f.running.Wait()
	return nil
}
