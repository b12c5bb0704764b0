// SPDX-License-Identifier: Apache-2.0

package lease

// Overdue says that the call under way takes too long, so [Counter.Ask] may make a second one. If
// the first call returns before the second, it still serves the waiting requests; the units that it
// brings in advance are refunded.
func (c *Counter) Overdue() {
	c.asking = false
	c.call++
}

// Overtaken reports whether [Counter.Overdue] was called since the call was prepared. If such a
// call fails or is never made, that says nothing about the newer call, so neither [Counter.Failed]
// nor [Counter.CancelCall] may be called.
func (c *Counter) Overtaken(a *Call) bool { return a.call != c.call }
