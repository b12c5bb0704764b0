// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// pace holds the time settings of a [Watcher].
type pace struct {
	// the file is read after this time without events, because editors write in several steps
	quiet   time.Duration
	longest time.Duration // the file is read after this time even if events continue
	absent  time.Duration // how long a file can be missing or empty before that is an error
	// interval of reading the file without an event, because network file systems send none
	poll  time.Duration
	alone time.Duration // replaces poll if the kernel grants no watch
	deaf  bool          // set by tests: behave as if the kernel granted no watch
}

var paceDefault = pace{quiet: 100 * time.Millisecond, longest: time.Second, absent: 2 * time.Second, poll: 30 * time.Second,
	alone: 2 * time.Second}

// Watcher reports changes of a policy file's content. A Watcher detects a write, a rename of
// another file over it (by editors), and a change of a symbolic link on its path (by Kubernetes,
// with ..data). A Watcher's methods may be called from any goroutine, but not from onChange, where
// they would deadlock.
type Watcher struct {
	path     string
	onChange func(*Document, error)
	pace     pace
	notify   *fsnotify.Watcher // nil if the kernel grants no watch
	route    route
	reload   chan chan error
	done     chan struct{}
	stopped  chan struct{}
	close    sync.Once

	// Used by the watcher's goroutine only:
	last      [sha256.Size]byte // the hash of the content that was last reported
	told      bool              // the missing file was reported
	goneSince time.Time         // zero if the file is present
}

// Watch calls onChange with the policy, or with an error, whenever the content of the file changes.
// The calls come from a separate goroutine, never concurrently, and not for the current content. To
// miss no change, call Watch first and load the file afterwards. A file that is missing briefly is
// not an error; a file that remains missing is reported once. If reading the file or onChange
// panics, onChange is called with a [*PanicError]. Watch returns an error if the file's extension
// is unknown or the file cannot be read.
func Watch(path string, onChange func(*Document, error)) (*Watcher, error) {
	return watch(path, paceDefault, onChange)
}

func watch(path string, pace pace, onChange func(*Document, error)) (*Watcher, error) {
	if _, ok := syntax.FormatOf(path); !ok {
		return nil, badExtension(path)
	}
	w := &Watcher{path: path, onChange: onChange, pace: pace, reload: make(chan chan error),
		done: make(chan struct{}), stopped: make(chan struct{})}
	w.listen()
	w.follow()
	data, err := readFile(path)
	if err != nil {
		return nil, errors.Join(err, w.deafen())
	}
	w.last = sha256.Sum256(data)
	go w.run()
	return w, nil
}

// Watcher.listen subscribes to the kernel's file events. Linux grants 128 such subscriptions to all
// processes of a user together, which on a Kubernetes node means to all containers. If no
// subscription is left, the file is polled instead: an edit takes effect later, but the proxy
// starts.
func (w *Watcher) listen() {
	if !w.pace.deaf {
		if notify, err := fsnotify.NewWatcher(); err == nil {
			w.notify = notify
			return
		}
	}
	w.pace.poll = w.pace.alone
}

func (w *Watcher) deafen() error {
	if w.notify == nil {
		return nil
	}
	return w.notify.Close()
}

