// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile/lint"
	"github.com/penstock/penstock/internal/published/follow"
)

// Front is one configuration of the filter: a policy in force and the store in which it counts. A
// Front is safe for concurrent use.
type Front struct {
	process   *Process
	settings  *Settings
	store     *sharedStore
	policy    *live.Policy
	origin    follow.Origin // of a published policy and its candidate; nil until it is opened
	candidate *candidate    // nil if no policy is tried out
	pair      atomic.Pointer[pair]
	release   func()       // of the console; nil without operators
	unreport  func() error // nil without reports
	unsend    func() error // nil unless metrics are sent

	mu      sync.Mutex
	under   int // requests that wait
	closing bool
	idle    chan struct{} // closed as soon as closing is set and no request waits
}

// Open opens a configuration: it puts the policy into force and follows its source.
func (p *Process) Open(s *Settings) (*Front, error) {
	shared, err := p.openStore(s)
	if err != nil {
		return nil, err
	}
	f := &Front{process: p, settings: s, store: shared, idle: make(chan struct{})}
	if err := f.openPolicy(); err != nil {
		return nil, errors.Join(err, p.closeStore(shared))
	}
	limit, err := parseMemory(s.MemoryLimit)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p.memory.hold(f, limit)
	if err := f.open(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Front.open begins to serve operators, to send metrics and to report decisions. It also announces
// this process to the other nodes that use the store.
func (f *Front) open() (err error) {
	p := f.process
	p.mu.Lock()
	p.fronts = append(p.fronts, f)
	p.mu.Unlock()
	if p.validates {
		return nil
	}
	if f.settings.Admin != nil {
		if f.release, err = p.console.Claim(f.settings.Admin, func() *operator.API { return p.operators(f.store) }); err != nil {
			return err
		}
	}
	if f.unsend, err = p.send(f.settings.OTLP); err != nil {
		return err
	}
	// This is the last of the steps that can fail, because it may redirect a feed that other
	// configurations share.
	if f.unreport, err = p.reports.open(f.settings); err != nil {
		return err
	}
	f.store.join()
	return nil
}

// leaveProcess ends what open began, except for metrics and reports.
func (f *Front) leaveProcess() {
	if f.release != nil {
		f.release()
	}
	f.process.metrics.Policies.Hide(f)
	f.process.mu.Lock()
	defer f.process.mu.Unlock()
	f.process.fronts = slices.DeleteFunc(f.process.fronts, func(one *Front) bool { return one == f })
}

// openPolicy puts the policy into force, and begins to try out the candidate if there is one.
func (f *Front) openPolicy() (err error) {
	source := live.File(f.settings.Policy)
	switch p, _ := f.settings.published(); {
	case p != nil:
		if source, err = f.publishedSource(false); err != nil {
			return err
		}
	case f.settings.Policy == "":
		source = live.Fixed(f.settings.words)
	}
	if f.policy, err = live.Open(f.liveOptions(source)); err != nil {
		return err
	}
	f.show(f.policy.Current())
	if err = f.policy.Follow(); err == nil {
		err = f.openCandidate()
	}
	if err != nil {
		err = errors.Join(err, f.policy.Close())
		// after Close, because an edit of an open policy could show it again
		f.process.metrics.Policies.Hide(f)
	}
	return err
}

// liveOptions returns the options with which the front keeps a policy in force.
func (f *Front) liveOptions(source live.Source) live.Options {
	return live.Options{Source: source, Fronts: []lint.Front{lint.FrontEnvoy}, Region: f.settings.Region, Verifiers: f.process.verifiers, Metrics: f.process.metrics,
		Logger: f.process.logger, Complete: f.settings.fillDefaults, Prepare: f.prepare, Edited: f.process.metrics.Reloaded, Changed: f.showChange}
}

// Front.showChange shows the version named now in the metrics, if it replaces another one. When the
// first version is loaded, the field named policy is still nil, so showChange does nothing. Once
// openPolicy has set that field, it calls show for the first version.
func (f *Front) showChange(before, now *live.Version) {
	if before != nil {
		f.show(now)
	}
}

// Front.show shows a version in the metrics.
func (f *Front) show(v *live.Version) {
	f.process.metrics.Policies.Show(f, v.Document, f.policy.Err)
}

// Front.prepare computes what a version of the policy reads from requests, and keeps it with the
// version.
func (f *Front) prepare(v *live.Version) error {
	source, err := v.Document.Policy()
	if err != nil {
		return err
	}
	reads := exchange.ReadsOf(core.InputsOf(&source))
	if c := v.Candidate(); c != nil {
		reads = exchange.ReadsOf(reads.Union(readsOf(c).Inputs))
	}
	if err := f.process.checkAttributes(reads.Attrs, v.Document); err != nil {
		return err
	}
	v.Front = &reads
	return nil
}

// readsOf returns what a version of the policy reads from a request.
func readsOf(v *live.Version) *exchange.Reads { return v.Front.(*exchange.Reads) }

// Denies reports whether on_error of the policy denies requests for which the rules cannot decide.
func (f *Front) Denies() bool { return f.policy.Current().Ruleset.OnError() == counter.OnErrorDeny }

// Reload loads the policy file and the file of the shadow policy now. If a file is rejected, the
// error has the reasons.
func (f *Front) Reload() error {
	var problems []error
	for _, p := range f.policies() {
		problems = append(problems, p.Reload())
	}
	return errors.Join(problems...)
}

// Front returns the front of a request.
func (s *Stream) Front() *Front { return s.front }

// Announce makes goroutines ask the store about the requests that have begun to wait since the last
// call. See [Waker.Announces].
func (f *Front) Announce() { f.store.asker.announce() }

// Front.enter notes that a request waits.
func (f *Front) enter() {
	f.mu.Lock()
	f.under++
	f.mu.Unlock()
}

// Front.leave notes that a request no longer waits.
func (f *Front) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.under--; f.under == 0 && f.closing {
		close(f.idle)
	}
}

// Close waits for the last request, and closes the front. Unused leased units are returned to the
// store.
func (f *Front) Close() error {
	f.mu.Lock()
	f.closing = true
	if f.under == 0 {
		close(f.idle)
	}
	f.mu.Unlock()
	problems := []error{f.policy.Unfollow()}
	f.leaveProcess()
	<-f.idle
	f.process.memory.release(f)
	problems = append(problems, f.candidate.close(), f.policy.Close(), f.process.closeStore(f.store))
	for _, end := range []func() error{f.unreport, f.unsend} { // after the units were returned
		if end != nil {
			problems = append(problems, end())
		}
	}
	return errors.Join(problems...)
}

func micros(t time.Time) counter.Micros { return counter.Micros(t.UnixMicro()) }
