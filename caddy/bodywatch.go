// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
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

// unfinished reports whether the client's request was being read, and not to its end: then an error may be of the client's
// making.
func (w *responder) unfinished() bool {
	return w.body != nil && bodyState(w.body.state.Load()) == bodyBegun
}
