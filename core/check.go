// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
)

// ChecksMax is how many checks one call of [Store.Take] may carry. More is a policy error, found when it is compiled.
const ChecksMax = 64

// Op says what a check asks of its counter.
type Op uint8

// The operations of a check.
const (
	// OpTake charges Cost, if every OpTake and OpUpTo check of the call passes; otherwise none of them is charged.
	// A Cost of 0 is a look.
	OpTake Op = iota
	// OpUpTo charges as much as there is between Min and Max: nothing if fewer than Min units are available, otherwise
	// min(available, Cost) and of what then remains the share ShareMille, up to Max in all. It refuses the call when
	// fewer than Min are available.
	OpUpTo
	// OpLook charges nothing and says whether Cost would pass (for Cost 0: when 1 would).
	OpLook
	// OpGiveBack returns Cost units of the charge that Receipt names. They go to that charge's window or are dropped,
	// and never bring a counter below zero. The caller sends each give-back once, keeps the sum within the charge, and
	// sends none when the charge's outcome is unknown.
	OpGiveBack
	// OpForce charges Cost whatever is available: it records what already happened. The counter may go into debt by at
	// most one window's count; what is beyond that is dropped, and Granted says how much was recorded.
	OpForce
	// OpReset forgets the counter, or lifts the penalty, as if it had never been. Granted says how many units it held.
	OpReset
)

// Check is one question about one counter.
type Check struct {
	// Key names the counter. Stores copy what they keep: the bytes belong to the caller and may change after Take. The
	// keys of one call are distinct.
	Key []byte
	// ScopeLen is how many leading bytes of Key name the rule and not the client; a store that is full counts newcomers
	// together within it.
	ScopeLen int
	Limit    *Limit
	// Whole is, of a counter that is one of several shards, what all of them let through; nil of any other. Stores do not look
	// at it: it is for what stands in for one.
	Whole *Limit
	Op    Op
	// Shadow marks a check whose refusal refuses nothing (action log_only, or one of several with quota). It is evaluated as if
	// alone, and charged if it passed and the call is admitted.
	Shadow bool
	// Lease says that the rule allows units of this limit to be taken in advance and used later (lease: auto). Stores do not
	// look at it: what is taken in advance is an OpUpTo with an Age.
	Lease bool
	// Refundable says that what is charged may be given back once it has been used or not: the rule settles when the response
	// is known. A token bucket remembers then how near it has come to full since, and gives back only what the charge still
	// lacks. An OpGiveBack of such a charge has it too. It means nothing to other algorithms, nor with an Age.
	Refundable bool
	// OnError says what is to happen if the store cannot answer. Stores do not look at it: it is for what stands in for one.
	OnError OnError
	// Source tells the clients apart that calls come from, as far as their addresses do; 0 if there is none. It says nothing of
	// the counter: a store that many calls wait for serves the sources in turn.
	Source uint32
	Cost   int64 // units; for OpUpTo what is needed; 0 to CountMax + 1
	Min    int64 // OpUpTo: the least that is of use, 1 to Cost (or 1 when Cost is 0)
	Max    int64 // OpUpTo: the most, at least Cost
	// ShareMille is the part of what remains beyond Cost that OpUpTo may take, in thousandths, 0 to 1000.
	ShareMille int64
	Receipt    Micros // OpGiveBack: the charge's receipt
	// Age makes the check one of a lease: 1 to the limit's window, 0 for none. With OpUpTo, if more than Cost is granted, all
	// of it is leased: each unit is used before Age has passed since the charge, and before the window it was charged in
	// ends, or not at all. With OpGiveBack the units are such a lease's, of that Age. A grant of Cost or less is no lease: it
	// is used at once, and what then is not comes back with an Age of 1. A sliding log leases nothing: there a unit would
	// count for too short.
	Age Micros
	// Bounds are the boundaries of a calendar window; nil for any other limit.
	Bounds *Bounds

	// Penalty makes this a check of a client's penalty and not of a counter: Limit is nil, Op is OpTake, OpLook or
	// OpReset, and Cost is 0. It refuses the call while a penalty is in force; and when the call is refused by checks that
	// are violations (below) and by no penalty, it records them and may impose one.
	Penalty *Penalty
	// Guard is the number of the check in this call, counted from 1, in whose record of violations a refusal by this
	// check counts; 0: it is no violation. Violation tells the counters of one client apart there: 1 to ViolationMax.
	Guard     int
	Violation int64
}

