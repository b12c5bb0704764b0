// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestChargesOfOneInstant: after a bucket's clock went back a little, all charges have the same
// instant. Units of several ages are refunded with the shortest age, in any order; with a longer
// age the bucket would credit too much.
func TestChargesOfOneInstant(t *testing.T) {
	for _, ages := range [][2]counter.Micros{{10 * ms, 20 * ms}, {20 * ms, 10 * ms}} {
		var c Counter
		c.refund(&slot{units: 2, receipt: begins, age: ages[0]}, 2)
		c.refund(&slot{units: 3, receipt: begins, age: ages[1]}, 3)
		if backs := c.flush(nil); len(backs) != 1 || backs[0] != (Refund{5, begins, 10 * ms}) {
			t.Errorf("%+v come back, want all 5 by 10 ms", backs)
		}
		c.slots = [2]slot{{units: 2, until: 50 * ms, receipt: begins, age: ages[0]},
			{units: 9, until: 60 * ms, receipt: begins + 1, age: ages[0]}}
		c.keep(0, slot{3, 70 * ms, begins, ages[1]})
		if want := (slot{5, 50 * ms, begins, 10 * ms}); c.slots[0] != want {
			t.Errorf("%+v in hand, want %+v", c.slots[0], want)
		}
		c.slots[0].age = ages[0]
		c.PutBack(1*ms, 1, Held{Receipt: begins, Leased: true, age: ages[1]})
		if want := (slot{6, 50 * ms, begins, 10 * ms}); c.slots[0] != want {
			t.Errorf("%+v in hand, want %+v", c.slots[0], want)
		}
	}
}
