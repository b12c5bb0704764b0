// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// Limits of what is read. They bound the memory and time that one response can cost the proxy.
const (
	// bytes of a JSON document, and of one event; documents that report usage are far smaller
	documentBytesMax = 1 << 20
	keptBytesMax     = 1 << 20 // bytes of a compressed body
	// bytes of a decompressed event stream; a body that expands further is an attack
	inflatedBytesMax = 16 << 20
)

// Tap reads numbers from a body that is written to it. Create one with [New]. A Tap must not be
// used concurrently.
type Tap struct {
	scan   scanner
	events *eventReader // nil: the body is one document
	coding coding
	// inflater is nil if the body is not compressed. Otherwise it decompresses the bytes in the
	// field kept, whose content coding is in the field content.
	inflater Inflater
	content  string
	kept     []byte // compressed
	share    keptShare
	read     int // bytes of the document
	ended    bool
	typed    bool // the content type is one that the tap reads
	skipped  bool // a document was beyond a limit, and no later one has a number
	results  []result
}

// result is the number found at one path.
type result struct {
	_ slim.Incomparable

	path  string
	value string
	found bool
}

// coding is how a body is compressed.
type coding uint8

const (
	codingNone       coding = iota
	codingCompressed        // in a way that the inflater supports
	codingUnreadable        // compressed in another way, of another type, or too large
)

// Inflater decompresses bodies. An Inflater is optional, so that a program that reads only plain
// bodies does not contain decoders.
type Inflater interface {
	// Inflates reports whether bodies of the content coding, in lower case, can be decompressed.
	Inflates(coding string) bool
	// Inflate passes the decompressed body to the function named pour, piece by piece, until the
	// body ends or is broken or the function returns false.
	Inflate(coding string, body []byte, pour func(piece []byte) (more bool))
}

// New returns a tap that reads the numbers at the paths. A path consists of member names joined by
// dots; an integer is an index in a list, as in usage.total_tokens or items.0.n. The arguments
// contentType and contentEncoding are those of the response. Compressed bodies are read only if
// inflater is not nil.
func New(paths []string, contentType, contentEncoding string, inflater Inflater) *Tap {
	t := &Tap{scan: newScanner(paths), results: make([]result, len(paths))}
	t.encoded(slim.LowerASCII(slim.TrimSpace(contentEncoding)), inflater)
	for i, path := range paths {
		t.results[i].path = path
	}
	kind, _, _ := strings.Cut(contentType, ";")
	switch kind = slim.LowerASCII(slim.TrimSpace(kind)); {
	case kind == "text/event-stream":
		t.events = &eventReader{t: t}
	case kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json"):
	default:
		t.coding = codingUnreadable
		return t
	}
	t.typed = true
	return t
}

func (t *Tap) encoded(content string, inflater Inflater) {
	switch {
	case content == "" || content == "identity":
	case inflater != nil && inflater.Inflates(content):
		t.coding, t.content, t.inflater = codingCompressed, content, inflater
	default:
		t.coding = codingUnreadable
	}
}

// CountFor bounds what the taps of one source, such as a client's address, keep together. The
// argument is the Source of counter.Check; 0 if it is unknown. CountFor must be called before the
// first chunk is written.
func (t *Tap) CountFor(source uint32) { t.share.countFor(source) }

// Withheld reports whether the response lacks a part of the body because of the client's request: a
// HEAD, range or conditional request, or an upgrade to another protocol. A number in that part
// cannot be read. The argument named head is also set for the response that opens a tunnel.
//
//go:noinline
func Withheld(head bool, status int, ranged bool) bool {
	return head && status >= 200 && status < 400 || status == 101 || status == 206 || status == 304 || ranged && status < 400
}

// Readable reports whether to write the body to the tap: the tap reads bodies of its type, and does
// not know yet that this one is too large.
func (t *Tap) Readable() bool { return t.coding != codingUnreadable && !t.ended }

// Write reads the next chunk of the body. Write always returns the chunk's length and a nil error,
// and does not retain the chunk.
func (t *Tap) Write(chunk []byte) (int, error) {
	switch {
	case !t.Readable():
	case t.coding == codingNone:
		t.readPlain(chunk)
	case len(t.kept)+len(chunk) > keptBytesMax || !t.share.grow(len(t.kept)+len(chunk)):
		t.coding = codingUnreadable
		t.Close()
	default:
		t.kept = append(t.kept, chunk...)
	}
	return len(chunk), nil
}

// Close releases the memory of a tap that is no longer needed. Close may be called more than once.
func (t *Tap) Close() {
	t.kept = nil
	t.share.end()
}

// GiveUp makes a compressed body unreadable, because there is no room to decompress it.
func (t *Tap) GiveUp() {
	t.coding = codingUnreadable
	t.Close()
}

// readPlain reads the next piece of the decompressed body.
func (t *Tap) readPlain(piece []byte) {
	if t.events != nil {
		t.events.write(piece)
		return
	}
	if t.read += len(piece); t.read > documentBytesMax {
		t.coding = codingUnreadable // unreadable from now on; no result has been stored yet
		return
	}
	t.scan.write(piece)
}

// Compressed reports whether [Tap.JSON] still has to decompress the body, which can take much
// longer than a Write.
func (t *Tap) Compressed() bool { return t.coding == codingCompressed && !t.ended }

// Unread reports whether the body has a content type that the tap reads, but cannot be read: its
// compression is not supported, or the body or one of its events is too large or too deep. Call
// Unread after JSON.
func (t *Tap) Unread() bool { return t.typed && (t.coding == codingUnreadable || t.skipped) }

// Cut reports whether the body would be incomplete if it ended here. A document is incomplete until
// its end; an event stream always is, because another event could follow. Call Cut before JSON.
//
//go:noinline
func (t *Tap) Cut() bool {
	return t.typed && (t.events != nil || t.coding != codingNone || !t.scan.isComplete())
}

// JSON returns the number at the path, as it is written in the body. The result ok is false if no
// number is there, or if it could not be read. Writes after JSON are ignored. The request's final
// charge is computed from these numbers.
func (t *Tap) JSON(path string) (value string, ok bool) {
	t.end()
	for i := range t.results {
		if r := &t.results[i]; r.path == path {
			return r.value, r.found
		}
	}
	return "", false
}

// Tap.end reads the remaining data when the body ends.
func (t *Tap) end() {
	if t.ended {
		return
	}
	t.ended = true
	if t.coding == codingCompressed {
		t.inflate()
	}
	switch {
	case t.coding == codingUnreadable:
	case t.events != nil:
		t.events.end()
	default:
		t.endDocument()
	}
	t.Close()
}

// endDocument stores the numbers of a document that has ended, if it is complete, and begins the
// next document. A client can make a document too deep, for example by a text that the upstream
// repeats.
func (t *Tap) endDocument() {
	if t.scan.isComplete() {
		for i := range t.scan.paths {
			if p := &t.scan.paths[i]; p.found {
				t.results[i].value, t.results[i].found = string(p.number), true
				t.skipped = false
			}
		}
	} else if t.scan.state == tooDeep {
		t.skipped = true
	}
	t.scan.reset()
}

// Tap.inflate reads the kept body, up to the limit. A broken body is read up to the error,
// like one that was cut short.
func (t *Tap) inflate() {
	total := 0
	t.inflater.Inflate(t.content, t.kept, func(piece []byte) bool {
		if total += len(piece); total > inflatedBytesMax {
			t.coding = codingUnreadable
			t.results = nil // the last report might be beyond the limit
			return false
		}
		t.readPlain(piece)
		return t.coding != codingUnreadable
	})
}
