// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"slices"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// View implements [policy.Attributes] for a question, which has what the policy reads of a request.
// The filter and the bridge both make their plans from a View, so the plans are the same.
type View struct {
	Ask    *Ask
	Inputs *core.Inputs   // of the policy; they determine the order of the values of Ask
	At     counter.Micros // the time that is passed to package core
}

var _ policy.Attributes = (*View)(nil)

func (v *View) Path() string        { return v.Ask.Path }
func (v *View) Method() string      { return v.Ask.Method }
func (v *View) Host() string        { return v.Ask.Host }
func (v *View) Query() string       { return v.Ask.Query }
func (v *View) Peer() netip.Addr    { return v.Ask.Peer }
func (v *View) Remote() netip.Addr  { return v.Ask.Remote }
func (v *View) Now() counter.Micros { return v.At }

// Began returns the instant at which the process that decides the request received it.
func (v *View) Began() counter.Micros { return v.At }

// Header implements [policy.Attributes] for the headers that the policy reads.
func (v *View) Header(name string) (string, bool) { return find(v.Inputs.Headers, v.Ask.Headers, name) }

// Attr implements [policy.Attributes] for the attributes that the policy reads.
func (v *View) Attr(name string) (string, bool) { return find(v.Inputs.Attrs, v.Ask.Attrs, name) }

// find returns the value of a name. The value has the same index as the name in the
// sorted list names. The result ok is false if the list lacks the name, or the request lacks the
// value.
func find(names []string, values []Value, name string) (string, bool) {
	i, ok := slices.BinarySearch(names, name)
	if !ok || i >= len(values) {
		return "", false
	}
	return values[i].Text, values[i].Given
}
