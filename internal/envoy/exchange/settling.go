// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"strings"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/usage"
)

// Settling holds the settlement of a response and the data about the response. A Settling
// implements [core.Answer].
type Settling struct {
	core.Settlement
	status  int
	grpc    int          // the status of a gRPC response, as response.StatusOfGRPC returns it; otherwise 0
	headers []wire.Field // the headers read so far that can contain costs
	texts   []byte       // the texts of headers
	tap     *usage.Tap   // reads the body; nil if the body contains no cost
	awaits  bool         // whether a header can still come in the trailers
	unread  bool         // whether the body contains a cost but cannot be read
	cut     bool         // whether the response was truncated
}

// Beginning describes a response that begins.
type Beginning struct {
	Status  int
	Headers [][2]string
	Ends    bool // whether there is no body
	Head    bool // whether the request's method implies that there is no body; see HasNoBody
	// Aborted reports that the response did not come from the upstream, and that a client might
	// have caused this: see Aborts.
	Aborted  bool
	Inflater usage.Inflater // if nil, compressed bodies are not read
}

// Begin reads costs from the beginning of a response. It reports whether no further data is needed.
// Then the settlement is due at once, because a stream can last for hours.
//
//go:noinline
func (d *Settling) Begin(b *Beginning) (due bool) {
	if b.Aborted {
		d.Cut()
		return true
	}
	d.status = b.Status
	d.learn(b.Headers)
	if b.Status == 200 && d.NeedsStatus() && response.IsGRPC(firstValue(b.Headers, "content-type")) {
		d.grpc = core.StatusUnread
		d.learnGRPC(b.Headers)
	}
	bodied := !b.Ends && !b.Head && b.Status >= 200 && b.Status != 204 && b.Status != 304
	d.awaits = bodied && (d.grpc == core.StatusUnread || !hasHeader(b.Headers, "content-length") && d.Awaits(d))
	if paths := d.Paths(); bodied && len(paths) > 0 {
		tap := usage.New(paths, firstValue(b.Headers, "content-type"), firstValue(b.Headers, "content-encoding"), b.Inflater)
		tap.CountFor(d.Source())
		if d.unread = tap.Unread(); tap.Readable() {
			d.tap = tap
		}
	}
	if usage.Withheld(b.Head, b.Status, hasHeader(b.Headers, "content-range")) {
		d.unread = true // a cost in a header can still be read
	}
	return d.tap == nil && !d.awaits
}

// Cost returns the cost of the request if the beginning of the response determines it.
//
//go:noinline
func (d *Settling) Cost() (cost int64, known bool) {
	if d.awaits || d.status == 0 {
		return 0, false
	}
	return d.CostNow(d)
}

// Listens reports whether Body must see the body.
func (d *Settling) Listens() bool { return d.tap != nil && d.tap.Readable() }

// Compressed reports whether a compressed body was kept for the settlement to decompress.
func (d *Settling) Compressed() bool { return d.tap != nil && d.tap.Compressed() }

// GiveUp makes a compressed body unreadable, because there is no room to decompress it.
func (d *Settling) GiveUp() { d.tap.GiveUp() }

// Body reads a piece of the body. It keeps the piece only if the body is compressed.
//
//go:noinline
func (d *Settling) Body(piece []byte) {
	if d.Listens() {
		_, _ = d.tap.Write(piece) // the writer accepts all bytes
	}
}

// Trailers reads the trailers.
func (d *Settling) Trailers(trailers [][2]string) {
	d.learn(trailers)
	if d.grpc != 0 {
		d.learnGRPC(trailers)
	}
}

// learnGRPC reads the status of a gRPC response, which is in the trailers, or in the header of a
// response without messages.
func (d *Settling) learnGRPC(headers [][2]string) {
	if code := firstValue(headers, "grpc-status"); code != "" {
		d.grpc = response.StatusOfGRPC(code)
	}
}

// Cut records that the response was truncated.
func (d *Settling) Cut() {
	d.cut = true
	d.learn(nil)
}

// Incomplete reports whether the response would be incomplete if it ended here. It is true for a
// response without a body to read, because its settlement waits for trailers.
func (d *Settling) Incomplete() bool { return d.tap == nil || d.tap.Cut() }

// Known returns the headers read so far that can contain costs.
func (d *Settling) Known() []wire.Field { return d.headers }

