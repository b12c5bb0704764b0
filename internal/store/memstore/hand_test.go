// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"fmt"
	"math"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestTheHandPointsAtRecords: a removal can free the page of the hand, and the page can be reused
// at once for records of another size. If the hand then pointed into the middle of a record, a
// client's numbers would be read as flags and as a key's length, and other clients would lose their
// counters.
func TestTheHandPointsAtRecords(t *testing.T) {
	tab := openTable()
	short := func(i int) []byte { return fmt.Appendf(nil, "%08d", i) }
	_, size := class(len(short(0)))
	perPage := pageBytes / int(size)
	// A full page plus one record, so that the first page is not the only one with room.
	for i := range perPage + 1 {
		if _, ok := tab.insert(tab.hash(short(i)), short(i)); !ok {
			t.Fatal("no room")
		}
	}
	for i := 1; i < perPage; i++ {
		r, _ := tab.find(tab.hash(short(i)), short(i))
		tab.remove(tab.hash(short(i)), r)
	}
	if forgotten := tab.reclaim(0, 1, true, nil); forgotten != 1 || tab.data[0] != nil {
		t.Fatalf("%d records forgotten, and the first page is there: %t", forgotten, tab.data[0] != nil)
	}
	held := map[ref]bool{}
	for i := range 10 {
		long := fmt.Appendf(nil, "%0*d", int(size)*2, i)
		r, ok := tab.insert(tab.hash(long), long)
		if !ok {
			t.Fatal("no room")
		}
		numbers := counter.State{At: math.MaxInt64, Used: math.MaxInt64}
		tab.setState(r, &numbers, math.MaxInt64, math.MaxInt64, 0)
		held[r] = true
	}
	if tab.data[0] == nil {
		t.Fatal("the first page was not opened again")
	}
	last, _ := tab.find(tab.hash(short(perPage)), short(perPage))
	held[last] = true
	for seen := 0; seen < 2*len(held); {
		if r, ok := tab.advance(); ok {
			if seen++; !held[r] {
				t.Fatalf("the hand is at %d, where no record begins", r)
			}
		}
	}
}
