// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// Options configures a policy. Source, Verifiers, Metrics and Logger are required.
type Options struct {
	Source Source
	// First is the initial document, already completed. If it is nil, Open loads it from the
	// source.
	First *policyfile.Document
	// Fronts enforce the policy. A policy is rejected if it uses a feature that one of these fronts
	// lacks.
	Fronts []lint.Front
	// FormerMin is the number of replaced versions to keep. Versions that were replaced less than
	// FormerAge ago are also kept, up to FormerMax in all.
	FormerMin, FormerMax int
	FormerAge            time.Duration
	// Region is the region of this process, or "". A policy with regions is compiled for this
	// region, and is rejected if it does not have this region.
	Region string
	// Verifiers opens the verifiers of credentials. Metrics counts requests by rule and outcome.
	Verifiers *Verifiers
	Metrics   *metrics.Metrics
	Logger    *slog.Logger

	// Open and each edit call the functions below, never concurrently. Each function may be nil. An
	// error from one of the first three rejects the version.

	// Complete sets fields that the source leaves to the front, such as the name. Complete is
	// called for the document and for its candidate.
	Complete func(*policyfile.Document) error
	// Prepare sets the version's Front. Prepare is called for the candidate first.
	Prepare func(*Version) error
	// Admit is called last. It can record the version, which comes into force when Admit returns
	// nil.
	Admit func(next *Version) error
	// Changed is called after a version has come into force. The argument before is the version
	// that was in force until then, and nil for the first version.
	Changed func(before, now *Version)
	// Edited is called for each accepted or rejected edit, with the name of the policy. Edited is
	// not called if the document has not changed.
	Edited func(policy string, accepted bool)
}

// Policy is a policy in force. It is safe for concurrent use.
type Policy struct {
	options  Options
	versions atomic.Pointer[[]*Version] // current version first
	rejected atomic.Pointer[error]      // the reason why the last edit was rejected, or nil

	editing  sync.Mutex // the lock is held during an edit
	mu       sync.Mutex // guards follower
	follower Follower
}

// Open loads and compiles the policy and puts it into force. It does not follow the source yet.
func Open(o Options) (*Policy, error) {
	p := &Policy{options: o}
	document := o.First
	if document == nil {
		var err error
		if document, err = p.load(); err != nil {
			return nil, err
		}
	}
	first, err := o.compile(document)
	if err != nil {
		return nil, err
	}
	if o.Admit != nil {
		if err := o.Admit(first); err != nil {
			return nil, errors.Join(err, first.close())
		}
	}
	p.versions.Store(&[]*Version{first})
	if o.Changed != nil {
		o.Changed(nil, first)
	}
	p.warn(first)
	return p, nil
}

// Policy.load loads the document and completes it.
func (p *Policy) load() (d *policyfile.Document, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			d, err = nil, &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
		}
	}()
	if d, err = p.options.Source.Load(); err != nil {
		return nil, err
	}
	return d, CompleteAll(d, p.options.Complete)
}

// Current returns the version that decides new requests.
func (p *Policy) Current() *Version { return (*p.versions.Load())[0] }

// Known returns the current version and the replaced versions that are kept, the latest first.
func (p *Policy) Known() []*Version { return *p.versions.Load() }

// Of returns the version with the given ID, or nil if it is not known.
func (p *Policy) Of(id string) *Version {
	for _, v := range *p.versions.Load() {
		if v.ID == id {
			return v
		}
	}
	return nil
}

// Source returns the name of the source.
func (p *Policy) Source() string { return p.options.Source.String() }

// Err returns the error with which the last edit was rejected, or nil if that edit is in force. If
// the front panicked after the edit came into force, Err returns that panic as an error.
func (p *Policy) Err() error {
	if err := p.rejected.Load(); err != nil {
		return *err
	}
	return nil
}

// Follow begins to follow the source. Before it returns, it applies edits made since the policy was
// loaded. A rejected edit is not an error of Follow.
func (p *Policy) Follow() error {
	p.options.Metrics.Followed(p.Current().Document.Name)
	follower, err := p.options.Source.Follow(p.handleEdit)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.follower = follower
	p.mu.Unlock()
	_ = follower.Reload() // a rejection is logged
	return nil
}

// Unfollow stops following the source. The current version remains in force.
func (p *Policy) Unfollow() error {
	p.mu.Lock()
	follower := p.follower
	p.follower = nil
	p.mu.Unlock()
	if follower == nil {
		return nil
	}
	return follower.Close()
}

// Reload loads the policy from its source now, and returns the error if the policy is rejected. If
// the source is not watched, Reload does nothing.
func (p *Policy) Reload() error {
	p.mu.Lock()
	follower := p.follower
	p.mu.Unlock()
	if follower == nil {
		return nil
	}
	if err := follower.Reload(); err != nil {
		return err
	}
	return p.Err()
}

