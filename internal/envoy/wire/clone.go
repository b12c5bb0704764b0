// SPDX-License-Identifier: Apache-2.0

package wire

import "strings"

// Clone copies a question and the memory of its values. Clone returns nil if the values have more
// than bytesMax bytes.
func (a *Ask) Clone(bytesMax int) *Ask {
	size := len(a.Path) + len(a.Method) + len(a.Host) + len(a.Query)
	for _, values := range [][]Value{a.Headers, a.Attrs} {
		for i := range values {
			size += len(values[i].Text)
		}
	}
	if size > bytesMax {
		return nil
	}
	var text strings.Builder
	text.Grow(size)
	clone := func(part string) string {
		before := text.Len()
		text.WriteString(part)
		return text.String()[before:]
	}
	cloneAll := func(from []Value) []Value {
		all := make([]Value, len(from))
		for i, v := range from {
			all[i] = Value{Text: clone(v.Text), Given: v.Given}
		}
		return all
	}
	return &Ask{Path: clone(a.Path), Method: clone(a.Method), Host: clone(a.Host), Query: clone(a.Query),
		Peer: a.Peer, Remote: a.Remote, Headers: cloneAll(a.Headers), Attrs: cloneAll(a.Attrs)}
}
