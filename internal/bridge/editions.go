// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/policy"
)

// formerMax is how many versions of the policy are known beside the one in force: filters hear of a new one within a
// second or so.
const formerMax = 4

// keysWait is how long a bridge that starts waits for key sets from URLs.
const keysWait = 2 * time.Second

// edition is one version of the policy, ready to decide by. It does not change.
type edition struct {
	version   string
	document  *policy.Document
	ruleset   *core.Ruleset
	reads     core.Reads
	compact   []byte
	verifiers io.Closer
}

// editions are the policy in force, first, and those before it.
type editions struct {
	known   atomic.Pointer[[]*edition]
	watcher *policy.Watcher
	logger  *slog.Logger
}

func (e *editions) open(path string, logger *slog.Logger) error {
	e.logger = logger
	document, err := policy.Load(path)
	if err != nil {
		return err
	}
	first, err := newEdition(document, logger)
	if err != nil {
		return err
	}
	e.known.Store(&[]*edition{first})
	e.watcher, err = policy.Watch(path, e.edited)
	if err != nil {
		return errors.Join(err, first.verifiers.Close())
	}
	return e.watcher.Reload()
}

func newEdition(d *policy.Document, logger *slog.Logger) (*edition, error) {
	verifiers, closer, err := identity.OpenAll(d, identity.OpenOptions{Folder: d.File("."), Wait: keysWait, Logger: logger})
	if err != nil {
		return nil, errors.Join(err, d.Check())
	}
	ruleset, err := d.CompileWith(verifiers)
	if err != nil {
		return nil, errors.Join(err, closer.Close())
	}
	source, err := d.Policy()
	if err != nil {
		return nil, errors.Join(err, closer.Close())
	}
	return &edition{version: d.Version(), document: d, ruleset: ruleset, reads: source.Reads(), verifiers: closer,
		compact: source.AppendCompact(nil, d.Version())}, nil
}

// edited takes an edited policy file over, or says why it does not.
func (e *editions) edited(d *policy.Document, err error) {
	before := *e.known.Load()
	var next *edition
	if err == nil && d.Version() == before[0].version {
		return
	}
	if err == nil {
		next, err = newEdition(d, e.logger)
	}
	if err != nil {
		e.logger.Error("the edited policy file is refused; the policy before stays in force", "version", before[0].version,
			"error", err)
		return
	}
	known := append([]*edition{next}, before...)
	if len(known) > formerMax+1 {
		_ = known[formerMax+1].verifiers.Close() // questions that began with it find the last keys
		known = known[:formerMax+1]
	}
	e.known.Store(&known)
	changes := policy.Diff(before[0].document, d)
	e.logger.Info("the edited policy file is in force", "policy", d.Name, "version", next.version,
		"changes", changes.String())
}

// of returns the edition of a version; nil if it is not known.
func (e *editions) of(version string) *edition {
	for _, known := range *e.known.Load() {
		if known.version == version {
			return known
		}
	}
	return nil
}

func (e *editions) inForce() *edition { return (*e.known.Load())[0] }

func (e *editions) close() error {
	problems := []error{e.watcher.Close()}
	for _, known := range *e.known.Load() {
		problems = append(problems, known.verifiers.Close())
	}
	return errors.Join(problems...)
}

// servePolicy gives filters the policy in force, in its compact form.
func (b *Bridge) servePolicy(w http.ResponseWriter, r *http.Request) {
	now := b.editions.inForce()
	tag := `"` + now.version + `"`
	w.Header().Set("Etag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(now.compact) // whoever is gone needs none
}
