// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strings"
	"testing"
)

// A store refuses keys of several thousand bytes, and what it refuses on_error lets through: no client may write one.
func TestKeysStayShort(t *testing.T) {
	rule := Rule{Name: "r", Limits: []Limit{mustLimit(t, "2/1h")}, Unverified: true}
	for i := range DimensionsMax {
		rule.Per = append(rule.Per, Dimension{Kind: PerHeader, Name: fmt.Sprintf("X-%d", i)})
	}
	rs, err := Compile(Policy{Name: "shop", Rules: []Rule{rule}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for n := range 256 {
		for _, filler := range []string{":", "a"} {
			headers := map[string]string{}
			for i := range DimensionsMax {
				headers[fmt.Sprintf("X-%d", i)] = strings.Repeat(filler, max(1, n))
			}
			headers["X-0"] += fmt.Sprint(n)
			var plan Plan
			plan.Add(rs, &client{header: headers})
			key := string(plan.Checks()[0].Key)
			if len(key) > dimensionsBytesMax+64 {
				t.Fatalf("%d bytes each make a key of %d", n, len(key))
			}
			seen[key]++
		}
	}
	if len(seen) != 2*256 {
		t.Errorf("%d keys for %d clients", len(seen), 2*256)
	}
}
