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

// The bridge keeps the last formerMin former versions of the policy, and up to formerMax of those
// that were replaced less than formerAge ago. Filters receive a new version within about a second.
// A busy filter may be some seconds late, and an operator may edit the file several times a second.
const (
	formerMin = 4
	formerMax = 64
	formerAge = 30 * time.Second
)

// filterForm holds the data that the bridge keeps with a version of the policy.
type filterForm struct {
	version string      // the version that filters know
	inputs  core.Inputs // the parts of a request that the policy reads
	traced  core.Inputs // these parts and the trace of the request
	compact []byte      // the policy in the form that filters read; nil for a candidate
	settles bool        // whether a rule of a candidate may charge by the response
	// the directory with which requests are decided; nil for a policy without one
	directory *directory.Directory
}

// formOf returns the filters' data of a version.
func formOf(v *live.Version) *filterForm { return v.Front.(*filterForm) }

// openPolicy makes the policy take effect and starts to follow its file.
func (b *Bridge) openPolicy() (err error) {
	o := &b.options
	source := o.Source
	switch {
	case o.Policy != nil:
		source = live.Fixed(o.Policy)
	case o.PolicyFile != "":
		source = live.File(o.PolicyFile)
	}
	if b.policy, err = live.Open(b.liveOptions(source)); err != nil {
		return err
	}
	b.show(b.policy.Current())
	if err := b.policy.Follow(); err != nil {
		return errors.Join(err, b.closePolicy())
	}
	return nil
}

// closePolicy closes the policy first and hides it in the metrics afterwards, because an edit can
// show the policy again until Close returns.
func (b *Bridge) closePolicy() error {
	err := b.policy.Close()
	b.metrics.Policies.Hide(b)
	return err
}

// unnamed is the namespace of a policy that has no name and counts only in memory.
const unnamed = "default"

var errNameMissing = errors.New("the policy has no name: others that count in the same store would share its counters by " +
	"accident; write name: shop, and the same name wherever the same counters are meant")

// Bridge.fillDefaults names a policy that has no name, and turns the directory on if the
// policy's keys are in it. fillDefaults rejects a policy that needs a directory if the bridge has
// none.
func (b *Bridge) fillDefaults(d *policyfile.Document) error {
	if d.Name == "" && b.options.Shared {
		return errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	return b.directed(d)
}

// liveOptions returns the options with which the bridge keeps a policy in force.
func (b *Bridge) liveOptions(source live.Source) live.Options {
	o := &b.options
	return live.Options{Source: source, FormerMin: formerMin, FormerMax: formerMax, FormerAge: formerAge,
		Fronts:    append([]lint.Front{lint.FrontEnvoy}, o.Fronts...),
		Region:    o.Region,
		Verifiers: b.verifiers, Metrics: o.Metrics, Logger: o.Logger,
		Complete: b.fillDefaults, Prepare: b.prepare, Changed: b.showChange, Edited: o.Metrics.Reloaded}
}

// Bridge.prepare computes the filters' data of a version, and opens the directory if the
// version needs it.
func (b *Bridge) prepare(v *live.Version) error {
	source, err := v.Document.Policy()
	if err != nil {
		return err
	}
	form := b.formFor(source, v.ID)
	if len(form.compact) > compact.PolicyBytesMax {
		return fmt.Errorf("the policy has %d bytes in the form that filters read, and at most %d are allowed: use fewer rules",
			len(form.compact), compact.PolicyBytesMax)
	}
	v.Front = form
	if source.Directory {
		form.directory, err = b.openDirectory()
	}
	return err
}

// Bridge.showChange reports the version named now, which has taken effect, and shows it in the
// metrics. When the first version is loaded, the field named policy is still nil, so showChange
// does not show that version. Once openPolicy has set that field, it calls show.
func (b *Bridge) showChange(before, now *live.Version) {
	form := formOf(now)
	b.options.Changed(form.version, form.compact)
	if before == nil {
		return
	}
	b.show(now)
	if before.Document.Name != now.Document.Name {
		b.logger.Warn("the edit has renamed the policy: its counters begin anew, and over Envoy's rate limit protocol nothing is limited "+
			"any more for the domain of its former name", "before", before.Document.Name, "now", now.Document.Name)
	}
}

// Bridge.show shows a version in the metrics.
func (b *Bridge) show(v *live.Version) {
	b.metrics.Policies.Show(b, v.Document, b.policy.Err)
}

// servePolicy answers with the policy in force, in compact form.
func (b *Bridge) servePolicy(w http.ResponseWriter, r *http.Request) {
	now := b.policy.Current()
	tag := `"` + formOf(now).version + `"`
	w.Header().Set("Etag", tag)
	b.askForDenials(w.Header())
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(formOf(now).compact) // the caller may have left
}
