// SPDX-License-Identifier: Apache-2.0

package live

import (
	"github.com/penstock/penstock/internal/policyfile"
)

// Source provides a policy.
type Source interface {
	// Load returns the current policy. Each call returns a new document, which the caller may
	// modify.
	Load() (*policyfile.Document, error)
	// Follow calls changed(...) after each change of the policy, with the new document or with an
	// error. It never calls the function concurrently or before Follow returns. It returns an error
	// if the source cannot be followed.
	Follow(changed func(*policyfile.Document, error)) (Follower, error)
	// String returns the name of the source for logs, such as a file path, or "" if it has none.
	String() string
}

// Follower controls a source that is being followed. Its methods must not be called from the
// function named changed.
type Follower interface {
	// Reload loads the policy now and calls changed(...), even if the policy is still the same. It
	// returns the error that it has passed to changed(...).
	Reload() error
	// Close stops the calls of changed(...). When Close returns, no call is under way.
	Close() error
}

// Keeper is a source that stores the documents that came into force, so that a process can also
// start while the source itself does not answer.
type Keeper interface {
	// Keep is called after each change whose document is in force, even if the document equals the
	// previous one. The document is the one that the source passed on.
	Keep(*policyfile.Document)
}

// File returns a source for the policy file at the given path.
func File(path string) Source { return file(path) }

type file string

func (f file) Load() (*policyfile.Document, error) { return policyfile.Load(string(f)) }

func (f file) Follow(changed func(*policyfile.Document, error)) (Follower, error) {
	watcher, err := policyfile.Watch(string(f), changed)
	if err != nil {
		return nil, err // not watcher, because a nil *Watcher would be a non-nil Follower
	}
	return watcher, nil
}

func (f file) String() string { return string(f) }

// Fixed returns a source whose document never changes.
func Fixed(d *policyfile.Document) Source { return fixed{d} }

type fixed struct{ document *policyfile.Document }

func (f fixed) Load() (*policyfile.Document, error) { return f.document, nil }

func (fixed) Follow(func(*policyfile.Document, error)) (Follower, error) { return fixedFollower{}, nil }

func (fixed) String() string { return "" }

// fixedFollower is the follower of a source that never changes.
type fixedFollower struct{}

func (fixedFollower) Reload() error { return nil }
func (fixedFollower) Close() error  { return nil }
