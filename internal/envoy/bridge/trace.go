// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// tracedSuffix is the suffix of the version of a policy under which filters send the traces of
// requests. A filter fetches the policy anew when a bridge begins or ceases to trace. Any bridge
// can read the questions of any filter, because a call states its version, with the suffix if there
// is one.
const tracedSuffix = "+trace"

// formFor returns the filters' data of a version of the policy.
func (b *Bridge) formFor(source policy.Policy, version string) *filterForm {
	form := &filterForm{version: version, inputs: core.InputsOf(&source)}
	source.Traced = true
	form.traced = core.InputsOf(&source)
	if source.Traced = b.options.Tracer != nil; source.Traced {
		form.version += tracedSuffix
	}
	form.compact = compact.AppendPolicy(nil, &source, form.version)
	return form
}

// inputsOf returns the inputs that a question contains.
func (f *filterForm) inputsOf(traced bool) *core.Inputs {
	if traced {
		return &f.traced
	}
	return &f.inputs
}

// spanOf returns the span of a question of a filter.
func (b *Bridge) spanOf(v *wire.View, traced bool) enforce.Span {
	if !traced || b.options.Tracer == nil {
		return enforce.Span{}
	}
	parent, _ := v.Header(core.TraceHeader)
	return b.options.Tracer.Within(parent)
}
