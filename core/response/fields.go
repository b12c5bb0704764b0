// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strconv"

	"github.com/penstock/penstock/core/slim"
)

// Field is one of the response header fields about limits.
type Field uint8

// The fields, in the order of [Fields].
const (
	FieldLimit      Field = iota // X-RateLimit-Limit
	FieldRemaining               // X-RateLimit-Remaining
	FieldReset                   // X-RateLimit-Reset: Unix seconds
	FieldRateLimit               // RateLimit
	FieldPolicy                  // RateLimit-Policy
	FieldRetryAfter              // Retry-After: seconds
	FieldCost                    // X-RateLimit-Cost
	FieldCount
)

// FieldNames are the names of the fields in lower case.
var FieldNames = [FieldCount]string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit",
	"ratelimit-policy", "retry-after", "x-ratelimit-cost"}

// Fields are the values of the header fields about limits, indexed by [Field]; "" means that the
// field is absent. WWW-Authenticate is not among them: only Penstock's own responses have it, and
// it is never merged. See [Challenge].
type Fields [FieldCount]string

// Empty reports whether no field is set.
//
//go:noinline
func (f *Fields) Empty() bool {
	for i := range f {
		if f[i] != "" {
			return false
		}
	}
	return true
}

// Correct replaces the estimated cost, if one is set, with the true cost.
func (f *Fields) Correct(cost int64) {
	if f[FieldCost] != "" {
		f[FieldCost] = strconv.FormatInt(cost, 10)
	}
}

// Merge combines the fields with those that the response already has. The function theirs returns
// the lines of a field of the response, or nil. After the call, a field that is "" must be left in
// the response unchanged, and any other field must replace the response's field.
//
// Of two X-RateLimit-* families, the one with fewer remaining requests is kept, because the client
// reaches that limit first. If yields is set, the response's family is always kept, because it
// explains the denial. The IETF list fields are joined, Penstock's first. Penstock's Retry-After,
// if any, replaces the response's. Merge allocates only to join lists.
func (f *Fields) Merge(remaining int64, yields bool, theirs func(Field) []string) {
	keeps := keepFamily(remaining, yields, theirs(FieldRemaining))
	for i := range f {
		switch field := Field(i); {
		case f[i] == "" || field == FieldRetryAfter:
		case field == FieldRateLimit || field == FieldPolicy:
			for _, line := range theirs(field) {
				if line = slim.TrimSpace(line); line != "" { // a list must not have an empty item
					f[i] += ", " + line
				}
			}
		case keeps:
			f[i] = ""
		}
	}
}

// keepFamily reports whether the response's own X-RateLimit-* family is kept. The argument theirs
// contains the lines of the response's X-RateLimit-Remaining.
func keepFamily(ours int64, yields bool, theirs []string) bool {
	if len(theirs) == 0 || yields {
		return len(theirs) > 0
	}
	remaining, ok := slim.ParseWhole(slim.TrimSpace(theirs[0]))
	return ok && remaining < ours
}
