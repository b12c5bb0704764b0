// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// TestManyElementsMeetManyValues: an element is looked up, not compared with each value.
func TestManyElementsMeetManyValues(t *testing.T) {
	m := policy.Match{Header: []policy.HeaderMatch{{Name: "X-Kind"}}}
	for i := range 1000 {
		m.Header[0].Values = append(m.Header[0].Values, fmt.Sprintf("value-%d", i), fmt.Sprintf("prefix-%d-*", i))
	}
	m.Header[0].Values = m.Header[0].Values[:1000]
	c := compiledMatch(t, m)
	if c.Headers[0].table == nil {
		t.Fatal("the values are compared one by one")
	}
	padding := strings.Repeat("x,", 900)
	for value, want := range map[string]bool{"value-499": true, "value-500": false, "value-4990": false, "prefix-3-x": true,
		"prefix-3": false, "": false, "prefix-499-": true, padding + "value-7": true, padding + "value": false} {
		if got := c.Headers[0].Matches(value, false); got != want {
			t.Errorf("%.20q … matches: %v", value, got)
		}
	}
}
