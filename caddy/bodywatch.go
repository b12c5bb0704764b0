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

// bodyWatch notes how far the body of a request has been read. Proxies read it in a goroutine of their own. The zero
// bodyWatch is that of a request without a body.
type bodyWatch struct {
	io.ReadCloser
	state atomic.Uint32 // of bodyState
}

// bodyState is how far a body has been read.
type bodyState uint32

const (
	bodyUntouched bodyState = iota
	bodyBegun
	bodyBroken // it ended before its end: the client left, was too slow, or sent what is no body
	bodyDone
)

// watchBody makes the request's body one that is watched, and returns it; nil if there is none.
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
	case errors.Is(err, http.ErrBodyReadAfterClose): // whoever reads the body has closed it
	case err != nil:
		b.state.CompareAndSwap(uint32(bodyBegun), uint32(bodyBroken))
	}
	return n, err
}

// clientAborts reports whether the client has left, or has broken off its request.
func (w *responder) clientAborts(ctx context.Context) bool {
	return ctx.Err() != nil || w.body != nil && bodyState(w.body.state.Load()) == bodyBroken
}

// narrow takes the codings out of Accept-Encoding in which a cost in the body cannot be read, if one is to be read.
func (w *responder) narrow(r *http.Request) {
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

// unfinished reports whether the client's request was being read, and not to its end: then an error may be of the client's
// making.
func (w *responder) unfinished() bool {
	return w.body != nil && bodyState(w.body.state.Load()) == bodyBegun
}
