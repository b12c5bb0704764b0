// SPDX-License-Identifier: Apache-2.0

package core

// matcher finds which of many conditions hold for a request. It is immutable and safe for concurrent use.
type matcher struct {
	conditions []condition
}

// newMatcher builds the index over cs, which it keeps.
func newMatcher(cs []condition) *matcher { return &matcher{conditions: cs} }

// appendMatches appends to dst the index of every condition that holds, in ascending order. It does not allocate once
// dst and the request's buffers have grown.
func (m *matcher) appendMatches(dst []int32, r *request) []int32 { panic("todo") }
