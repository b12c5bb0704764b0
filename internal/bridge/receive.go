// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"
)

// Bounds of calls that have not come whole yet. They are none of those under way: whoever sends half a call, and waits,
// would otherwise hold the place of one that can be answered.
const (
	// CallTime is how long a call may take to come, from its first byte to its last. A server of [Bridge.Handler] sets it as
	// the time for reading requests: what comes slower is answered 408, or hung up on. Filters send a call in one piece, and
	// few wait for its answer as long as this.
	CallTime = 5 * time.Second
	// ReplyTime is how long a server of [Bridge.Handler] writes to somebody who does not read, from the head of the call on.
	// Calls that wait for throttle rules have it from the end of their wait on.
	ReplyTime = 2 * CallTime
	// receivingMax is how many calls come at once: some 10 KB each. One more is answered 503.
	receivingMax = 1 << 14
	// bodiesMax is how many bytes the bodies of all calls have together, but for the first bodyFree of each: of those that
	// come, that are under way and that wait. A call that needs more is answered 503.
	bodiesMax = 256 << 20
	// bodyFree is as much as most calls have.
	bodyFree = 4 << 10
)

// Why a call is not answered.
var (
	errFull = errors.New("too many calls are under way")
	errGone = errors.New("the caller has left")
)

// malformedError is of a call that cannot be read.
type malformedError struct{ error }

// receive reads the body of a call whole.
func (b *Bridge) receive(c *call, from io.Reader) error {
	defer b.receiving.Add(-1)
	if b.receiving.Add(1) > receivingMax {
		return errFull
	}
	for {
		c.body = slices.Grow(c.body, 512)
		n, err := from.Read(c.body[len(c.body):cap(c.body)])
		c.body = c.body[:len(c.body)+n]
		if more := int64(len(c.body)-bodyFree) - c.held; more > 0 {
			c.held += more
			if b.bodies.Add(more) > bodiesMax {
				return errFull
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// enter counts a call that has come whole as one under way, if there is room for it. Whoever enters leaves.
func (b *Bridge) enter() bool {
	if b.under.Add(1) <= int64(b.options.CallsMax) {
		return true
	}
	b.leave()
	return false
}

func (b *Bridge) leave() { b.under.Add(-1) }

// refuse answers a call that is not decided.
func (b *Bridge) refuse(w http.ResponseWriter, r *http.Request, err error) {
	tooLarge, malformed := (*http.MaxBytesError)(nil), malformedError{}
	switch {
	case errors.Is(err, errGone):
		b.metrics.calls.WithLabelValues(callGone).Inc()
	case errors.As(err, &tooLarge):
		b.metrics.calls.WithLabelValues(callTooLarge).Inc()
		http.Error(w, "a call has at most "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes", http.StatusRequestEntityTooLarge)
	case errors.As(err, &malformed):
		b.metrics.calls.WithLabelValues(callMalformed).Inc()
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, errFull):
		b.metrics.calls.WithLabelValues(callBusy).Inc()
		w.Header().Set("Retry-After", "1")
		w.Header()[leasingHeader] = leasingUsual // by that a filter tells it from the 503 of a proxy that finds no bridge
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close") // or what is missing of the body would be waited for
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.metrics.calls.WithLabelValues(callLate).Inc()
		http.Error(w, "the call did not come whole within "+CallTime.String(), http.StatusRequestTimeout)
	default:
		b.metrics.calls.WithLabelValues(callGone).Inc()
		http.Error(w, "the call did not come whole", http.StatusBadRequest)
	}
}
