// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock/internal/usage/inflate"
)

// bodyWatch records how far a request body has been read. A proxy reads the body in its own
// goroutine.
type bodyWatch struct {
	io.ReadCloser
	state atomic.Uint32 // a bodyState
}

// bodyState states how far a body has been read.
type bodyState uint32

const (
	bodyUntouched bodyState = iota
	bodyBegun
	bodyBroken // reading failed: the client left, was too slow, or sent a malformed body
	bodyDone
)

// watchBody wraps the request's body in a bodyWatch and returns the bodyWatch, or nil if there is
// no body.
func watchBody(r *http.Request) *bodyWatch {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	watched := &bodyWatch{ReadCloser: r.Body}
	r.Body = watched
	return watched
}

// Read implements [io.Reader].
func (b *bodyWatch) Read(p []byte) (int, error) {
	b.state.CompareAndSwap(uint32(bodyUntouched), uint32(bodyBegun))
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.state.CompareAndSwap(uint32(bodyBegun), uint32(bodyDone))
	case errors.Is(err, http.ErrBodyReadAfterClose): // the client did not cause this error
	case err != nil:
		b.state.CompareAndSwap(uint32(bodyBegun), uint32(bodyBroken))
	}
	return n, err
}

// clientAborts reports whether the client has disconnected or its request body could not be read.
func (w *responder) clientAborts(ctx context.Context) bool {
	return ctx.Err() != nil || w.body != nil && bodyState(w.body.state.Load()) == bodyBroken
}

// narrowCodings removes from Accept-Encoding the content codings that Penstock cannot decode, if a
// cost must be read from the response body.
func (w *responder) narrowCodings(r *http.Request) {
	reads := false
	for s := w.settlement; s != nil; s = s.next {
		reads = reads || len(s.Paths()) > 0
	}
	accepted := r.Header["Accept-Encoding"]
	if !reads || len(accepted) == 0 {
		return
	}
	var kept []string
	for element := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		element = strings.TrimSpace(element)
		coding, _, _ := strings.Cut(element, ";")
		if coding = strings.ToLower(strings.TrimSpace(coding)); coding == "identity" || (inflate.Bodies{}).Inflates(coding) {
			kept = append(kept, element)
		}
	}
	if kept == nil {
		kept = []string{"identity"}
	}
	r.Header["Accept-Encoding"] = []string{strings.Join(kept, ", ")}
}

// responder.unfinished reports whether the request body was read only in part. An error may then
// be the client's fault.
func (w *responder) unfinished() bool {
	return w.body != nil && bodyState(w.body.state.Load()) == bodyBegun
}
