// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
)

// The head of every call and reply: two letters and the version of the form.
const (
	callHead  = "pc\x01"
	replyHead = "pr\x01"
)

// ContentType says that a body is a call or a reply.
const ContentType = "application/x-penstock"

// Bounds of a call. The filter keeps them by making another call; the bridge refuses what is beyond.
const (
	ItemsMax     = 256     // questions and settlements of one call
	CallBytesMax = 1 << 20 // a question has 64 KiB at most, if its request's headers have
	ValuesMax    = 256     // headers or attributes of one question
)

// ErrMalformed is wrapped by every error about bytes that are no call or reply of this version.
var ErrMalformed = errors.New("not a penstock call of version 1")

// Kind says what an item of a call is.
type Kind uint8

// The kinds of items.
const (
	KindAsk    Kind = iota + 1 // decide this request
	KindWait                   // decide it, and answer once it is admitted: it is under a throttle rule
	KindSettle                 // the response of a request that was admitted before
)

// Item is a question, or what became of a request. Of the fields behind Kind, those of its kind are set.
type Item struct {
	Kind   Kind
	Ask    Ask
	Settle Settle
}

// Ask is a request to be decided, as the policy sees it.
type Ask struct {
	Path, Method, Host, Query string
	// Peer is the client's address as the front knows it, Remote that of the connection; zero for none.
	Peer, Remote netip.Addr
	// Headers and Attrs are the values of what the policy reads, in the order of core.Reads.
	Headers, Attrs []Value
	// Known is the sum of the fingerprints of the ways whose verdicts the filter remembers; 0 for none.
	Known uint64
}

// Value is a text that may be missing, which is not the same as empty.
type Value struct {
	Text  string
	Given bool
}

// Settle is what a response said about the cost of its request.
type Settle struct {
	Receipt string // as the reply to the question gave it
	Status  int    // 0: there was no response
	// Headers and Numbers are what cost_after asks for: response headers by canonical name, and numbers by their path in
	// the body. What was not there is left out.
	Headers, Numbers []Field
}

// Field is a name and what is under it.
type Field struct{ Name, Text string }

// AppendCall begins a call about one version of a policy. Items are appended to it.
func AppendCall(dst []byte, version string) []byte {
	return appendText(append(dst, callHead...), version)
}

// AppendItem appends an item to a call.
func AppendItem(dst []byte, item *Item) []byte {
	dst = append(dst, byte(item.Kind))
	if item.Kind == KindSettle {
		return item.Settle.append(dst)
	}
	return item.Ask.append(dst)
}

func (a *Ask) append(dst []byte) []byte {
	for _, text := range [...]string{a.Path, a.Method, a.Host, a.Query} {
		dst = appendText(dst, text)
	}
	dst = appendAddr(appendAddr(dst, a.Peer), a.Remote)
	dst = appendValues(appendValues(dst, a.Headers), a.Attrs)
	return appendFixed(dst, a.Known)
}

func (s *Settle) append(dst []byte) []byte {
	dst = appendInt(appendText(dst, s.Receipt), int64(s.Status))
	return appendFields(appendFields(dst, s.Headers), s.Numbers)
}

// CallReader reads a call item by item.
type CallReader struct {
	Version string // of the policy that the questions are about
	rest    cursor
	items   int
}

// ReadCall reads the beginning of a call. The texts of its items share one copy of data. The error wraps [ErrMalformed].
func ReadCall(data []byte) (*CallReader, error) {
	rest, err := open(data, callHead, CallBytesMax)
	if err != nil {
		return nil, err
	}
	r := &CallReader{rest: rest}
	r.Version = r.rest.text()
	return r, r.rest.err()
}

// Next reads the next item into item, whose lists are used again, and reports whether there was one; the error says that
// what remains of the call cannot be read.
func (r *CallReader) Next(item *Item) (ok bool, err error) {
	if r.rest.rest == "" {
		return false, r.rest.err()
	}
	if r.items++; r.items > ItemsMax {
		return false, errors.New("more than 256 questions in one call")
	}
	switch item.Kind = Kind(r.rest.byte()); item.Kind {
	case KindAsk, KindWait:
		item.Ask.read(&r.rest)
	case KindSettle:
		item.Settle.read(&r.rest)
	default:
		r.rest.fail()
	}
	return !r.rest.failed, r.rest.err()
}

func (a *Ask) read(c *cursor) {
	for _, text := range [...]*string{&a.Path, &a.Method, &a.Host, &a.Query} {
		*text = c.text()
	}
	a.Peer, a.Remote = c.addr(), c.addr()
	a.Headers, a.Attrs = c.values(a.Headers[:0]), c.values(a.Attrs[:0])
	a.Known = c.fixed()
}

func (s *Settle) read(c *cursor) {
	s.Receipt, s.Status = c.text(), int(c.int())
	s.Headers, s.Numbers = c.fields(s.Headers[:0]), c.fields(s.Numbers[:0])
}
