// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/tally"
)

// formerMax is how many versions of the policy are known beside the one in force: filters hear of a new one within a
// second or so.
const formerMax = 4

// keysWait is how long a bridge that starts waits for key sets from URLs.
const keysWait = 2 * time.Second

// edition is one version of the policy, ready to decide by. It does not change.
type edition struct {
	version     string
	document    *policy.Document
	ruleset     *core.Ruleset
	reads       core.Reads
	compact     []byte
	verifiers   io.Closer
	outcomes    *tally.Rules
	credentials *tally.Credentials
}

// editions are the policy in force, first, and those before it.
type editions struct {
	known   atomic.Pointer[[]*edition]
	watcher *policy.Watcher // nil: the policy is no file
	logger  *slog.Logger
	metrics *metrics
	shared  bool
	fronts  []policy.Front
	refused atomic.Bool // the last edit was
	changed func(version string, compact []byte)
}

func (e *editions) open(o *Options) (err error) {
	e.logger, e.shared, e.changed = o.Logger, o.Shared, o.Changed
	e.fronts = append([]policy.Front{policy.FrontEnvoy}, o.Fronts...)
	document := o.Policy
	if o.PolicyFile != "" {
		if document, err = policy.Load(o.PolicyFile); err != nil {
			return err
		}
	}
	first, err := e.newEdition(document)
	if err != nil {
		return err
	}
	e.known.Store(&[]*edition{first})
	e.metrics.versions.WithLabelValues(document.Name, first.version).Set(1)
	e.changed(first.version, first.compact)
	e.warn(document)
	if o.PolicyFile == "" {
		return nil
	}
	e.watcher, err = policy.Watch(o.PolicyFile, e.edited)
	if err != nil {
		return errors.Join(err, first.verifiers.Close())
	}
	if err = e.watcher.Reload(); err != nil { // it may have been edited between
		return errors.Join(err, e.close())
	}
	return nil
}

// unnamed is the namespace of a policy without a name, in memory.
const unnamed = "default"

var errNameMissing = errors.New("the policy has no name: others that count in the same store would share its counters by " +
	"accident; write name: shop, and the same name wherever the same counters are meant")

func (e *editions) newEdition(d *policy.Document) (*edition, error) {
	if d.Name == "" && e.shared {
		return nil, errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	for _, front := range e.fronts {
		if problems := d.Beyond(front); len(problems) > 0 {
			return nil, problems
		}
	}
	verifiers, closer, err := identity.OpenAll(d, identity.OpenOptions{Folder: d.File("."), Wait: keysWait, Logger: e.logger})
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
	compact := source.AppendCompact(nil, d.Version())
	if len(compact) > core.PolicyBytesMax {
		return nil, errors.Join(fmt.Errorf("the policy has %d bytes in the form that filters read, and %d is the most: have fewer rules",
			len(compact), core.PolicyBytesMax), closer.Close())
	}
	return &edition{version: d.Version(), document: d, ruleset: ruleset, reads: source.Reads(), verifiers: closer,
		compact: compact, outcomes: e.metrics.Rules(d.Name, ruleset),
		credentials: e.metrics.CredentialsOf(d, ruleset)}, nil
}

// keysReady reports whether every key set from a URL is there.
func (e *edition) keysReady() bool {
	keys, ok := e.verifiers.(interface{ Ready() bool })
	return !ok || keys.Ready()
}

// edited takes an edited policy file over, or says why it does not.
func (e *editions) edited(d *policy.Document, err error) {
	before := *e.known.Load()
	var next *edition
	if err == nil {
		next, err = e.edition(d, before)
	}
	e.refused.Store(err != nil)
	switch {
	case err != nil:
		e.refuse(before[0], err)
		return
	case next == before[0]:
		return
	}
	e.install(next, before)
	e.metrics.edits.WithLabelValues("accepted").Inc()
	changes := policy.Diff(before[0].document, d)
	e.logger.Info("the edited policy file is in force", "policy", d.Name, "version", next.version,
		"changes", changes.String())
	if former := before[0].document.Name; former != d.Name {
		e.logger.Warn("the edit has renamed the policy: its counters begin anew, and over Envoy's rate limit protocol nothing is limited "+
			"any more for the domain of its former name", "before", former, "now", d.Name)
	}
	e.warn(d)
}

// refuse leaves the edition before in force, and says why.
func (e *editions) refuse(before *edition, err error) {
	e.metrics.edits.WithLabelValues("refused").Inc()
	logger := e.logger
	if panicked, ok := errors.AsType[*policy.PanicError](err); ok {
		logger = logger.With("stack", string(panicked.Stack))
	}
	logger.Error("the edited policy file is refused; the policy before stays in force", "version", before.version, "error", err)
}

// warn says what is allowed but unwise in a policy that comes into force.
func (e *editions) warn(d *policy.Document) {
	logger := e.logger.With("policy", d.Name)
	d.Warn(func(line string) { logger.Warn(line) })
}

// edition returns the edition of a document: the one in force if that says the same.
func (e *editions) edition(d *policy.Document, before []*edition) (*edition, error) {
	if d.Name == "" && e.shared {
		return nil, errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	if d.Version() == before[0].version {
		return before[0], nil
	}
	return e.newEdition(d)
}

// install puts an edition in force, and forgets the oldest. One that says what a former one said takes its place.
func (e *editions) install(next *edition, before []*edition) {
	known := []*edition{next}
	for _, former := range before {
		if former.version == next.version || len(known) > formerMax {
			_ = former.verifiers.Close() // questions that began with it find the last keys
			continue
		}
		known = append(known, former)
	}
	e.known.Store(&known)
	e.metrics.versions.Reset()
	e.metrics.versions.WithLabelValues(next.document.Name, next.version).Set(1)
	e.changed(next.version, next.compact)
}

func (e *editions) reload() error {
	if e.watcher == nil {
		return nil
	}
	if err := e.watcher.Reload(); err != nil {
		return err
	}
	if e.refused.Load() {
		return errors.New("the policy file is refused; the log says why")
	}
	return nil
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
	var problems []error
	if e.watcher != nil {
		problems = append(problems, e.watcher.Close())
	}
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
