// SPDX-License-Identifier: Apache-2.0

package policy

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
)

// pace is how a [Watcher] goes about its work.
type pace struct {
	quiet   time.Duration // how long nothing must happen before the file is read: editors write in several steps
	longest time.Duration // when it is read all the same
	absent  time.Duration // how long a file may be gone, or empty, before that is an error
	poll    time.Duration // how often it is read although nothing was told: network file systems tell nothing
	alone   time.Duration // the same where the kernel has no watch to give
	deaf    bool          // there is none to be had, as a test has it
}

var paceDefault = pace{quiet: 100 * time.Millisecond, longest: time.Second, absent: 2 * time.Second, poll: 30 * time.Second,
	alone: 2 * time.Second}

// Watcher tells when the content of a policy file changes: when it is written, when another file is renamed over it, as
// editors do, and when one of the symbolic links that lead to it is swapped, as Kubernetes does with ..data. Its methods
// may be called from anywhere but from its own onChange, which would wait for itself.
type Watcher struct {
	path     string
	onChange func(*Document, error)
	pace     pace
	notify   *fsnotify.Watcher // nil where the kernel has no watch to give
	route    route
	reload   chan chan error
	done     chan struct{}
	stopped  chan struct{}
	close    sync.Once

	// Of the goroutine:
	last      [sha256.Size]byte // what was told last
	told      bool              // that the file is gone
	goneSince time.Time         // zero if it is there
}

// Watch calls onChange with the policy, or with what is wrong with it, whenever the content of the file becomes another
// one. It calls it from one goroutine of its own, never twice at once, and not for the content that the file has now:
// watch first and load then, so that nothing is missed. A file that is gone for a moment is no error; one that stays away
// is told once. Where reading the file or onChange panics, onChange is told a [*PanicError]. The error of Watch says why the file
// cannot be watched.
func Watch(path string, onChange func(*Document, error)) (*Watcher, error) {
	return watch(path, paceDefault, onChange)
}

func watch(path string, pace pace, onChange func(*Document, error)) (*Watcher, error) {
	if _, ok := FormatOf(path); !ok {
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

// listen has the kernel tell of changes. Linux gives 128 such watches to all processes of a user, on a node to all its
// containers. Where there is none left the file is read every now and then instead: an edit takes longer, and no proxy
// fails to start.
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

// heard returns where the kernel tells of changes, and of lost ones; nil where it does not.
func (w *Watcher) heard() (events chan fsnotify.Event, lost chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

// Reload reads the file now and calls onChange, whether it changed or not. It returns the error that onChange was given.
func (w *Watcher) Reload() error {
	answer := make(chan error, 1)
	select {
	case w.reload <- answer:
		return <-answer
	case <-w.stopped:
		return fmt.Errorf("policy file %q is no longer watched", w.path)
	}
}

// Close ends the watch. When it returns, onChange is not running and will not be called again. A second call does nothing.
func (w *Watcher) Close() error {
	w.close.Do(func() { close(w.done) })
	<-w.stopped
	return nil
}

func (w *Watcher) run() {
	defer close(w.stopped)
	defer w.deafen()
	events, lost := w.heard()
	poll := time.NewTicker(w.pace.poll)
	defer poll.Stop()
	due := time.NewTimer(w.pace.poll)
	due.Stop()
	var first time.Time // of the events since the file was read
	for {
		select {
		case <-w.done:
			return
		case event := <-events:
			if !w.route.has(event.Name) && !w.route.folders[event.Name] { // a folder itself is moved away, or removed
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
			if w.look(time.Now()) {
				due.Reset(w.pace.absent / 4)
			}
		case answer := <-w.reload:
			w.follow()
			answer <- w.tell(readFile(w.path))
		}
	}
}

// follow watches the folders on the way to the file as it is now.
func (w *Watcher) follow() {
	before := w.route
	w.route = routeTo(w.path)
	if w.notify == nil {
		return
	}
	for folder := range w.route.folders {
		// A folder that was replaced by another of its name has lost its watch; to add one twice does nothing. A folder that
		// cannot be watched is left to the poll.
		_ = w.notify.Add(folder)
	}
	for folder := range before.folders {
		if !w.route.folders[folder] {
			_ = w.notify.Remove(folder) // it may be gone, and its watch with it
		}
	}
}

// look reads the file and tells its content if it is another. It reports whether to look again soon.
func (w *Watcher) look(now time.Time) (soon bool) {
	w.follow()
	data, err := readFile(w.path)
	if err == nil && len(bytes.TrimSpace(data)) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.goneSince = time.Time{}
		if err != nil && !w.told || err == nil && (w.told || sha256.Sum256(data) != w.last) {
			w.tell(data, err)
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
	w.tell(data, err)
	w.told = true
	return false
}

// PanicError is what is wrong with a file whose content provoked a panic, here or in onChange. It is a mistake of this program: an
// edit must not end a process that has a good policy in force.
type PanicError struct {
	Reason any
	Stack  []byte
}

// Error says what to do about it.
func (e *PanicError) Error() string {
	return fmt.Sprintf("a panic, which is a mistake of this program and not of the file; please report it with the stack: %v", e.Reason)
}

// tell calls onChange with what was read, and a second time if that panics.
func (w *Watcher) tell(data []byte, err error) (told error) {
	defer func() {
		if reason := recover(); reason != nil {
			told = &PanicError{Reason: reason, Stack: debug.Stack()}
			w.onChange(nil, told)
		}
	}()
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
