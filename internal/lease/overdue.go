// SPDX-License-Identifier: Apache-2.0

package lease

// Overdue records that the call under way takes too long. [Counter.Ask] can then prepare a second
// one. If the first call returns before the second, it still serves the waiting requests, but the
// units that it took in advance are refunded.
func (c *Counter) Overdue() {
	c.asking = false
	c.call++
}

// Overtaken reports whether [Counter.Overdue] was called since the call was prepared. If such a
// call fails or is never made, do not call [Counter.Failed] or [Counter.CancelCall]: the newer call
// is not affected.
func (c *Counter) Overtaken(a *Call) bool { return a.call != c.call }
