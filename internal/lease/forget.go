// SPDX-License-Identifier: Apache-2.0

package lease

// Forget drops what the store refused: units came back to it, so that it may have room. With reset, the store's counter
// was forgotten altogether: then what is in hand is not charged any more, and is neither used nor given back. What the
// call under way brings is given back.
func (c *Counter) Forget(reset bool) {
	c.deniedUntil, c.flowUntil = 0, 0
	if !reset {
		return
	}
	c.epoch++
	c.slots, c.due, c.back, c.lastExtra = [2]slot{}, slot{}, [backMax]slot{}, 0
}

// Unasked says that the call that [Counter.Ask] marked as under way was not made after all. Those that wait are to be served.
func (c *Counter) Unasked() { c.asking = false }
