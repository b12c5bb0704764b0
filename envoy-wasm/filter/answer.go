// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
)

// Stream.deny answers a denied request, with all header fields. ResponseHeaders sees the
// filter's own responses too, and leaves them unchanged.
func (s *Stream) deny(d *core.Decision) {
	a := s.asking
	var r Response
	s.grpcType = r.Deny(&a.plan, d, a.attrs.ContentType, &s.fields)
	s.answerWith(r)
}
