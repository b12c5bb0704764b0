// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"

	"github.com/penstock/penstock/internal/listen"
)

// Bounds on the calls that are being received. A call counts towards CallsMax only after it has
// been received. So a caller that sends half a call and waits does not take the place of a call
// that can be answered.
const (
	// CallTime bounds the time to receive a call, from its first byte to its last. A server of
	// [Bridge.Handler] sets it as its read timeout. A slower call is answered 408, or its
	// connection is closed. Filters send a whole call at once, and few filters wait this long for
	// the answer.
	CallTime = listen.FirstCallTime / 2
	// ReplyTime bounds the time a server of [Bridge.Handler] takes to write a reply, counted from
	// the head of the call. For a call that waits for a throttle rule, it counts from the end of
	// the wait.
	ReplyTime = 2 * CallTime
	// receivingMax bounds the calls being received, which use about 10 KB each. Further calls are
	// answered 503.
	receivingMax = 1 << 14
	// bodiesMax bounds the bytes of the bodies of all calls together, except the first bodyFree of
	// each. bodiesMax includes calls that are being received, decided, or waiting. A call that
	// needs more is answered 503.
	bodiesMax = 256 << 20
	// bodyFree is the number of bytes of each call that are not counted. Most calls are not larger.
	bodyFree = 4 << 10
)

// Reasons why a call is not answered.
var (
	errFull = errors.New("too many calls are under way")
	errGone = errors.New("the caller has left")
)

// malformedError is the error of a call that cannot be read.
type malformedError struct{ error }

// Bridge.receive reads the whole body of a call.
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

// Bridge.enter counts a received call towards CallsMax and reports whether there is room for
// it. If there is, the caller must call leave.
func (b *Bridge) enter() bool {
	if b.under.Add(1) <= int64(b.options.CallsMax) {
		return true
	}
	b.leave()
	return false
}

func (b *Bridge) leave() { b.under.Add(-1) }

// Bridge.reject answers a call that is not decided.
func (b *Bridge) reject(w http.ResponseWriter, r *http.Request, err error) {
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
		// This header lets a filter distinguish the answer from the 503 of a proxy.
		w.Header()[leasingHeader] = leasingUsual
		if r.ProtoMajor == 1 {
			// Without this header, the server would wait for the rest of the body.
			w.Header().Set("Connection", "close")
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.metrics.calls.WithLabelValues(callLate).Inc()
		http.Error(w, "the call was not received completely within "+CallTime.String(), http.StatusRequestTimeout)
	default:
		b.metrics.calls.WithLabelValues(callGone).Inc()
		http.Error(w, "the call was not received completely", http.StatusBadRequest)
	}
}
