// SPDX-License-Identifier: Apache-2.0

package lua

import (
	"slices"
	"testing"
)

// regionParts are the files that are not part of Take.
var regionParts = []string{"gossip.lua", "gossip_own.lua", "gossip_hear.lua", "gossip_mark.lua", "gossip_page.lua",
	"gossip_epoch.lua", "writeoff.lua"}

// TestParts fails if a file of this folder is not in a script.
func TestParts(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(parts, e.Name()) && !slices.Contains(regionParts, e.Name()) {
			t.Errorf("%s is not part of a script", e.Name())
		}
	}
	if len(entries) != len(parts)+len(regionParts) {
		t.Errorf("%d files, %d parts", len(entries), len(parts)+len(regionParts))
	}
}
