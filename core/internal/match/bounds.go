// SPDX-License-Identifier: Apache-2.0

package match

import "strings"

// Bounds of the values, other than the path, that a policy reads from a request. The bounds equal
// those of common servers: nginx and Apache httpd reject longer fields by default. A request with a
// longer value is denied, because neither its rules nor its counter can be determined.
const (
	// bytes of the host, the method, or a header or attribute that the policy uses
	FieldBytesMax    = 8 << 10
	fieldElementsMax = 1000 // elements of a compared header; each costs a lookup
)

// Statuses of responses to requests with values that are too long.
const (
	StatusURITooLong     = 414
	StatusFieldsTooLarge = 431
)

// TooLong reports whether a value is too long, and if so records this in the request.
func (r *Request) TooLong(value string) bool {
	if len(value) <= FieldBytesMax {
		return false
	}
	r.Oversized = StatusFieldsTooLarge
	return true
}

// TooLongList reports whether a header whose elements are compared is too long or has too many
// elements.
func TooLongList(value string) bool {
	return len(value) > FieldBytesMax || len(value) > fieldElementsMax && strings.Count(value, ",") >= fieldElementsMax
}