// ViolationMax is the greatest Check.Violation: a decimal that Lua holds exactly, with room beside it.
const ViolationMax int64 = 1<<52 - 1

// ViolationsMax is how many violations are remembered of one client; of more, the oldest are forgotten.
const ViolationsMax = 1000

// Bounds are consecutive boundaries of a calendar unit, of three periods: a caller that does not know by how much its clock
// is wrong sends the one it believes to be in between the one before and the one after. The store's clock says which of
// the three periods it is; outside of them Take fails with [ErrStale].
type Bounds [4]Micros

// Result is a store's answer to one [Check]. Spans count from At.
type Result struct {
	At        Micros // the store's clock at the decision
	Granted   int64  // units charged, given back or recorded; 0 if the call was refused
	Remaining int64  // units left after this call, never negative
	// Refused says that this check by itself would not let the request through. A Cost of 0, OpGiveBack and OpForce are
	// never refused.
	Refused bool
	// Wait is how long until this check would pass (for OpUpTo: until Min units are there; for Cost 0: until 1 would
	// pass), 0 if it would now, [Never] if the cost exceeds the limit's capacity. For OpGiveBack and OpForce it is 0.
	Wait Micros
	// Reset is how long until the end of the aligned window, until the oldest unit leaves a log, or until a bucket is
	// full.
	Reset Micros
	// Next is how long until there is more than Remaining: for a token bucket the next token (0 when full), otherwise Reset.
	Next Micros
	// Receipt names a charge (OpTake, OpUpTo, OpForce) for OpGiveBack: the start of its window, or its instant. 0 if
	// nothing was charged.
	Receipt Micros
	// LeasedIn is how long units may still be out on lease, so that a refusal may be over that soon and before Wait: 0 if
	// none are. It includes what this very call leased. Of a sliding log, and of a penalty, it is 0.
	LeasedIn Micros
	// Overflow says that the store was full and a counter shared with other clients answered.
	Overflow bool
	// Local says that the store could not be asked, and that this process answered in its place: for its share of the limit
	// under on_error: local, and otherwise that the check passes. There are no numbers then but Refused and Wait.
	Local bool
	// Violations is, for a check of a penalty, how many violations are remembered after this call; 0 for an OpTake in a
	// call that is admitted, which does not look. Wait is then how long the penalty lasts, and Refused says that it is in
	// force, be it since this call.
	Violations int64
}

// Store keeps counters. Implementations are safe for concurrent use.
type Store interface {
	// Take answers checks[i] in results[i], all in one atomic step, on the store's own clock. It returns when ctx is
	// done at the latest. An error means that the store could not answer: results then hold nothing of use, and each
	// charge was executed at most once. It wraps [ErrUnavailable] when the store is at fault, [ErrOverloaded] when more was
	// asked of it than it can answer, and [ErrInvalid] when the caller is. A refusal is a Result, never an error.
	Take(ctx context.Context, checks []Check, results []Result) error
}

// ErrUnavailable is wrapped by every error that says the store could not be asked, or did not answer in time.
var ErrUnavailable = errors.New("store unavailable")

// ErrOverloaded is wrapped by every error that says that more calls wait for the store than it can answer, though it answers.
// Clients can bring that about: the request is refused, and on_error has no part in it. Such an error does not wrap
// [ErrUnavailable].
var ErrOverloaded = errors.New("store overloaded")

// ErrStale is wrapped, beside [ErrUnavailable], by an error that says that the store's clock is outside the boundaries of
// a calendar window: the clocks of front and store are more than a period apart.
var ErrStale = errors.New("stale calendar boundaries")

// ErrInvalid is wrapped by an error that says the call itself was wrong: too many checks, a key used twice, a number out
// of bounds.
var ErrInvalid = errors.New("invalid check")
