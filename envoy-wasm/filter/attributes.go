// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"

	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// attributes holds the parts of one request that the policy reads. It is filled once, from the
// headers.
type attributes struct {
	view        wire.View // of ask
	ask         wire.Ask  // the question for the bridge
	contentType string
	origin      uint64   // hash of the connection's address and x-request-id
	hurried     bool     // a header sets the upstream timeout
	bytes       int      // of all headers, which share one allocation
	again       []string // policy headers with more than one line
}

// take reads a request. Header names are lower case, as Envoy has them.
func (a *attributes) take(h Host, p *policy, headers [][2]string, appended bool) {
	a.release()
	a.view = wire.View{Ask: &a.ask, Inputs: &p.reads, At: h.Now()}
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
		case "host": // the same as :authority, if it is present at all
			if a.ask.Host == "" {
				a.ask.Host = field[1]
			}
			continue
		case "x-request-id":
			a.origin = hash(a.origin, field[1])
		case "content-type":
			a.contentType = field[1]
		default:
			a.hurried = a.hurried || name == "grpc-timeout" || strings.HasPrefix(name, "x-envoy-upstream-")
		}
		a.header(p, field[0], field[1]) // no policy can name a pseudo-header
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

// fnvOffset is the initial value of a hash.
const fnvOffset = 14695981039346656037

// hash continues the 64-bit FNV-1a hash h with a text.
//
//go:noinline
//go:noinline
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// release drops the request.
func (a *attributes) release() {
	clear(a.ask.Headers)
	clear(a.ask.Attrs)
	clear(a.again)
	*a = attributes{ask: wire.Ask{Headers: a.ask.Headers[:0], Attrs: a.ask.Attrs[:0]}, again: a.again[:0]}
}

// askBytesMax is the maximum length of a question, so that it fits into a call. Envoy accepts 60
// KiB of headers by default, and can be configured to accept up to 8 MiB.
const askBytesMax = wire.CallBytesMax - 4096

// size returns an upper bound of the size in bytes of a question about the request.
//
//go:noinline
func (a *attributes) size() int {
	const overhead = 8 // per text: its length, and whether it is present
	n := 64 + 4*overhead + len(a.ask.Path) + len(a.ask.Method) + len(a.ask.Host) + len(a.ask.Query)
	for _, list := range [...][]wire.Value{a.ask.Headers, a.ask.Attrs} {
		for i := range list {
			n += overhead + len(list[i].Text)
		}
	}
	return n
}

// header stores a header that the policy reads; if it has several lines, header stores the first.
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

// join joins all lines of a header in one step. Joining line by line would copy the first line once
// for each further line.
//
//go:noinline
func (a *attributes) join(p *policy, headers [][2]string, name string) {
	i, lines := p.headers[name], response.Lines(headers, name)
	a.ask.Headers[i].Text = corepolicy.JoinLines(p.reads.Headers[i], lines)
}
