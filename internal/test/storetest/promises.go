// SPDX-License-Identifier: Apache-2.0

package storetest

import "slices"

// promise is a property that every store must have.
type promise struct {
	name   string
	broken string // the promise, and what happens if it is broken
	ask    func(e *examiner)
}

// promises lists what RunPromises tests. For each promise, the tests of this package have a store
// that breaks it.
var promises = slices.Concat(counterPromises, datedPromises, leasePromises, refundPromises, storePromises)

// counterPromises concern limits whose windows have a fixed length.
var counterPromises = []promise{
	// Charges.
	{"all or nothing", "A request under several limits is charged on all of them or on none, whatever their " +
		"algorithms; otherwise a client is charged for denied requests.", askAllOrNothing},
	{"a denial costs nothing", "A denied request charges nothing; otherwise a client that keeps trying is never " +
		"admitted again.", askDeniedCostsNothing},
	{"log_only decides nothing", "A shadow check is evaluated as if alone, denies nothing, and is charged only if it " +
		"and the call are admitted; otherwise trying a limit out changes what clients get.", askShadow},
	{"up to n", "An up-to-n check is granted min(available, cost) plus a share of the rest, at most max, and is denied " +
		"below min; otherwise leases take more than is available, or get nothing.", askUpTo},
	{"a look leaves no trace", "A look charges nothing, denies no other check and stores nothing; otherwise watching a " +
		"counter changes it.", askLook},
	{"cost 0 is granted", "A check of cost 0 is never denied and says when 1 would be admitted; otherwise it cannot " +
		"tell a client how long to wait.", askCostZero},
	{"a whole limit, and no more", "A new counter admits exactly the limit, at any cost per request, up to the largest " +
		"limit.", askWholeLimit},
	{"a cost above the capacity never passes", "Its wait is Never; otherwise the client is told to come back in " +
		"vain.", askNever},

	// Settlements.
	{"a refund goes to its window", "Refunded units are credited to the window, mark or bucket that they were charged " +
		"to, in sliding_window also to the window before; otherwise old refunds pay for new requests.", askRefundToWindow},
	{"a late refund is dropped", "Nothing is refunded once the charge's window is over, its mark has expired or the " +
		"bucket would have filled, nor for a receipt that names no charge.", askLateRefund},
	{"never below zero", "A refund of more than was charged returns only the charge, and reports it; otherwise a " +
		"refund sent twice raises the limit.", askNeverBelowZero},
	{"debt of at most one window", "A forced charge is made whatever is available, up to a debt of one window's count, " +
		"and reports how much it was; otherwise one settlement locks a client out for good.", askDebt},

	// Invalid calls.
	{"a key twice is invalid", "A call with the same key twice wraps ErrInvalid and charges nothing; otherwise one of " +
		"the two answers is wrong.", askDuplicateKeys},
	{"too many checks are invalid", "More than ChecksMax checks wrap ErrInvalid and charge nothing; as many as that " +
		"are answered.", askTooManyChecks},
	{"numbers out of bounds are invalid", "Numbers that the algorithms cannot compute with exactly wrap ErrInvalid and " +
		"charge nothing in the whole call.", askOutOfBounds},

	// Changes of the policy.
	{"a changed limit keeps what was consumed", "Raising or lowering count or burst keeps the units already charged; " +
		"otherwise every policy reload grants the limit anew.", askChangedLimit},
	{"a changed unit rounds against the client", "When a bucket in other parts of a token is converted, what it lacks " +
		"is rounded up; otherwise reloads create tokens.", askChangedUnit},

	// The clock.
	{"answers are dated by the store's clock", "Result.At is the store's clock, from which all spans count; " +
		"otherwise a receipt or a wait has another meaning on each node.", askAt},
	{"windows are aligned to the epoch", "Fixed and sliding windows start at multiples of their length; otherwise " +
		"X-RateLimit-Reset and two nodes' counters disagree.", askAligned},
	{"a clock back within a window is absorbed", "A counter that is ahead by at most a window continues at its " +
		"own instant; otherwise a step of NTP grants the limit anew.", askClockBack},
	{"a clock back by an hour locks nobody out", "A counter that is ahead by more than a window is moved to now and keeps " +
		"its units; otherwise its clients wait until the hour has passed again.", askClockBackHour},
	{"a clock forth by an hour", "A counter is new when the clock jumps an hour ahead, and locks no client out when it " +
		"jumps back; otherwise a clock that is wrong for a moment has effects for an hour.", askClockForth},
	{"waits are the truth", "At At + Wait the same cost is admitted, and a microsecond earlier it is denied (for a token " +
		"bucket, a tick); otherwise well-behaved clients are denied twice, or wait too long.", askWaits},
	{"reset and next say what they say", "Reset is when the window ends, the oldest unit expires, or the bucket is " +
		"full; Next is when more than Remaining is available.", askResets},
}

