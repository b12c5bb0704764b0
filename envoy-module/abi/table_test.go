// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"testing"

	"github.com/penstock/penstock/envoy-module/front"
)

// TestFrontTable tests that a configuration keeps its number while others are added and removed,
// that the number of a removed configuration is used again, and that no number is 0.
func TestFrontTable(t *testing.T) {
	var table frontTable
	a, b, c := new(front.Front), new(front.Front), new(front.Front)
	first, second := table.add(a), table.add(b)
	if first == 0 || second == 0 || first == second {
		t.Fatalf("numbers %d and %d", first, second)
	}
	if table.take(first) != a || table.get(second) != b {
		t.Error("another configuration was taken")
	}
	if third := table.add(c); third != first || table.get(third) != c || table.get(second) != b {
		t.Errorf("after number %d is free, the next one is %d", first, third)
	}
}
