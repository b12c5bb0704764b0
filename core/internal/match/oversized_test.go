// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/request"
)

// TestEveryElementIsComparedOnce: a header that has all values of a condition for every element
// finds the condition once.
func TestEveryElementIsComparedOnce(t *testing.T) {
	var values []string
	for i := range 100 {
		values = append(values, strconv.Itoa(i))
	}
	conditions := compileAll(t, []policy.Match{{Header: []policy.HeaderMatch{{Name: "X-App", Values: values}}}})
	conditions[0].EveryReading = true
	m := NewMatcher(conditions)
	if len(m.numbers) != 1 {
		t.Errorf("the condition is in %d lists, want 1", len(m.numbers))
	}
	for value, want := range map[string]int{strings.Join(values, ","): 1, "7": 1, "7,x": 0, "": 0} {
		var r Request
		r.Read(&request.Attributes{Headers: map[string]string{"X-App": value}})
		if found := m.AppendMatches(nil, &r); len(found) != want {
			t.Errorf("%.20q: found %v", value, found)
		}
	}
}

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
