// SPDX-License-Identifier: Apache-2.0

package lease

// Overdue says that the call under way is so for too long: [Counter.Ask] may make another one beside it. The first still answers
// those that wait, if it is the first to return; what it brings in advance goes back.
func (c *Counter) Overdue() {
	c.asking = false
	c.call++
}

// Overtaken reports whether [Counter.Overdue] was said of a call. That it failed, or was never made, says nothing of the one
// that is under way: then neither [Counter.Failed] nor [Counter.Unasked] is to be called.
func (c *Counter) Overtaken(a *Asking) bool { return a.call != c.call }
