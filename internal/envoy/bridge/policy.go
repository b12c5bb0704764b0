// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// The last formerMin former versions of the policy stay known, and up to formerMax that were
// replaced less than formerAge ago. Filters receive a new version within a second or so. A filter
// that is busy may be some seconds late, while an operator may edit the file several times a
// second.
const (
	formerMin = 4
	formerMax = 64
	formerAge = 30 * time.Second
)

// filterForm is what the bridge keeps with a version of the policy.
type filterForm struct {
	inputs  core.Inputs // the inputs that the policy reads from a request
	compact []byte      // the policy in the form that filters read; nil for a candidate
	settles bool        // a rule of a candidate may charge by the response
	// directory is the one that requests are decided with; nil for a policy without one.
	directory *directory.Directory
}

// formOf returns the filters' data of a version.
func formOf(v *live.Version) *filterForm { return v.Front.(*filterForm) }

// openPolicy puts the policy into force and starts to follow its file.
func (b *Bridge) openPolicy() (err error) {
	o := &b.options
	source := live.Fixed(o.Policy)
	if o.PolicyFile != "" {
		source = live.File(o.PolicyFile)
	}
	if b.policy, err = live.Open(b.liveOptions(source)); err != nil {
		return err
	}
	if err := b.policy.Follow(); err != nil {
		return errors.Join(err, b.policy.Close())
	}
	return nil
}

// unnamed is the namespace of a policy without a name that counts only in memory.
const unnamed = "default"

var errNameMissing = errors.New("the policy has no name: others that count in the same store would share its counters by " +
	"accident; write name: shop, and the same name wherever the same counters are meant")

// complete names a policy that has no name, turns the directory on for keys, and rejects a policy that
// needs a directory where there is none.
func (b *Bridge) complete(d *policyfile.Document) error {
	if d.Name == "" && b.options.Shared {
		return errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	return b.directed(d)
}

// liveOptions returns how the bridge keeps a policy in force.
func (b *Bridge) liveOptions(source live.Source) live.Options {
	o := &b.options
	return live.Options{Source: source, FormerMin: formerMin, FormerMax: formerMax, FormerAge: formerAge,
		Fronts:    append([]lint.Front{lint.FrontEnvoy}, o.Fronts...),
		Verifiers: b.verifiers, Metrics: o.Metrics, Logger: o.Logger,
		Complete: b.complete, Prepare: b.prepare, Changed: b.changed, Edited: o.Metrics.Reloaded}
}

// prepare computes the filters' data of a version, and opens the directory if the version needs it.
func (b *Bridge) prepare(v *live.Version) error {
	source, err := v.Document.Policy()
	if err != nil {
		return err
	}
	form := &filterForm{inputs: core.InputsOf(&source), compact: compact.AppendPolicy(nil, &source, v.ID)}
	if len(form.compact) > compact.PolicyBytesMax {
		return fmt.Errorf("the policy has %d bytes in the form that filters read, and %d is the most: have fewer rules",
			len(form.compact), compact.PolicyBytesMax)
	}
	v.Front = form
	if source.Directory {
		form.directory, err = b.openDirectory()
	}
	return err
}

// changed reports a version that has come into force.
func (b *Bridge) changed(before, now *live.Version) {
	b.metrics.Policies.Show(b, now.Document, b.refused)
	b.options.Changed(now.ID, formOf(now).compact)
	if before != nil && before.Document.Name != now.Document.Name {
		b.logger.Warn("the edit has renamed the policy: its counters begin anew, and over Envoy's rate limit protocol nothing is limited "+
			"any more for the domain of its former name", "before", before.Document.Name, "now", now.Document.Name)
	}
}

// refused returns why the latest edit of the policy file was refused, or nil.
func (b *Bridge) refused() error {
	if b.policy == nil {
		return nil // it is being opened
	}
	return b.policy.Err()
}

// servePolicy answers with the policy in force, in compact form.
func (b *Bridge) servePolicy(w http.ResponseWriter, r *http.Request) {
	now := b.policy.Current()
	tag := `"` + now.ID + `"`
	w.Header().Set("Etag", tag)
	b.askForDenials(w.Header())
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(formOf(now).compact) // the caller may have left
}
