// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"slices"

	"github.com/penstock/penstock/core"
)

// View is a question as [core.Attributes]: the request that it is about, as far as the policy reads it. The filter plans by it
// before it asks and the bridge once it is asked, so both plan alike.
type View struct {
	Ask   *Ask
	Reads *core.Reads // of the policy, in whose order the values of Ask stand
	At    core.Micros // now, for what core asks the time
}

var _ core.Attributes = (*View)(nil)

func (v *View) Path() string       { return v.Ask.Path }
func (v *View) Method() string     { return v.Ask.Method }
func (v *View) Host() string       { return v.Ask.Host }
func (v *View) Query() string      { return v.Ask.Query }
func (v *View) Peer() netip.Addr   { return v.Ask.Peer }
func (v *View) Remote() netip.Addr { return v.Ask.Remote }
func (v *View) Now() core.Micros   { return v.At }

// Header implements [core.Attributes]. The policy reads what it said it does.
func (v *View) Header(name string) (string, bool) { return find(v.Reads.Headers, v.Ask.Headers, name) }

// Attr implements [core.Attributes].
func (v *View) Attr(name string) (string, bool) { return find(v.Reads.Attrs, v.Ask.Attrs, name) }

// find returns the value under a name, of those that were told; names are sorted.
func find(names []string, values []Value, name string) (string, bool) {
	i, ok := slices.BinarySearch(names, name)
	if !ok || i >= len(values) {
		return "", false
	}
	return values[i].Text, values[i].Given
}
