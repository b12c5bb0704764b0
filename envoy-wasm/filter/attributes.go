// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// attributes is one request as the policy sees it. It is taken in once, when the headers are there, and keeps what the
// policy reads and nothing else.
type attributes struct {
	view        wire.View // of ask
	ask         wire.Ask  // as the bridge is asked about it
	contentType string
	origin      uint64   // a hash of the connection's address and x-request-id
	hurried     bool     // a header says how long the upstream may take
	bytes       int      // of all headers: they are one piece of memory
	again       []string // headers of the policy that have more than one line
}

// take takes a request in. Header names are lower case, as Envoy has them.
func (a *attributes) take(h Host, p *policy, headers [][2]string, appended bool) {
	a.release()
	a.view = wire.View{Ask: &a.ask, Reads: &p.reads, At: h.Now()}
	a.origin = fnvOffset
	for range p.reads.Headers {
		a.ask.Headers = append(a.ask.Headers, wire.Value{})
	}
	for _, field := range headers {
		a.bytes += len(field[0]) + len(field[1])
		switch name := field[0]; name {
		case ":path":
			a.ask.Path, a.ask.Query, _ = strings.Cut(field[1], "?")
		case ":method":
			a.ask.Method = field[1]
		case ":authority":
			a.ask.Host = field[1]
		case "host": // is :authority, and stands there as well at most
			if a.ask.Host == "" {
				a.ask.Host = field[1]
			}
		case "x-request-id":
			a.origin = hash(a.origin, field[1])
			a.header(p, name, field[1])
		case "content-type":
			a.contentType = field[1]
			a.header(p, name, field[1])
		default:
			a.hurried = a.hurried || name == "grpc-timeout" || strings.HasPrefix(name, "x-envoy-upstream-rq-")
			a.header(p, name, field[1])
		}
	}
	for _, name := range a.again {
		a.join(p, headers, name)
	}
	if !p.reads.Query {
		a.ask.Query = ""
	}
	a.address(h, appended)
	for _, name := range p.reads.Attrs {
		a.ask.Attrs = append(a.ask.Attrs, attribute(h, name))
	}
}

// fnvOffset is what the hash of a text begins with.
const fnvOffset = 14695981039346656037

// hash goes on with the 64-bit FNV-1a hash of a text.
//
//go:noinline
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// release lets go of the request.
func (a *attributes) release() {
	clear(a.ask.Headers)
	clear(a.ask.Attrs)
	clear(a.again)
	*a = attributes{ask: wire.Ask{Headers: a.ask.Headers[:0], Attrs: a.ask.Attrs[:0]}, again: a.again[:0]}
}

// askBytesMax is how long a question may be: so long that it fits into a call. Envoy takes 60 KiB of headers, unless it is
// told to take up to 8 MiB.
const askBytesMax = wire.CallBytesMax - 4096

// size returns how many bytes a question about the request has at most.
//
//go:noinline
func (a *attributes) size() int {
	const overhead = 8 // of a text: its length, and whether it is there
	n := 64 + 4*overhead + len(a.ask.Path) + len(a.ask.Method) + len(a.ask.Host) + len(a.ask.Query)
	for _, list := range [...][]wire.Value{a.ask.Headers, a.ask.Attrs} {
		for i := range list {
			n += overhead + len(list[i].Text)
		}
	}
	return n
}

// header keeps a header that the policy reads, and of several lines the first.
//
//go:noinline
func (a *attributes) header(p *policy, name, value string) {
	i, ok := p.headers[name]
	if !ok {
		return
	}
	v := &a.ask.Headers[i]
	if !v.Given {
		*v = wire.Value{Text: value, Given: true}
	} else if !slices.Contains(a.again, name) {
		a.again = append(a.again, name)
	}
}

// join puts the lines of a header together, all at once: one after the other would copy the first as often as there are
// lines.
//
//go:noinline
func (a *attributes) join(p *policy, headers [][2]string, name string) {
	i, lines := p.headers[name], lines(headers, name)
	a.ask.Headers[i].Text = core.JoinLines(p.reads.Headers[i], lines)
}
