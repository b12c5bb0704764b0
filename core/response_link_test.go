// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/json"
	"testing"
)

// Package response imports this package, so tests of this package call response through these
// variables, which response_set_test.go sets.
var (
	HeadersOf func(p *Plan, d *Decision) Fields
	ProblemOf func(dst []byte, p *Plan, d *Decision) []byte
	DetailOf  func(d *Decision) string
)

// Fields are the header fields of package response by name.
type Fields struct{ Limit, Remaining, Reset, RateLimit, Policy, RetryAfter, Cost, Authenticate string }

// problem decodes the body of a denial.
func problem(t *testing.T, p *Plan, d *Decision) map[string]any {
	t.Helper()
	var out map[string]any
	if body := ProblemOf(nil, p, d); json.Unmarshal(body, &out) != nil {
		t.Fatalf("%s is not JSON", body)
	}
	return out
}
