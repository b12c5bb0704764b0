// SPDX-License-Identifier: Apache-2.0

//go:build provoke

package front

// The function provoke panics if the header X-Provoke of the request names the place: hook,
// adapter, goroutine or woken.
func provoke(s *Stream, here string) {
	for _, h := range s.Headers {
		if h[0] == "x-provoke" {
			s.provoked = string(append([]byte(nil), h[1]...))
		}
	}
	s.Provoke(here)
}

// Provoke panics at a place that the request has named.
func (s *Stream) Provoke(here string) {
	if s.provoked == here {
		s.provoked = ""
		panic("provoked in " + here)
	}
}
