// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Status is the outcome of an item.
type Status uint8

// The outcomes. After StatusUnavailable, StatusUnknown or StatusInvalid, the filter decides by
// the policy's on_error.
const (
	StatusOK          Status = iota
	StatusUnavailable        // the store did not answer
	// the bridge does not have that version of the policy, or no longer has it
	StatusUnknown
	// the item does not fit the policy, or its receipt is not from this bridge
	StatusInvalid
	// the bridge is overloaded, and charged nothing if the filter announces [ReadsLate]
	StatusBusy
	// The request lacks units that other regions might lend, and was not charged. The filter
	// repeats the question in a separate call, which waits for the units. A bridge sends this
	// status only to a filter that has announced [LoansHeader].
	StatusLoan
	// The bridge or its store is overloaded, and the request may have been charged. The filter
	// denies it and does not repeat the question. A bridge sends this status only to a filter that
	// has announced [ReadsLate]; others get StatusBusy.
	StatusLate
)

// Answer is the bridge's answer to one item.
type Answer struct {
	Status Status
	// Verdict reports whether the request's credentials are valid; nil if the filter remembers the
	// verdict, or if there are no credentials.
	Verdict *Verdict
	// Results are the results of the plan's checks, in their order, without receipts. A filter
	// whose plan has a different number of checks must not use them.
	Results []counter.Result
	// Receipt is needed for the request's settlement; "" if there is nothing to settle.
	Receipt string
	// Leases are the units granted beyond a request's own cost, or in advance. Results then contain
	// the units granted to the request itself, or all units if they were taken in advance.
	Leases []Lease
}

// Verdict has, for each way in the policy's order, the state of the request's credential.
type Verdict struct {
	TTLMicros int64 // how long the verdict may be remembered
	Ways      []Way
	// Records holds the records of the clients that the plan looks up, in the order of the lookups,
	// as [AppendRecord] encodes them. Records is empty for a policy without a directory.
	Records string
}

// Way is the verdict on the credential of one entry of the policy's "identify".
type Way struct {
	_ slim.Incomparable

	Index    int // the index of the entry in "identify"
	State    policy.CredentialState
	Identity policy.Identity // if the state is valid
}

// AppendReply begins a reply. Append one answer to it for each item of the call, in their order.
func AppendReply(dst []byte) []byte { return append(append(dst, replyHead...), plain) }

// AppendLeasingReply begins a reply to a call about leases. Append its answers with
// [AppendLeasingAnswer].
func AppendLeasingReply(dst []byte) []byte { return append(append(dst, replyHead...), leasing) }

// AppendAnswer appends an answer to a reply.
func AppendAnswer(dst []byte, a *Answer) []byte {
	dst = append(dst, byte(a.Status))
	if a.Status != StatusOK {
		return dst
	}
	dst = a.Verdict.append(dst)
	dst = appendInt(dst, int64(len(a.Results)))
	var at counter.Micros
	for i := range a.Results {
		dst = appendResult(dst, &a.Results[i], at)
		at = a.Results[i].At
	}
	return appendText(dst, a.Receipt)
}

// AppendLeasingAnswer appends an answer and its leases to a reply of [AppendLeasingReply].
func AppendLeasingAnswer(dst []byte, a *Answer) []byte {
	if dst = AppendAnswer(dst, a); a.Status == StatusOK {
		dst = appendLeases(dst, a.Leases)
	}
	return dst
}

// The flags of a result.
const (
	flagDenied = 1 << iota
	flagOverflow
	flagNever // the wait is counter.Never
	flagLocal // the bridge answered in place of the store
	flagsAll  = 1<<iota - 1
)

// appendResult writes the result's instant as the difference from the previous result, because
// most instants in one call are equal.
func appendResult(dst []byte, r *counter.Result, before counter.Micros) []byte {
	var flags byte
	wait := r.Wait
	if r.Denied {
		flags |= flagDenied
	}
	if r.Overflow {
		flags |= flagOverflow
	}
	if r.Local {
		flags |= flagLocal
	}
	if wait == counter.Never {
		flags, wait = flags|flagNever, 0
	}
	dst = append(dst, flags)
	for _, n := range [...]int64{int64(r.At - before), r.Granted, r.Remaining, int64(wait), int64(r.Reset), int64(r.Next),
		int64(r.LeasedIn), r.Violations} {
		dst = appendInt(dst, n)
	}
	return dst
}

