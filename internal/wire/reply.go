// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"

	"github.com/penstock/penstock/core"
)

// Status says what became of an item.
type Status uint8

// What can become of an item. Under all but the first the filter decides by the policy's on_error.
const (
	StatusOK          Status = iota
	StatusUnavailable        // the store did not answer
	StatusUnknown            // the bridge does not know that version of the policy (any more)
	StatusInvalid            // the item cannot be what the policy asks about, or a receipt is none of ours
	StatusBusy               // the bridge has too much to do
)

// Answer is what the bridge says of one item.
type Answer struct {
	Status Status
	// Verdict is what the credentials of the request are worth; nil if the filter knew, or there are none.
	Verdict *Verdict
	// Results are those of the plan's checks, in their order, without receipts. A filter whose plan has another number of
	// checks must not use them.
	Results []core.Result
	// Receipt is what a settlement gives back; "" if there is nothing to settle.
	Receipt string
	// Leases are what was granted beyond a request's own cost, or in advance. Results then say of a request's check what it
	// was granted itself, and of units taken in advance all.
	Leases []Lease
}

// Verdict is what a request's credentials are worth, way by way as the policy lists them.
type Verdict struct {
	TTLMicros int64 // how long it may be remembered
	Ways      []Way
}

// Way is one way to identify whose credential was looked at.
type Way struct {
	Index    int // in the policy's identify
	State    core.CredentialState
	Identity core.Identity // if the state is valid
}

// AppendReply begins a reply. Answers are appended to it, one for each item of the call, in their order.
func AppendReply(dst []byte) []byte { return append(append(dst, replyHead...), plain) }

// AppendLeasingReply begins a reply to a call about leases, whose answers are appended by [AppendLeasingAnswer].
func AppendLeasingReply(dst []byte) []byte { return append(append(dst, replyHead...), leasing) }

// AppendAnswer appends an answer to a reply.
func AppendAnswer(dst []byte, a *Answer) []byte {
	dst = append(dst, byte(a.Status))
	if a.Status != StatusOK {
		return dst
	}
	dst = a.Verdict.append(dst)
	dst = appendInt(dst, int64(len(a.Results)))
	var at core.Micros
	for i := range a.Results {
		dst = appendResult(dst, &a.Results[i], at)
		at = a.Results[i].At
	}
	return appendText(dst, a.Receipt)
}

// AppendLeasingAnswer appends an answer to a reply that began as one about leases.
func AppendLeasingAnswer(dst []byte, a *Answer) []byte {
	if dst = AppendAnswer(dst, a); a.Status == StatusOK {
		dst = appendLeases(dst, a.Leases)
	}
	return dst
}

// The flags of a result.
const (
	flagRefused = 1 << iota
	flagOverflow
	flagNever // the wait is core.Never
	flagLocal // the bridge answered in the store's place
	flagsAll  = 1<<iota - 1
)

// appendResult writes instants as the difference to the result before: those of one call are mostly the same.
func appendResult(dst []byte, r *core.Result, before core.Micros) []byte {
	var flags byte
	wait := r.Wait
	if r.Refused {
		flags |= flagRefused
	}
	if r.Overflow {
		flags |= flagOverflow
	}
	if r.Local {
		flags |= flagLocal
	}
	if wait == core.Never {
		flags, wait = flags|flagNever, 0
	}
	dst = append(dst, flags)
	for _, n := range [...]int64{int64(r.At - before), r.Granted, r.Remaining, int64(wait), int64(r.Reset), int64(r.Next),
		int64(r.LeasedIn), r.Violations} {
		dst = appendInt(dst, n)
	}
	return dst
}

func (v *Verdict) append(dst []byte) []byte {
	if v == nil {
		return append(dst, 0)
	}
	dst = appendInt(append(dst, 1), v.TTLMicros)
	dst = appendInt(dst, int64(len(v.Ways)))
	for i := range v.Ways {
		dst = v.Ways[i].append(dst)
	}
	return dst
}

func (w *Way) append(dst []byte) []byte {
	dst = append(appendInt(dst, int64(w.Index)), byte(w.State))
	if w.State == core.CredentialValid {
		dst = appendText(dst, string(w.Identity.AppendCompact(nil)))
	}
	return dst
}

// Fingerprint returns the 64-bit FNV-1a hash of the way. The sum of those of a request's ways is what a filter knows of
// them. It decides nothing but whether the bridge says it again.
func (w *Way) Fingerprint() uint64 {
	return fnv(fnvBegin, w.append(nil))
}

// ReplyReader reads a reply answer by answer.
type ReplyReader struct {
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

// Next reads the next answer into a, whose lists are used again, and reports whether there was one; the error says that
// what remains of the reply cannot be read.
func (r *ReplyReader) Next(a *Answer) (ok bool, err error) {
	if r.rest.rest == "" {
		return false, r.rest.err()
	}
	*a = Answer{Status: Status(r.rest.byte()), Results: a.Results[:0], Leases: a.Leases[:0]}
	if a.Status > StatusBusy {
		r.rest.fail()
	}
	if a.Status != StatusOK || r.rest.failed {
		return !r.rest.failed, r.rest.err()
	}
	a.Verdict = r.rest.verdict()
	var at core.Micros
	for n := r.rest.count(core.ChecksMax); n > 0 && !r.rest.failed; n-- {
		a.Results = append(a.Results, r.rest.result(at))
		at = a.Results[len(a.Results)-1].At
	}
	if a.Receipt = r.rest.text(); r.leasing {
		a.Leases = r.rest.leases(a.Leases)
	}
	return !r.rest.failed, r.rest.err()
}

func (c *cursor) result(before core.Micros) (r core.Result) {
	flags := c.byte()
	var at, wait, reset, next, leased int64
	for _, n := range [...]*int64{&at, &r.Granted, &r.Remaining, &wait, &reset, &next, &leased, &r.Violations} {
		*n = c.int()
	}
	r.At, r.Wait, r.Reset = before+core.Micros(at), core.Micros(wait), core.Micros(reset)
	r.Next, r.LeasedIn = core.Micros(next), core.Micros(leased)
	r.Refused, r.Overflow, r.Local = flags&flagRefused != 0, flags&flagOverflow != 0, flags&flagLocal != 0
	if flags&flagNever != 0 {
		r.Wait = core.Never
	}
	if flags&^flagsAll != 0 {
		c.fail()
	}
	return r
}

func (c *cursor) verdict() *Verdict {
	switch c.byte() {
	case 0:
		return nil
	case 1:
	default:
		c.fail()
		return nil
	}
	v := &Verdict{TTLMicros: c.int()}
	for n := c.count(core.IdentifyMax); n > 0 && !c.failed; n-- {
		w := Way{Index: int(c.int()), State: core.CredentialState(c.byte())}
		if int(w.State) >= core.CredentialStateCount {
			c.fail()
		}
		if w.State == core.CredentialValid {
			var err error
			if w.Identity, err = core.ReadIdentity([]byte(c.text())); err != nil {
				c.fail()
			}
		}
		v.Ways = append(v.Ways, w)
	}
	return v
}

var errTooLong = errors.New("a call or reply of more than 1 MiB")
