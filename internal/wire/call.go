// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
)

// The head of every call and reply: two letters and the version of the form. The second version is the first with what is
// about leases beside; a call that has none of that is of the first, so that a bridge that only knows that one answers it.
const (
	callHead  = "pc"
	replyHead = "pr"
	plain     = 1
	leasing   = 2
)

// NodesHeader is the field, in lower case, with which a bridge says how many nodes count in its store, itself included.
const NodesHeader = "x-penstock-nodes"

// LeasingHeader is the field, in lower case, with which a bridge says in every reply that it reads calls about leases.
const LeasingHeader = "x-penstock-leases"

// The values of that field: LeasingExact says besides that filters are not to remember what was refused.
const (
	LeasingUsual = "1"
	LeasingExact = "exact"
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
var ErrMalformed = errors.New("not a penstock call of version 1 or 2")

// Kind says what an item of a call is.
type Kind uint8

// The kinds of items.
const (
	KindAsk    Kind = iota + 1 // decide this request
	KindWait                   // decide it, and answer once it is admitted: it is under a throttle rule
	KindSettle                 // the response of a request that was admitted before
	// Of calls about leases:
	KindLease  // decide this request, and take more units than it needs
	KindFetch  // take units in advance, in the name of a request that was decided
	KindReturn // units that were taken and not used
)

// Item is a question, or what became of a request. Of the fields behind Kind, those of its kind are set.
type Item struct {
	Kind   Kind
	Ask    Ask
	Settle Settle
	Units  []Units // of KindLease, and of KindFetch: one then
	Return Return
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
	return appendText(append(append(dst, callHead...), plain), version)
}

// Leasing makes a call, which begins its slice, one about leases.
func Leasing(call []byte) { call[len(callHead)] = leasing }

// AppendItem appends an item to a call; if it is about leases, the call must be told by [Leasing].
func AppendItem(dst []byte, item *Item) []byte {
	switch item.Kind {
	case KindSettle:
		return AppendSettle(dst, &item.Settle)
	case KindReturn:
		return AppendReturn(dst, &item.Return)
	default:
		return AppendAsk(dst, item.Kind, &item.Ask, item.Units)
	}
}

// AppendAsk appends a question of any kind; units go with kinds about leases.
func AppendAsk(dst []byte, kind Kind, a *Ask, units []Units) []byte {
	if dst = a.append(append(dst, byte(kind))); kind >= KindLease {
		dst = appendUnits(dst, units)
	}
	return dst
}

// AppendSettle appends what became of a request.
func AppendSettle(dst []byte, s *Settle) []byte { return s.append(append(dst, byte(KindSettle))) }

// AppendReturn appends units that are given back.
func AppendReturn(dst []byte, r *Return) []byte { return r.append(append(dst, byte(KindReturn))) }

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
	Leasing bool   // it is about leases, and so is its reply
	rest    cursor
	items   int
}

// ReadCall reads the beginning of a call. The texts of its items share one copy of data. The error wraps [ErrMalformed].
func ReadCall(data []byte) (*CallReader, error) {
	rest, leasing, err := open(data, callHead, CallBytesMax)
	if err != nil {
		return nil, err
	}
	r := &CallReader{rest: rest, Leasing: leasing}
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
	switch item.Kind = Kind(r.rest.byte()); {
	case item.Kind == KindAsk || item.Kind == KindWait:
		item.Ask.read(&r.rest)
	case item.Kind == KindSettle:
		item.Settle.read(&r.rest)
	case r.Leasing && (item.Kind == KindLease || item.Kind == KindFetch):
		item.Ask.read(&r.rest)
		item.Units = r.rest.units(item.Units[:0])
	case r.Leasing && item.Kind == KindReturn:
		item.Return.read(&r.rest)
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
