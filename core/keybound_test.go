// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestKeysStayShort: no client can cause a key of several thousand bytes. A store rejects such a
// key, and on_error would then admit the request.
func TestKeysStayShort(t *testing.T) {
	rule := policy.Rule{Name: "r", Limits: []counter.Limit{limittest.Parse(t, "2/1h")}, Unverified: true}
	for i := range policy.DimensionsMax {
		rule.Per = append(rule.Per, policy.Dimension{Kind: policy.PerHeader, Name: fmt.Sprintf("X-%d", i)})
	}
	rs, err := Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{rule}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for n := range 256 {
		for _, filler := range []string{":", "a"} {
			headers := map[string]string{}
			for i := range policy.DimensionsMax {
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
