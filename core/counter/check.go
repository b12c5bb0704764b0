// SPDX-License-Identifier: Apache-2.0

package counter

import "errors"

// ChecksMax is the greatest number of checks in one call of [Store.Take]. A policy that needs more
// does not compile.
const ChecksMax = 64

// Op is the operation that a check performs on its counter.
type Op uint8

// The operations of a check.
const (
	// OpTake charges Cost if every OpTake and OpUpTo check of the call passes. If any of them
	// fails, none is charged. A Cost of 0 only reads the counter.
	OpTake Op = iota
	// OpUpTo charges between Min and Max units. If fewer than Min units are available, it charges
	// nothing and denies the call. Otherwise it charges min(available, Cost) plus the fraction
	// ShareMille of the units that remain, up to Max in total.
	OpUpTo
	// OpLook charges nothing and reports whether Cost would pass. With a Cost of 0 it reports
	// whether 1 would pass.
	OpLook
	// OpRefund refunds Cost units of the charge that Receipt names. The units are credited to the
	// window of that charge, or dropped. A refund never takes a counter below zero. The caller
	// sends each refund once. All refunds of a charge are together at most the charge. The caller
	// sends none if the outcome of the charge is unknown.
	OpRefund
	// OpForce charges Cost even if fewer units are available, to record usage that has already
	// happened. The counter can go into debt by at most the count of one window. Units beyond that
	// are dropped; Granted is the number of units recorded.
	OpForce
	// OpReset deletes the counter, or lifts the penalty. Granted is the number of units that were
	// charged to the counter.
	OpReset
)

// Check is one operation on one counter.
type Check struct {
	// Key names the counter. The caller may change its bytes after Take, so a store copies the keys
	// that it keeps. The keys within one call must be distinct.
	Key []byte
	// ScopeLen is the length of the prefix of Key that names the rule rather than the client. A
	// store that is full counts all new clients of a scope together.
	ScopeLen int
	Limit    *Limit
	// UnshardedLimit is the limit over all shards if the counter is one of several shards,
	// otherwise nil. Stores ignore it. A fallback uses it to answer when the store cannot.
	UnshardedLimit *Limit
	// WholeLimit is the limit over all regions if Limit is the part of one region and the regions
	// may lend each other units, otherwise nil. Only internal/store/regionstore uses it.
	WholeLimit *Limit
	Op         Op
	// Shadow marks a check whose denial does not deny the call (action log_only, or one of several
	// limits with quota). The check is evaluated independently of the others. A shadow check is
	// charged if it passes and the call is admitted.
	Shadow bool
	// Lease reports whether the rule allows units of this limit to be charged in advance and used
	// later (lease: auto). Stores ignore it: a charge in advance is an OpUpTo with an Age.
	Lease bool
	// Gossip reports whether the regions tell each other their counts of this counter. Stores
	// ignore it, except internal/store/regionstore, which informs the region's agents.
	Gossip bool
	// Refundable reports whether the charge might be refunded later, because the rule settles once
	// the response is known. A token bucket then records how close to full it has been since the
	// charge, and a refund restores only what the bucket still lacks because of the charge. An
	// OpRefund of such a charge must set Refundable too. The field is ignored for other algorithms,
	// and in a check with an Age.
	Refundable bool
	// OnError selects what happens if the store cannot answer. Stores ignore it; a fallback uses
	// it.
	OnError OnError
	// Source identifies where the call comes from, as far as the client's address reveals it.
	// Source is 0 if unknown. Source does not select a counter. A busy store uses it to serve the
	// sources in turn.
	Source uint32
	Cost   int64 // units, 0 to CountMax + 1; for OpUpTo, the units needed
	Min    int64 // OpUpTo: the smallest useful charge, 1 to Cost (1 if Cost is 0)
	Max    int64 // OpUpTo: the greatest charge, at least Cost
	// ShareMille is a part, in thousandths from 0 to 1000, of the units left beyond Cost. An OpUpTo
	// may take this part in addition to Cost.
	ShareMille int64
	// Receipt is used by an OpRefund: it is the receipt of the charge. A refund whose receipt is
	// not positive has no effect in any store.
	Receipt Micros
	// Age makes the check part of a lease. Age is between 1 and the limit's window, or 0 for no
	// lease.
	//
	// With OpUpTo, if more than Cost is granted, the whole grant is leased. A leased unit must be
	// used before Age has passed since the charge, and before the window in which it was charged
	// ends. A grant of Cost or less is not a lease: it is used at once, and its unused units are
	// refunded with an Age of 1.
	//
	// With OpRefund, Age is the age of the lease whose units are refunded. A sliding log leases
	// nothing, because it would stop counting a leased unit too early.
	Age Micros
	// Bounds are the boundaries of a calendar window. The boundaries are nil for any other limit.
	Bounds *Bounds

	// Penalty makes this a check of a client's penalty instead of a counter. Limit is then nil, Op
	// is OpTake, OpLook or OpReset, and Cost is 0. The check denies the call while a penalty is in
	// force. If the call is denied by checks whose denials are violations (see Guard) and not by a
	// penalty, the check records the violations and might impose a penalty.
	Penalty *Penalty
	// Guard is the number of the penalty check, counted from 1, that records a denial by this check
	// as a violation. Guard is 0 if a denial is not a violation. Violation, between 1 and
	// ViolationMax, identifies this counter among the client's counters.
	Guard     int
	Violation int64
}

