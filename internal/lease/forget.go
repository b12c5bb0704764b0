// SPDX-License-Identifier: Apache-2.0

package lease

// afterReset is the amount that a reset adds to the epoch; every other change adds 1. So the upper
// half of an epoch counts the resets.
const afterReset = 1 << 16

// Forget drops the remembered denial, because units were refunded to the store and it might have
// room. If reset is set, the store's counter was deleted. Held and reserved units are then no
// longer charged anywhere, so the node does not use them. The node does not refund them either,
// because a refund would credit units that others have used since. Units from the call under way
// might have been charged before or after the reset, so they are not refunded either.
func (c *Counter) Forget(reset bool) {
	c.deniedUntil, c.flowUntil = 0, 0
	if !reset {
		return
	}
	c.epoch += afterReset
	c.slots, c.reserved, c.refunds, c.lastExtra = [2]slot{}, slot{}, [refundsMax]slot{}, 0
}

// Counter.forgotten reports whether the counter was reset after the given epoch.
func (c *Counter) forgotten(epoch uint32) bool { return epoch/afterReset != c.epoch/afterReset }

// CancelCall reports that the call which [Counter.Ask] marked as under way was not made. The
// waiting requests must be served.
func (c *Counter) CancelCall() { c.asking = false }
