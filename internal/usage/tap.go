// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
)

// Bounds of what is read. They bound what one response can cost the proxy in memory and time.
const (
	documentBytesMax = 1 << 20  // of a JSON document, and of one event: usage reports are at the end of far smaller ones
	keptBytesMax     = 1 << 20  // of a compressed body
	inflatedBytesMax = 16 << 20 // of a compressed event stream: a thousandfold expansion is an attack
)

// Tap reads numbers from a body that is written to it. Make one with [New]. It must not be used concurrently.
type Tap struct {
	scan   scanner
	events *eventReader // nil: the body is one document
	coding coding
	// inflater decompresses what is kept, which is in the content coding; nil if the body is not compressed.
	inflater Inflater
	content  string
	kept     []byte // compressed
	read     int    // bytes of the document
	ended    bool
	typed    bool // the content type is one that is read here
	results  []result
}

// result is what was found at one path.
type result struct {
	path  string
	value string
	found bool
}

// coding is how a body is compressed.
type coding uint8

const (
	codingNone       coding = iota
	codingCompressed        // in a way that the inflater knows
	codingUnreadable        // or of a kind that is not read here, or more of it than is kept
)

// Inflater decompresses bodies. It is an option, so that who reads plain bodies only does not carry decoders.
type Inflater interface {
	// Inflates reports whether bodies of the content coding, in lower case, can be decompressed.
	Inflates(coding string) bool
	// Inflate gives the decompressed body to pour, piece by piece, until it is over or broken or pour reports false.
	Inflate(coding string, body []byte, pour func(piece []byte) (more bool))
}

// New returns a tap on a body that reads the numbers at the paths: names of members with dots between them, a whole
// number being the index in a list, as in usage.total_tokens or items.0.n. contentType and contentEncoding are those of
// the response. Compressed bodies are read with the inflater, and not without.
func New(paths []string, contentType, contentEncoding string, inflater Inflater) *Tap {
	t := &Tap{scan: newScanner(paths), results: make([]result, len(paths))}
	t.encoded(lowerASCII(strings.TrimSpace(contentEncoding)), inflater)
	for i, path := range paths {
		t.results[i].path = path
	}
	kind, _, _ := strings.Cut(contentType, ";")
	switch kind = lowerASCII(strings.TrimSpace(kind)); {
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

// Readable reports whether there is any sense in writing to the tap: that the body is of a kind that is read here, and not
// yet known to be too large.
func (t *Tap) Readable() bool { return t.coding != codingUnreadable && !t.ended }

// Write takes the next chunk of the body. It returns its length and no error, whatever it holds, and keeps nothing of it.
func (t *Tap) Write(chunk []byte) (int, error) {
	switch {
	case !t.Readable():
	case t.coding == codingNone:
		t.plain(chunk)
	case len(t.kept)+len(chunk) > keptBytesMax:
		t.coding, t.kept = codingUnreadable, nil
	default:
		t.kept = append(t.kept, chunk...)
	}
	return len(chunk), nil
}

// plain reads the next piece of the body as it is when decompressed.
func (t *Tap) plain(piece []byte) {
	if t.events != nil {
		t.events.write(piece)
		return
	}
	if t.read += len(piece); t.read > documentBytesMax {
		t.coding = codingUnreadable // and so it stays: nothing was taken over yet
		return
	}
	t.scan.write(piece)
}

// Unread reports whether the body holds numbers as far as its type says, and they cannot be read: it is compressed in a way
// that is not, or too large.
func (t *Tap) Unread() bool { return t.typed && t.coding == codingUnreadable }

// Cut reports whether the body, if it were over now, would lack its end: for a document until it is complete, for an event
// stream always, since another event could follow. Ask before JSON.
//
//go:noinline
func (t *Tap) Cut() bool {
	return t.typed && (t.events != nil || t.coding != codingNone || !t.scan.complete())
}

// JSON returns the number at the path, as it is written in the body; ok is false if there is none or it could not be read.
// The body is over then: what is written after is not read. It is the part of an answer that core settles by.
func (t *Tap) JSON(path string) (value string, ok bool) {
	t.end()
	for i := range t.results {
		if r := &t.results[i]; r.path == path {
			return r.value, r.found
		}
	}
	return "", false
}

// end reads what is left when the body is over.
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
		t.take()
	}
	t.kept = nil
}

// take takes over what was found in a document that is over, if that is what it was, and begins the next one.
func (t *Tap) take() {
	if t.scan.complete() {
		for i := range t.scan.paths {
			if p := &t.scan.paths[i]; p.found {
				t.results[i].value, t.results[i].found = string(p.number), true
			}
		}
	}
	t.scan.reset()
}

// inflate reads the body that was kept, as much of it as is read. What is broken is read up to there, as a body that was
// cut short is.
func (t *Tap) inflate() {
	total := 0
	t.inflater.Inflate(t.content, t.kept, func(piece []byte) bool {
		if total += len(piece); total > inflatedBytesMax {
			t.coding = codingUnreadable
			t.results = nil // the last report is not among what was read
			return false
		}
		t.plain(piece)
		return t.coding != codingUnreadable
	})
}

// lowerASCII is as much of strings.ToLower as names of media types need: the whole of it is 15 KB of a filter.
//
//go:noinline
func lowerASCII(text string) string {
	lower := []byte(text)
	for i, c := range lower {
		if c >= 'A' && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	return string(lower)
}
