// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// Front is one configuration of the filter: a policy in force and the store in which it counts. It
// is safe for concurrent use.
type Front struct {
	process  *Process
	settings *Settings
	store    *sharedStore
	policy   *live.Policy
	streams  sync.Pool // of *Stream

	mu      sync.Mutex
	under   int // requests that wait
	closing bool
	idle    chan struct{} // closed when closing and no request waits
}

// Open puts the policy of a configuration into force, and follows its file.
func (p *Process) Open(s *Settings) (*Front, error) {
	shared, err := p.openStore(s)
	if err != nil {
		return nil, err
	}
	f := &Front{process: p, settings: s, store: shared, idle: make(chan struct{})}
	f.streams.New = func() any { return &Stream{front: f, ctx: context.Background()} }
	if err := f.openPolicy(); err != nil {
		return nil, errors.Join(err, p.closeStore(shared))
	}
	return f, nil
}

func (f *Front) openPolicy() (err error) {
	source := live.File(f.settings.Policy)
	if f.settings.Policy == "" {
		source = live.Fixed(f.settings.words)
	}
	f.policy, err = live.Open(live.Options{Source: source, Fronts: []lint.Front{lint.FrontEnvoy}, Region: f.settings.Region, Verifiers: f.process.verifiers,
		Metrics: f.process.metrics, Logger: f.process.logger, Complete: f.settings.complete, Prepare: f.prepare,
		Edited: f.process.metrics.Reloaded})
	if err != nil {
		return err
	}
	if err := f.policy.Follow(); err != nil {
		return errors.Join(err, f.policy.Close())
	}
	return nil
}

// prepare computes what the front keeps with a version of the policy.
func (f *Front) prepare(v *live.Version) error {
	source, err := v.Document.Policy()
	if err != nil {
		return err
	}
	reads := exchange.ReadsOf(core.InputsOf(&source))
	if err := checkAttributes(reads.Attrs, v.Document); err != nil {
		return err
	}
	v.Front = &reads
	return nil
}

// readsOf returns what a version of the policy reads from a request.
func readsOf(v *live.Version) *exchange.Reads { return v.Front.(*exchange.Reads) }

// Denies reports whether on_error of the policy denies requests that cannot be decided by rules.
func (f *Front) Denies() bool { return f.policy.Current().Ruleset.OnError() == counter.OnErrorDeny }

// Reload loads the policy file now, and returns why it is rejected.
func (f *Front) Reload() error { return f.policy.Reload() }

// enter notes that a request waits.
func (f *Front) enter() {
	f.mu.Lock()
	f.under++
	f.mu.Unlock()
}

// leave notes that a request no longer waits.
func (f *Front) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.under--; f.under == 0 && f.closing {
		close(f.idle)
	}
}

// Close ends the front after the last of its requests. It returns unused units to the store.
func (f *Front) Close() error {
	f.mu.Lock()
	f.closing = true
	if f.under == 0 {
		close(f.idle)
	}
	f.mu.Unlock()
	problems := []error{f.policy.Unfollow()}
	<-f.idle
	return errors.Join(append(problems, f.policy.Close(), f.process.closeStore(f.store))...)
}

func micros(t time.Time) counter.Micros { return counter.Micros(t.UnixMicro()) }
