// SPDX-License-Identifier: Apache-2.0

package filter

var sourceAddress = []string{"source", "address"}

// attributes.address determines the addresses of the request.
func (a *attributes) address(h Host, appended bool) {
	text, _ := h.Property(sourceAddress...)
	a.origin = hash(hash(fnvOffset, a.ID), text)
	a.Ask.SetAddresses(a.View.Inputs.Headers, text, appended)
}
