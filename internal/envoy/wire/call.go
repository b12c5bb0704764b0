// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"

	"github.com/penstock/penstock/core/counter"
)

// The head of every call and reply: two letters and the version of the format. Version 2 is version
// 1 plus leases. A call without leases is of version 1, so a bridge that reads only that version
// can answer it.
const (
	callHead  = "pc"
	replyHead = "pr"
	plain     = 1
	leasing   = 2
)

// NodesHeader is the header, in lower case, with the number of nodes that share the bridge's store,
// including the bridge.
const NodesHeader = "x-penstock-nodes"

// LeasingHeader is the header, in lower case, by which a bridge announces in every reply that it
// accepts calls about leases.
const LeasingHeader = "x-penstock-leases"

// The values of LeasingHeader. LeasingExact also means that filters must not remember denials.
const (
	LeasingUsual = "1"
	LeasingExact = "exact"
)

// ContentType is the media type of calls and replies.
const ContentType = "application/x-penstock"

// Limits of a call. The filter makes another call rather than exceed these bounds, and the bridge
// rejects a call that exceeds them.
const (
	ItemsMax = 256 // questions and settlements in one call
	// bytes of a call; a question has at most 64 KiB if the request's headers have at most 64 KiB
	CallBytesMax = 1 << 20
	ValuesMax    = 256 // headers or attributes of one question
)

// ErrMalformed is wrapped by every error about bytes that are not a call or reply of these
// versions.
var ErrMalformed = errors.New("not a penstock call of version 1 or 2")

// Kind is the kind of an item of a call.
type Kind uint8

// The kinds of items.
const (
	KindAsk Kind = iota + 1 // decide this request
	// decide a request that waits under a throttle rule or for units of other regions, and answer
	// as soon as it is admitted or cannot be admitted
	KindWait
	KindSettle // the response to a request that was admitted before
	// The kinds in calls about leases.
	KindLease  // decide this request, and take more units than it needs
	KindFetch  // take units in advance, for the plan of a request that was decided
	KindRefund // units that were taken and not used
	// KindDenied reports denials that the filter decided without asking, for a bridge that wants
	// them: see [DenialsHeader]. Units has one entry: Check is the check that denied, or -1; Cost
	// is the number of denials of the request's client; Max is the number of further denials, which
	// are not reported. For a bridge that wants usage, it also reports admissions: Cost is then
	// minus their number, so that a bridge of an earlier release ignores the item.
	KindDenied
)

// DenialsHeader is the header, in lower case, in which a bridge requests items of [KindDenied].
const DenialsHeader = "x-penstock-denials"

// WantsUsage is the value of [DenialsHeader] by which a bridge requests reports of admissions, too.
// A bridge that wants only denials sends "1", as bridges of earlier releases do.
const WantsUsage = "2"

// LoansHeader is the header, in lower case, by which a filter announces that it reads [StatusLoan].
const LoansHeader = "x-penstock-loans"

// ReadsLate is the value of [LoansHeader] by which a filter announces that it reads [StatusLate],
// too. Filters of earlier releases send "1".
const ReadsLate = "2"

// LoanWait is the longest time for which a question of [KindWait] waits for units of other regions.
// The filter's wait for the answer need only be a little longer.
const LoanWait = 800 * counter.Millisecond

// SilentMin is the least time without an answer after which a filter treats a bridge as
// unreachable, and on_error decides.
const SilentMin = counter.Second

// AnswerTime is the longest time in which a bridge answers a call, except questions of [KindWait].
// The rest of [SilentMin] is for sending the answer to the filter.
const AnswerTime = 800 * counter.Millisecond

// Item is a question, a settlement or a refund. Kind determines which of the other fields are set.
type Item struct {
	Kind   Kind
	Ask    Ask
	Settle Settle
	Units  []Units // of KindLease; for KindFetch and KindDenied, exactly one
	Refund Refund
}

// Ask is a request to be decided, with the values that the policy reads.
type Ask struct {
	Path, Method, Host, Query string
	// Peer is the client's address as determined by the front, and Remote is the address of the
	// connection; the zero Addr if unknown.
	Peer, Remote netip.Addr
	// Headers and Attrs are the values that the policy reads, in the order of core.Inputs.
	Headers, Attrs []Value
	// Known is the sum of the fingerprints of the verdicts and the records that the filter
	// remembers; 0 for none.
	Known uint64
}

// Value is a string that may be absent. Absent is not the same as empty.
type Value struct {
	Text  string
	Given bool
}

// Settle holds the data of a response that determine the cost of its request.
type Settle struct {
	Receipt string // from the reply to the question
	Status  int    // as in core.Answer: 0 if the request had no response
	// Headers and Numbers are the values that cost_after reads. The name of a header is in
	// canonical form. The name of a number is its path in the body. A value that the response lacks
	// is absent.
	Headers, Numbers []Field
}

// Field is a name and its value.
type Field struct{ Name, Text string }

// AppendCall begins a call about one version of a policy. Append the call's items to the result.
// AppendCall is not inlined, which saves 400 bytes of the filter.
//
//go:noinline
func AppendCall(dst []byte, version string) []byte {
	return appendText(append(append(dst, callHead...), plain), version)
}

// Leasing marks a call as one about leases. The call must begin at the start of the slice.
func Leasing(call []byte) { call[len(callHead)] = leasing }

// AppendItem appends an item to a call. A call about leases must be marked with [Leasing] first.
func AppendItem(dst []byte, item *Item) []byte {
	switch item.Kind {
	case KindSettle:
		return AppendSettle(dst, &item.Settle)
	case KindRefund:
		return AppendRefund(dst, &item.Refund)
	case KindDenied:
		return AppendUnits(AppendAsk(dst, item.Kind, &item.Ask, nil), item.Units)
	default:
		return AppendAsk(dst, item.Kind, &item.Ask, item.Units)
	}
}

// AppendAsk appends a question of any kind; only the kinds about leases have units. The caller
// appends the units of KindDenied with [AppendUnits].
func AppendAsk(dst []byte, kind Kind, a *Ask, units []Units) []byte {
	if dst = a.append(append(dst, byte(kind))); kind >= KindLease && kind != KindDenied {
		dst = AppendUnits(dst, units)
	}
	return dst
}

// AppendSettle appends a settlement.
func AppendSettle(dst []byte, s *Settle) []byte { return s.append(append(dst, byte(KindSettle))) }

// AppendRefund appends a refund of leased units.
func AppendRefund(dst []byte, r *Refund) []byte { return r.append(append(dst, byte(KindRefund))) }

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
	Leasing bool   // the call is about leases, and so is its reply
	rest    cursor
	items   int
}

// ReadCall reads the beginning of a call. The texts of its items share one copy of data. The error
// wraps [ErrMalformed].
func ReadCall(data []byte) (*CallReader, error) {
	rest, leasing, err := open(data, callHead, CallBytesMax)
	if err != nil {
		return nil, err
	}
	r := &CallReader{rest: rest, Leasing: leasing}
	r.Version = r.rest.text()
	return r, r.rest.err()
}

// Next reads the next item into item, whose slices are reused, and reports whether there was one.
// The error means that the rest of the call cannot be read.
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
	case r.Leasing && (item.Kind == KindLease || item.Kind == KindFetch || item.Kind == KindDenied):
		item.Ask.read(&r.rest)
		item.Units = r.rest.units(item.Units[:0])
	case r.Leasing && item.Kind == KindRefund:
		item.Refund.read(&r.rest)
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
