// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func parts(shares []uint16, n int64) (all []int64) {
	var d policy.Division
	copy(d.Shares[:], shares)
	for i := range shares {
		d.Self = uint8(i)
		all = append(all, d.Part(n))
	}
	return all
}

func TestPart(t *testing.T) {
	for _, c := range []struct {
		shares []uint16
		n      int64
		want   []int64
	}{
		{[]uint16{40, 30, 30}, 100, []int64{40, 30, 30}},
		{[]uint16{1, 1, 1}, 100, []int64{34, 33, 33}},
		{[]uint16{1, 1, 1}, 2, []int64{1, 1, 0}},
		{[]uint16{50, 30, 20}, 5, []int64{3, 1, 1}}, // the exact parts are 2.5, 1.5 and 1: of the equal remainders, the first one gets the unit
		{[]uint16{20, 30, 50}, 4, []int64{1, 1, 2}}, // 0.8, 1.2 and 2
		{[]uint16{7}, 9, []int64{9}},
		{[]uint16{1, 1000}, 1, []int64{0, 1}},
	} {
		got := parts(c.shares, c.n)
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("shares %v of %d: %v, want %v", c.shares, c.n, got, c.want)
				break
			}
		}
	}
}

// TestPartsAddUp: the parts of all regions add up to the whole, and each differs from its exact
// value by less than one unit.
func TestPartsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		shares := make([]uint16, 1+rng.IntN(policy.RegionsMax))
		var sum, all int64
		for i := range shares {
			shares[i] = uint16(1 + rng.IntN(policy.ShareMax))
			sum += int64(shares[i])
		}
		n := rng.Int64N(1 + counter.CountMax>>rng.IntN(41))
		for i, part := range parts(shares, n) {
			all += part
			if floor := n * int64(shares[i]) / sum; part < floor || part > floor+1 {
				t.Fatalf("shares %v of %d: part %d is %d", shares, n, i, part)
			}
		}
		if all != n {
			t.Fatalf("shares %v of %d: the parts add up to %d", shares, n, all)
		}
	}
}

func TestTheZeroDivisionDividesNothing(t *testing.T) {
	l, err := counter.ParseLimit("10/1s burst 20")
	if err != nil {
		t.Fatal(err)
	}
	if part, ok := (policy.Division{}).Limit(&l); !ok || part != l {
		t.Errorf("part %v %t, want all of %v", part, ok, l)
	}
}

// TestPartsOfABucket: the rates of all regions add up to the limit's, and so do their bursts.
func TestPartsOfABucket(t *testing.T) {
	l, err := counter.ParseLimit("10/1s burst 25")
	if err != nil {
		t.Fatal(err)
	}
	d := policy.Division{Shares: [policy.RegionsMax]uint16{2, 1}}
	for i, want := range []string{"7/1s burst 17", "3/1s burst 8"} {
		d.Self = uint8(i)
		part, ok := d.Limit(&l)
		if expected, err := counter.ParseLimit(want); err != nil || !ok || part != expected {
			t.Errorf("region %d has %v %t, want %s", i, part, ok, want)
		}
	}
	d.Shares[1], d.Self = 1000, 0
	if part, ok := d.Limit(&l); ok {
		t.Errorf("a share of 2 in 1002 of %v is %v", l, part)
	}
}
