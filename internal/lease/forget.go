// SPDX-License-Identifier: Apache-2.0

package lease

// afterReset is what an epoch grows by with a reset, and by 1 with all else: its upper half tells apart what was charged
// before one.
const afterReset = 1 << 16

// Forget drops what the store refused: units came back to it, so that it may have room. With reset, the store's counter
// was forgotten altogether: then what is in hand or reserved is not charged any more, and is neither used by others nor given
// back: the counter would be credited for what was used since. What the call under way brings may be of before or after, so
// it is not given back either.
func (c *Counter) Forget(reset bool) {
	c.deniedUntil, c.flowUntil = 0, 0
	if !reset {
		return
	}
	c.epoch += afterReset
	c.slots, c.due, c.back, c.lastExtra = [2]slot{}, slot{}, [backMax]slot{}, 0
}

// forgotten reports whether the counter was reset since that epoch.
func (c *Counter) forgotten(epoch uint32) bool { return epoch/afterReset != c.epoch/afterReset }

// Unasked says that the call that [Counter.Ask] marked as under way was not made after all. Those that wait are to be served.
func (c *Counter) Unasked() { c.asking = false }