// eventChannels returns the channels of file events and of errors. Both channels are nil if the
// file is polled.
func (w *Watcher) eventChannels() (events chan fsnotify.Event, lost chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

// Reload reads the file now and calls onChange even if nothing changed. Reload returns the error
// given to onChange.
func (w *Watcher) Reload() error {
	answer := make(chan error, 1)
	select {
	case w.reload <- answer:
		return <-answer
	case <-w.stopped:
		return fmt.Errorf("policy file %q is no longer watched", w.path)
	}
}

// Close stops the watcher. After Close returns, onChange is not called again. A second call does
// nothing.
func (w *Watcher) Close() error {
	w.close.Do(func() { close(w.done) })
	<-w.stopped
	return nil
}

func (w *Watcher) run() {
	defer close(w.stopped)
	defer w.deafen()
	events, lost := w.eventChannels()
	poll := time.NewTicker(w.pace.poll)
	defer poll.Stop()
	due := time.NewTimer(w.pace.poll)
	due.Stop()
	var first time.Time // the first event since the file was read
	for {
		select {
		case <-w.done:
			return
		case event := <-events:
			// an event of a watched folder itself counts too: the folder was moved or removed
			if !w.route.watches(event.Name) && !w.route.folders[event.Name] {
				continue
			}
			now := time.Now()
			if first.IsZero() {
				first = now
			}
			due.Reset(min(w.pace.quiet, w.pace.longest-now.Sub(first)))
		case <-lost: // events were lost
			due.Reset(w.pace.quiet)
		case <-poll.C:
			due.Reset(0)
		case <-due.C:
			first = time.Time{}
			soon := false
			_ = w.guard(func() error { // onChange has been called with the error
				soon = w.look(time.Now())
				return nil
			})
			if soon {
				due.Reset(w.pace.absent / 4)
			}
		case answer := <-w.reload:
			answer <- w.guard(func() error {
				w.follow()
				return w.callOnChange(readFile(w.path))
			})
		}
	}
}

// Watcher.follow watches the folders on the file's current path.
func (w *Watcher) follow() {
	before := w.route
	w.route = routeTo(w.path)
	if w.notify == nil {
		return
	}
	for folder := range w.route.folders {
		// A folder that was replaced by another one with the same name has lost its watch. Adding a
		// watch twice has no effect. If a folder cannot be watched, polling detects changes.
		_ = w.notify.Add(folder)
	}
	for folder := range before.folders {
		if !w.route.folders[folder] {
			_ = w.notify.Remove(folder) // the folder might no longer exist, nor its watch
		}
	}
}

// Watcher.look reads the file and reports its content if it changed. The result is true if the file
// should be read again shortly.
func (w *Watcher) look(now time.Time) (soon bool) {
	w.follow()
	data, err := readFile(w.path)
	if err == nil && len(bytes.TrimSpace(data)) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.goneSince = time.Time{}
		if err != nil && !w.told || err == nil && (w.told || sha256.Sum256(data) != w.last) {
			w.callOnChange(data, err)
		}
		return false
	}
	switch {
	case w.told:
		return false
	case w.goneSince.IsZero():
		w.goneSince = now
		return true
	case now.Sub(w.goneSince) < w.pace.absent:
		return true
	}
	w.callOnChange(data, err)
	w.told = true
	return false
}

// PanicError reports that the content of a file caused a panic, while it was read or in onChange.
// The panic is a bug in this program. The panic is reported as an error because an edit must not
// crash a process that has a valid policy in force.
type PanicError struct {
	Reason any
	Stack  []byte
}

// Error describes the panic and what to do.
func (e *PanicError) Error() string {
	return fmt.Sprintf("a panic, which is an error of this program and not of the file; please report it with the stack: %v", e.Reason)
}

// Watcher.guard runs a step of the watcher. If the step panics, guard reports the panic to onChange
// and returns it as an error. If onChange panics, too, guard does not report that panic to
// onChange.
func (w *Watcher) guard(step func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = &PanicError{Reason: reason, Stack: debug.Stack()}
			defer func() { _ = recover() }()
			w.onChange(nil, err)
		}
	}()
	return step()
}

// callOnChange decodes the content of the file and calls onChange with the result. If the file
// could not be read, it calls onChange with the argument err. callOnChange returns the error that
// onChange received.
func (w *Watcher) callOnChange(data []byte, err error) error {
	var d *Document
	if err == nil {
		w.last = sha256.Sum256(data)
		d, err = decodeFile(w.path, data)
		w.told = false
	} else {
		w.told = true
	}
	w.onChange(d, err)
	return err
}