// Forget drops the data about a response, and keeps the buffers for the next one.
func (d *Settling) Forget() {
	if cap(d.texts) > textsKept {
		d.texts = nil
	}
	d.texts = d.texts[:0]
	d.status, d.grpc, d.headers, d.tap, d.awaits, d.unread, d.cut = 0, 0, d.headers[:0], nil, false, false, false
}

// Close releases the memory of a settlement whose body might not have been read to its end.
func (d *Settling) Close() {
	if d.tap != nil {
		d.tap.Close()
	}
}

// Settling.learn stores headers that can contain costs, unless they are stored already. Headers
// that are missing from a truncated response count as unread, because they might have been in its
// trailers.
//
//go:noinline
func (d *Settling) learn(headers [][2]string) {
	for _, name := range d.Settlement.Headers() {
		if _, known := d.Header(name); known {
			continue
		}
		text, found := d.read(headers, name)
		if !found {
			if !d.cut {
				continue
			}
			text = core.UnreadMark
		}
		d.headers = append(d.headers, wire.Field{Name: name, Text: text})
	}
}

// Settling.read returns a copy of a header, which is valid until Forget. The lines of a header
// that is repeated are joined.
func (d *Settling) read(headers [][2]string, name string) (text string, found bool) {
	start := len(d.texts)
	for i := range headers {
		if !slim.EqualASCII(headers[i][0], name) {
			continue
		}
		if found {
			d.texts = append(d.texts, ", "...)
		}
		d.texts, found = append(d.texts, headers[i][1]...), true
	}
	return unsafe.String(unsafe.SliceData(d.texts[start:]), len(d.texts)-start), found
}

// hasHeader reports whether a header is present.
//
//go:noinline
func hasHeader(headers [][2]string, name string) bool {
	for i := range headers {
		if headers[i][0] == name {
			return true
		}
	}
	return false
}

//go:noinline
func firstValue(headers [][2]string, name string) string {
	for i := range headers {
		if headers[i][0] == name {
			return headers[i][1]
		}
	}
	return ""
}

// Status implements [core.Answer].
func (d *Settling) Status() int {
	if d.grpc != 0 {
		return d.grpc
	}
	return d.status
}

// Header implements [core.Answer].
func (d *Settling) Header(name string) (string, bool) {
	for i := range d.headers {
		if d.headers[i].Name == name {
			return d.headers[i].Text, true
		}
	}
	return "", false
}

// JSON implements [core.Answer].
func (d *Settling) JSON(path string) (string, bool) {
	var value string
	var ok bool
	unread := d.unread || d.cut
	if d.tap != nil {
		value, ok = d.tap.JSON(path)
		unread = unread || d.tap.Unread()
	}
	if unread {
		return core.UnreadMark + value, true
	}
	return value, ok
}

var _ core.Answer = (*Settling)(nil)

// HasNoBody reports whether a successful response to a request with that method has no body. After
// the response to CONNECT, another protocol follows.
//
//go:noinline
func HasNoBody(method string) bool { return method == "HEAD" || method == "CONNECT" }

// StatusOf returns the status in the headers of a response. A status that is not a number counts as
// 0.
//
//go:noinline
func StatusOf(headers [][2]string) int {
	for i := range headers {
		if headers[i][0] == ":status" {
			status, _ := slim.ParseWhole(headers[i][1])
			return int(status)
		}
	}
	return 0
}

// Unreached reports whether Envoy made the response because its last attempt found no upstream that
// accepts connections. A client cannot cause that. But an earlier attempt may have reached an
// upstream that then failed. The argument details is Envoy's response.code_details.
//
//go:noinline
func Unreached(details string) bool {
	return details == "no_healthy_upstream" || strings.Contains(details, "connection_failure") || strings.Contains(details, "connection_timeout")
}

// Aborts reports whether Envoy itself made the response, in place of the upstream, for a reason
// that a client can cause. Either the request has not come to its end, or it reached the upstream
// and Envoy could not accept the response, which a client can make too large or too slow. The
// argument details is Envoy's response.code_details, and complete reports whether the request has
// come to its end. Aborts is false for an [Unreached] response.
//
//go:noinline
func Aborts(details string, complete bool) bool {
	if details == "" || details == "via_upstream" || Unreached(details) {
		return false
	}
	return !complete || strings.HasPrefix(details, "upstream_") || strings.HasPrefix(details, "response_payload") ||
		strings.Contains(details, "timeout")
}
