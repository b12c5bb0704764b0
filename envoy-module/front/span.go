// SPDX-License-Identifier: Apache-2.0

package front

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
)

// Tracer creates the span of one check, as a part of Envoy's trace of the request. Envoy sends the
// span.
type Tracer interface {
	// Begin begins the span. It is called at most once, within [Stream.Decide].
	Begin()
	// End adds attributes, which are pairs of a name and a value, and ends the span. It is called
	// within a hook.
	End(attributes [][2]string)
}

// beginSpan begins the span of the check, if Envoy traces the request. A request that is not
// checked has no span.
func (s *Stream) beginSpan(checked bool) {
	switch {
	case !checked:
		s.Tracer = nil
	case s.Tracer != nil:
		s.Tracer.Begin()
	}
}

// EndSpan ends the span of the check, if there is one. The adapter calls it once, within the hook
// in which it replies to the request. If the client leaves earlier, the adapter ends the span
// itself.
func (s *Stream) EndSpan() {
	switch {
	case s.Tracer == nil:
	case s.late: // the goroutine may be writing the attributes
		err := errLate
		if s.state.Load() == stateAway {
			err = errAway
		}
		s.Tracer.End(undecidedAttributes(metrics.FailureKind(err)))
	default:
		s.Tracer.End(s.attributes)
	}
}

// Stream.describe writes the attributes of the span.
func (s *Stream) describe(d *core.Decision) {
	s.attributes = s.attributes[:0]
	enforce.Attributes(&s.plan, d, s.failure, []*live.Version{s.version}, func(name, value string) {
		s.attributes = append(s.attributes, [2]string{name, value})
	})
}

// describeUndecided writes the attributes of the span of a check that has no decision.
func (s *Stream) describeUndecided(why string) {
	if s.Tracer != nil {
		s.attributes = undecidedAttributes(why)
	}
}

// undecidedAttributes returns the attributes of a span for a request that on_error decides without
// a plan.
func undecidedAttributes(why string) [][2]string {
	return [][2]string{{"error.type", why}, {"penstock.source", "on_error"}}
}

// forgetSpan clears what the stream keeps for the span of one request.
func (s *Stream) forgetSpan() {
	clear(s.attributes)
	s.Tracer, s.failure, s.attributes = nil, nil, s.attributes[:0]
}
