// SPDX-License-Identifier: Apache-2.0

//go:build provoke

package front

import "strings"

// provoke panics if the request's header X-Provoke names this place, which is "hook", "adapter",
// "goroutine" or "woken". If the word "fault" follows the place, provoke instead writes to an
// address that does not exist. The kernel then sends a signal, which Go's runtime turns into a
// panic.
func provoke(s *Stream, here string) {
	for _, h := range s.Headers {
		if h[0] == "x-provoke" {
			s.provoked = string(append([]byte(nil), h[1]...))
		}
	}
	s.Provoke(here)
}

// Provoke panics if the request has named this place.
func (s *Stream) Provoke(here string) {
	place, fault := strings.CutSuffix(s.provoked, " fault")
	if place != here {
		return
	}
	s.provoked = ""
	if fault {
		var nothing *Stream
		nothing.counted = CountPanic
	}
	panic("provoked in " + here)
}