// The first byte of a verdict. Verdicts with records are sent only about policies with a directory.
// Filters of earlier releases cannot read such a policy.
const (
	verdictNone = iota
	verdictPlain
	verdictDirected // records follow
)

func (v *Verdict) append(dst []byte) []byte {
	switch {
	case v == nil:
		return append(dst, verdictNone)
	case v.Records != "":
		dst = appendText(append(dst, verdictDirected), v.Records)
	default:
		dst = append(dst, verdictPlain)
	}
	dst = appendInt(dst, v.TTLMicros)
	dst = appendInt(dst, int64(len(v.Ways)))
	for i := range v.Ways {
		dst = v.Ways[i].append(dst)
	}
	return dst
}

func (w *Way) append(dst []byte) []byte {
	dst = append(appendInt(dst, int64(w.Index)), byte(w.State))
	if w.State == policy.CredentialValid {
		dst = appendText(dst, string(compact.AppendIdentity(nil, &w.Identity)))
	}
	return dst
}

// Fingerprint returns the 64-bit FNV-1a hash of the way. A filter sends the sum over a request's
// ways to identify the verdicts that it remembers. The sum determines only whether the bridge
// repeats the verdicts.
func (w *Way) Fingerprint() uint64 {
	return fnv(fnvBegin, w.append(nil))
}

// ReplyReader reads a reply answer by answer.
type ReplyReader struct {
	_ slim.Incomparable

	rest    cursor
	leasing bool
}

// ReadReply reads the beginning of a reply. The error wraps [ErrMalformed].
func ReadReply(data []byte) (*ReplyReader, error) {
	rest, leasing, err := open(data, replyHead, CallBytesMax)
	if err != nil {
		return nil, err
	}
	return &ReplyReader{rest: rest, leasing: leasing}, nil
}

// Next reads the next answer into *a, whose slices are reused, and reports whether there was one.
// The error means that the rest of the reply cannot be read.
func (r *ReplyReader) Next(a *Answer) (ok bool, err error) {
	if r.rest.rest == "" {
		return false, r.rest.err()
	}
	*a = Answer{Status: Status(r.rest.byte()), Results: a.Results[:0], Leases: a.Leases[:0]}
	if a.Status > StatusLate {
		r.rest.fail()
	}
	if a.Status != StatusOK || r.rest.failed {
		return !r.rest.failed, r.rest.err()
	}
	a.Verdict = r.rest.verdict()
	var at counter.Micros
	for n := r.rest.count(counter.ChecksMax); n > 0 && !r.rest.failed; n-- {
		a.Results = append(a.Results, r.rest.result(at))
		at = a.Results[len(a.Results)-1].At
	}
	if a.Receipt = r.rest.text(); r.leasing {
		a.Leases = r.rest.leases(a.Leases)
	}
	return !r.rest.failed, r.rest.err()
}

func (c *cursor) result(before counter.Micros) (r counter.Result) {
	flags := c.byte()
	var at, wait, reset, next, leased int64
	for _, n := range [...]*int64{&at, &r.Granted, &r.Remaining, &wait, &reset, &next, &leased, &r.Violations} {
		*n = c.int()
	}
	r.At, r.Wait, r.Reset = before+counter.Micros(at), counter.Micros(wait), counter.Micros(reset)
	r.Next, r.LeasedIn = counter.Micros(next), counter.Micros(leased)
	r.Denied, r.Overflow, r.Local = flags&flagDenied != 0, flags&flagOverflow != 0, flags&flagLocal != 0
	if flags&flagNever != 0 {
		r.Wait = counter.Never
	}
	if flags&^flagsAll != 0 {
		c.fail()
	}
	return r
}

func (c *cursor) verdict() *Verdict {
	form := c.byte()
	if form > verdictDirected {
		c.fail()
	}
	if form == verdictNone || c.failed {
		return nil
	}
	v := new(Verdict)
	if form == verdictDirected {
		v.Records = c.text()
	}
	v.TTLMicros = c.int()
	for n := c.count(policy.IdentifyMax); n > 0 && !c.failed; n-- {
		w := Way{Index: int(c.int()), State: policy.CredentialState(c.byte())}
		if int(w.State) >= policy.CredentialStateCount {
			c.fail()
		}
		if w.State == policy.CredentialValid {
			var err error
			if w.Identity, err = compact.ReadIdentity([]byte(c.text())); err != nil {
				c.fail()
			}
		}
		v.Ways = append(v.Ways, w)
	}
	return v
}

var errTooLong = errors.New("a call or reply of more than 1 MiB")