// Close stops following the source and closes the verifiers. Requests under way continue to use the
// last keys. A second call does nothing.
func (p *Policy) Close() error {
	problems := []error{p.Unfollow()}
	p.editing.Lock()
	defer p.editing.Unlock()
	for _, v := range p.Known() {
		problems = append(problems, v.close())
	}
	return errors.Join(problems...)
}

// handleEdit handles a change reported by the source. It recovers from any panic that the document
// causes.
func (p *Policy) handleEdit(d *policyfile.Document, err error) {
	p.editing.Lock()
	defer p.editing.Unlock()
	before := p.Current()
	var next *Version
	var changes lint.Changes
	if err == nil {
		next, changes, err = p.compileReplacement(before, d)
	}
	if err != nil {
		p.rejectEdit(before, err)
		return
	}
	if keeper, ok := p.options.Source.(Keeper); ok {
		defer keeper.Keep(d)
	}
	mended := p.rejected.Swap(nil) != nil
	logger := p.sourceLogger()
	if next == nil {
		if mended {
			logger.Info("the policy file has the policy in force again", "policy", before.Document.Name, "version", before.ID)
		}
		return
	}
	p.install(next)
	if t := next.trial; t != nil {
		logger = logger.With("candidate", t.candidate.ID, "clients", fmt.Sprintf("%g%%", float64(t.share)/100))
	} else if before.trial != nil {
		logger = logger.With("candidate", "none")
	}
	logger.Info("the edited policy file is in force", "policy", next.Document.Name, "version", next.ID,
		"changes", changes.String())
	p.announceVersion(before, next)
}

// compileReplacement compiles the version that replaces the one in the parameter named before. It
// returns nil if the document has not changed.
func (p *Policy) compileReplacement(before *Version, d *policyfile.Document) (next *Version, changes lint.Changes, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
		}
		if err != nil && next != nil {
			err = errors.Join(err, next.close())
		}
	}()
	o := &p.options
	if err = CompleteAll(d, o.Complete); err != nil {
		return nil, changes, err
	}
	if before.isOf(d) {
		return nil, changes, nil
	}
	if next, err = o.compile(d); err != nil {
		return nil, changes, err
	}
	changes = lint.Diff(before.Document, d)
	if o.Admit != nil {
		err = o.Admit(next)
	}
	return next, changes, err
}

// Policy.install makes a version current. It drops versions that were replaced long ago, and a
// former version with the same ID.
func (p *Policy) install(next *Version) {
	before, now, o := p.Known(), time.Now(), &p.options
	before[0].replaced = now
	known := make([]*Version, 1, len(before)+1)
	known[0] = next
	var forgotten []*Version
	for _, v := range before {
		most := o.FormerMin
		if now.Sub(v.replaced) < o.FormerAge {
			most = o.FormerMax
		}
		if v.ID == next.ID || len(known) > most {
			forgotten = append(forgotten, v)
			continue
		}
		known = append(known, v)
	}
	p.versions.Store(&known)
	for _, v := range slices.Backward(forgotten) {
		_ = v.close() // requests that began with these versions use the last keys
	}
}

// announceVersion informs the front and logs warnings after a version has come into force.
func (p *Policy) announceVersion(before, now *Version) {
	defer func() {
		if reason := recover(); reason != nil {
			var err error = &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
			p.rejected.Store(&err)
			p.sourceLogger().Error("a panic after an edit, which is in force", "reason", reason, "stack", string(debug.Stack()))
		}
	}()
	if p.options.Edited != nil {
		p.options.Edited(now.Document.Name, true)
	}
	if p.options.Changed != nil {
		p.options.Changed(before, now)
	}
	p.warn(now)
}

// rejectEdit keeps the current version in force and records why the edit was rejected.
func (p *Policy) rejectEdit(before *Version, err error) {
	p.rejected.Store(&err)
	if p.options.Edited != nil {
		p.options.Edited(before.Document.Name, false)
	}
	logger := p.sourceLogger()
	if panicked, ok := errors.AsType[*policyfile.PanicError](err); ok {
		logger = logger.With("stack", string(panicked.Stack))
	}
	logger.Error("the edited policy file is rejected; the previous policy stays in force", "version", before.ID, "error", err)
}

// Policy.warn logs the warnings about a version that comes into force.
func (p *Policy) warn(v *Version) {
	logger := p.options.Logger.With("policy", v.Document.Name)
	said := map[string]bool{}
	for _, d := range v.Document.All() {
		lint.Warn(d, func(line string) {
			if !said[line] {
				said[line] = true
				logger.Warn(line)
			}
		})
	}
}

// sourceLogger returns the logger with the name of the source attached.
func (p *Policy) sourceLogger() *slog.Logger {
	if name := p.Source(); name != "" {
		return p.options.Logger.With("file", name)
	}
	return p.options.Logger
}