// IsLocalRefund reports whether the check refunds a charge that no store has made, or whose outcome
// is unknown. A charge that a process made by itself has a negative receipt, which only that
// process can refund. A charge whose outcome is unknown has no receipt.
func (c *Check) IsLocalRefund() bool { return c.Op == OpRefund && c.Receipt <= 0 }

// ViolationMax is the greatest value of [Check.Violation]. A Lua number can represent it exactly.
const ViolationMax int64 = 1<<52 - 1

// ViolationsMax is the greatest number of violations remembered per client. Beyond that number, the
// oldest violations are forgotten.
const ViolationsMax = 1000

// Bounds are the consecutive boundaries of three periods of a calendar unit. The caller's clock may
// be wrong, so the caller sends the previous, the current and the next period. The store's clock
// selects one of the three. If the store's clock is outside all of them, Take fails with
// [ErrStale].
type Bounds [4]Micros

// Result is a store's answer to one [Check]. The spans of a Result start at At.
type Result struct {
	At        Micros // the store's clock at the decision
	Granted   int64  // units charged, refunded or recorded; 0 if the call was denied
	Remaining int64  // units left after this call, never negative
	// Denied reports whether this check alone would deny the request. With a Cost of 0, only an
	// OpUpTo can deny. An OpRefund, OpForce or OpReset never denies.
	Denied bool
	// Wait is the time until this check would pass: 0 if it would pass now, [Never] if the cost
	// exceeds the limit's capacity. An OpUpTo passes as soon as Min units are available. With a
	// Cost of 0, a check passes as soon as 1 unit is available. For OpRefund and OpForce, Wait is
	// 0.
	Wait Micros
	// Reset is the time until the aligned window ends, the oldest unit leaves the log, or the
	// bucket is full.
	Reset Micros
	// Next is the time until more than Remaining units are available. For a token bucket it is the
	// time of the next token (0 when full), otherwise it equals Reset.
	Next Micros
	// Receipt names a charge (OpTake, OpUpTo, OpForce) for a later OpRefund. Receipt is the start
	// of the charge's window, or its instant. Receipt is 0 if nothing was charged.
	Receipt Micros
	// LeasedIn is the time until the last lease ends, including leases of this call. LeasedIn is 0
	// if no units are leased. Leased units can be refunded, so a denied check might pass after
	// LeasedIn even though Wait is longer. For a sliding log and a penalty it is 0.
	LeasedIn Micros
	// Overflow reports whether the store was full and answered from a counter shared with other
	// clients.
	Overflow bool
	// Local reports whether this process made the decision. Local is set if the store could not
	// answer. Local is also set if the store admitted the call, but this process denied it because
	// of units that the process had admitted on its own before. Under on_error: local the process
	// enforces its share of the limit; otherwise it enforces the whole limit. Only Denied and Wait
	// are then set. If the check is Refundable and the call was admitted, Granted is set too. If
	// the units can be refunded, Receipt is set to a negative number. Such a receipt is valid only
	// in this process.
	Local bool
	// Violations is used for a check of a penalty: it is the number of violations remembered after
	// this call. Violations is 0 for an OpTake in an admitted call, which does not read the
	// violations. For a check of a penalty, Wait is the remaining time of the penalty, and Denied
	// reports whether the penalty is in force, even if this call imposed it.
	Violations int64
}

// ErrUnavailable is wrapped by every error for a store that could not be reached or did not answer
// in time.
var ErrUnavailable = errors.New("store unavailable")

// ErrOverloaded is wrapped by every error for a store that works but has too many calls to answer.
// Clients can cause this state, so the request is denied and on_error does not apply. An error that
// wraps ErrOverloaded does not wrap [ErrUnavailable].
var ErrOverloaded = errors.New("store overloaded")

// ErrStale reports that the store's clock is outside the boundaries of a calendar window, because
// the clocks of the calling process and the store differ by more than a period. An error that wraps
// it also wraps [ErrUnavailable].
var ErrStale = errors.New("stale calendar boundaries")

// ErrInvalid is wrapped by every error for a call that is not valid: too many checks, a duplicate
// key, or a number out of bounds. The request is denied, as for [ErrOverloaded].
var ErrInvalid = errors.New("invalid check")

// Include raises the check's demand to at least the demand of another check of the same counter.
func (c *Check) Include(other *Check) {
	if other.Cost > c.Cost || c.Cost == 0 && other.Op == OpUpTo {
		c.Op, c.Cost, c.Min, c.Max = other.Op, other.Cost, other.Min, other.Max
	}
}

// OnError is the action for requests that the store cannot answer.
type OnError uint8

// The actions when the store cannot answer. Of the actions of the limits that apply to a request,
// the strictest decides.
const (
	OnErrorInherit OnError = iota // in a rule: the policy's setting; in a policy: allow
	OnErrorAllow
	OnErrorDeny
	OnErrorLocal // this process enforces its share of the limit
)
