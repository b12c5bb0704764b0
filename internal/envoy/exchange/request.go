// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// Reads lists the values that one version of a policy reads from a request.
type Reads struct {
	core.Inputs
	index map[string]int // the index in Headers, by name in lower case
}

// ReadsOf returns the Reads for the inputs of a policy.
func ReadsOf(inputs core.Inputs) Reads {
	r := Reads{Inputs: inputs, index: make(map[string]int, len(inputs.Headers))}
	for i, name := range inputs.Headers {
		r.index[slim.LowerASCII(name)] = i
	}
	return r
}

// Request holds the parts of one request that the policy reads. A Request is filled once, from the
// headers. The zero Request is ready for use, and so is a Request after [Request.Release].
type Request struct {
	View        wire.View // implements policy.Attributes for Ask
	Ask         wire.Ask
	ContentType string
	ID          string   // the x-request-id
	Bytes       int      // the size of all headers
	again       []string // headers of the policy with more than one line
	texts       []byte   // the texts that Own has copied
}

// textsKept is the number of bytes that a request keeps for the texts of the next one.
const textsKept = 8 << 10

// textsUsual is the number of bytes for the texts of the first request.
const textsUsual = 512

// Take reads the headers of a request. The headers' names are lower case, as Envoy has them. The
// request keeps the texts of the headers.
//
//go:noinline
func (q *Request) Take(reads *Reads, headers [][2]string, now counter.Micros) {
	q.Release()
	q.View = wire.View{Ask: &q.Ask, Inputs: &reads.Inputs, At: now}
	for range reads.Headers {
		q.Ask.Headers = append(q.Ask.Headers, wire.Value{})
	}
	for _, field := range headers {
		q.Bytes += len(field[0]) + len(field[1])
		switch name := field[0]; name {
		case ":path":
			q.Ask.Path, q.Ask.Query, _ = strings.Cut(field[1], "?")
		case ":method":
			q.Ask.Method = field[1]
		case ":authority":
			q.Ask.Host = field[1]
		case "host": // used only if :authority is missing or empty
			if q.Ask.Host == "" {
				q.Ask.Host = field[1]
			}
		case "x-request-id":
			q.ID = field[1]
			q.header(reads, name, field[1])
		case "content-type":
			q.ContentType = field[1]
			q.header(reads, name, field[1])
		default:
			q.header(reads, name, field[1])
		}
	}
	for _, name := range q.again {
		i := reads.index[name]
		q.Ask.Headers[i].Text = policy.JoinLines(reads.Headers[i], response.Lines(headers, name))
	}
	if !reads.Query {
		q.Ask.Query = ""
	}
}

// Request.header stores a header that the policy reads; if it has several lines, the method
// stores the first one. The lines are joined later in one step, because joining line by line
// would copy the first line once for each further line.
//
//go:noinline
func (q *Request) header(reads *Reads, name, value string) {
	i, ok := reads.index[name]
	if !ok {
		return
	}
	v := &q.Ask.Headers[i]
	if !v.Given {
		*v = wire.Value{Text: value, Given: true}
	} else if !slices.Contains(q.again, name) {
		q.again = append(q.again, name)
	}
}

// Release drops the request and keeps the slices for the next one.
//
//go:noinline
func (q *Request) Release() {
	clear(q.Ask.Headers)
	clear(q.Ask.Attrs)
	clear(q.again)
	if cap(q.texts) > textsKept {
		q.texts = nil
	}
	*q = Request{Ask: wire.Ask{Headers: q.Ask.Headers[:0], Attrs: q.Ask.Attrs[:0]}, again: q.again[:0], texts: q.texts[:0]}
}

// Own copies the texts of the request into memory of its own, where they are valid until Release.
// Without this call, a request is valid only as long as the headers from which it was taken. Own
// allocates only if the request has more text than every earlier one.
func (q *Request) Own() {
	texts := [...]*string{&q.Ask.Path, &q.Ask.Method, &q.Ask.Host, &q.Ask.Query, &q.ContentType, &q.ID}
	n := 0
	for _, text := range texts {
		n += len(*text)
	}
	for i := range q.Ask.Headers {
		n += len(q.Ask.Headers[i].Text)
	}
	for i := range q.Ask.Attrs {
		n += len(q.Ask.Attrs[i].Text)
	}
	if n > cap(q.texts) {
		q.texts = make([]byte, 0, max(n, textsUsual))
	}
	all := q.texts[:0]
	keep := func(text *string) {
		start := len(all)
		all = append(all, *text...)
		*text = unsafe.String(unsafe.SliceData(all[start:]), len(*text)) // within its capacity
		if len(all) == start {
			*text = ""
		}
	}
	for _, text := range texts {
		keep(text)
	}
	for i := range q.Ask.Headers {
		keep(&q.Ask.Headers[i].Text)
	}
	for i := range q.Ask.Attrs {
		keep(&q.Ask.Attrs[i].Text)
	}
}

// Union returns the inputs that r or the argument named others contains.
func (r *Reads) Union(others core.Inputs) core.Inputs {
	both := func(a, b []string) []string {
		all := slices.Concat(a, b)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return core.Inputs{Headers: both(r.Headers, others.Headers), Attrs: both(r.Attrs, others.Attrs), Query: r.Query || others.Query}
}