// datedPromises concern calendar windows, penalties and resets.
var datedPromises = []promise{
	// Calendar windows.
	{"a calendar window is the zone's", "A day, week, month or year begins and ends with the dates of the zone, to the " +
		"microsecond, however long it is; otherwise a quota is reset an hour early or late.", askCalendar},
	{"the store's clock says which period it is", "A caller whose clock is up to two periods behind counts in the " +
		"same period as the others; otherwise two nodes count in different days.", askCalendarClock},
	{"stale boundaries are no answer", "If the store's clock is outside a call's boundaries, the error wraps ErrStale and " +
		"ErrUnavailable, and nothing is executed; otherwise a wrong clock grants the limit anew.", askStale},
	{"a clock back over a boundary goes on", "A counter of the period that had begun continues there, and one further " +
		"ahead is moved to now; otherwise a step of NTP at midnight grants the limit anew, or locks clients out.", askCalendarClockBack},
	{"yesterday's receipt buys nothing today", "A charge to a period that is over is not refunded to the next.",
		askCalendarReceipt},
	{"a changed zone keeps the day", "If the period in the new zone began before the counter's, or less than half a period " +
		"after it, the count is kept; otherwise each edit of the zone grants the limit anew. While nodes " +
		"have different zones, each period of a zone grants the limit at most once; otherwise each request does.", askZone},

	// Consequences of denials.
	{"a penalty grows with the violations", "From the threshold on, a denial's wait is multiplied, each time by the next " +
		"multiplier and then by the last, up to the maximum; otherwise good clients are punished, or bad ones not.", askPenaltySteps},
	{"a penalty lasts as long as it says", "To the microsecond, it denies every call of the client. It charges nothing, " +
		"and its denials neither count nor prolong it; otherwise a client that retries is never admitted again.", askPenaltyLasts},
	{"one violation until its wait is over", "All denials by one limit are one violation until the wait of the first has " +
		"passed; two limits are two violations. Otherwise a page that loads twenty files is punished.", askOneViolation},
	{"the longest wait is multiplied", "The longest of the limits that deny, known violations included; otherwise a client over " +
		"its hourly limit is admitted after a second.", askLongestWait},
	{"no violation of the client's", "A limit without a guard, one that admits, log_only, looks, settlements, refunds, resets, " +
		"and costs above the capacity are no violations; otherwise a client is punished for others.", askNoViolation},
	{"violations decay", "Each expires after the window; otherwise a client is never forgiven.", askDecay},
	{"a thousand violations are remembered", "Of more, the oldest are dropped; otherwise a client fills the store.",
		askViolationsMax},
	{"a penalty can be lifted", "A reset deletes it and its violations, reports their number, and takes effect even if the " +
		"call is denied; otherwise an operator cannot help a client.", askLift},
	{"a penalty survives a wrong clock", "A clock that goes back ends no penalty, and makes none longer than the maximum; " +
		"otherwise a step of NTP frees all clients, or locks them out.", askPenaltyClockBack},
	{"hammered, every violation", "Any number of goroutines lose none.", askViolationsHammered},

	// Resets.
	{"a reset forgets", "A counter that was reset is like a new one, and the reset reports how many units it held, even if " +
		"the call is denied; otherwise an operator cannot help a client.", askReset},
}

// storePromises concern calls, keys and goroutines rather than single algorithms.
var storePromises = []promise{
	{"a context that is done charges nothing", "Take returns an error at once and nothing was charged; otherwise " +
		"abandoned requests are charged.", askDoneContext},
	{"any bytes are a key", "Two keys that differ in any byte are two counters, NUL, invalid UTF-8 and a kibibyte of " +
		"length included; otherwise clients share counters.", askBinaryKeys},
	{"keys belong to the caller", "The caller may overwrite a key's bytes after Take; otherwise reused buffers move " +
		"counts between clients.", askKeyReuse},
	{"results are written whole", "Nothing remains of what the results slice held before; otherwise this request refunds " +
		"the receipt of the last one.", askDirtyResults},
	{"hammered, exactly the limit", "Any number of goroutines on one counter admit exactly the limit.", askHammer},
	{"overlapping calls never deadlock", "Calls with overlapping keys in any order all return, and none of their " +
		"counters admits more than its limit.", askOverlap},
}
