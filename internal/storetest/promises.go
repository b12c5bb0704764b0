// SPDX-License-Identifier: Apache-2.0

package storetest

import "slices"

// promise is one thing that every store keeps.
type promise struct {
	name   string
	broken string // what is promised, and who is hurt when it is broken
	ask    func(e *examiner)
}

// promises is the list that [RunPromises] goes through. The tests of this package hold a broken store for each.
var promises = slices.Concat(counterPromises, datedPromises, leasePromises, refundPromises, storePromises)

// counterPromises are about the limits whose windows have a length.
var counterPromises = []promise{
	// What is charged.
	{"all or nothing", "A request under several limits is charged on all of them or on none, whatever their " +
		"algorithms; otherwise a client pays for requests that were refused.", askAllOrNothing},
	{"refused costs nothing", "A refused request charges nothing; otherwise a client that keeps trying never gets in " +
		"again.", askRefusedCostsNothing},
	{"log_only stands aside", "A shadow check is evaluated as if alone, refuses nothing, and is charged only if it " +
		"passed and the call is admitted; otherwise trying a limit out changes what clients get.", askShadow},
	{"up to n", "An up-to-n check gets min(available, cost) and of what remains a share, up to max in all, and refuses " +
		"below min; otherwise leases take more than there is, or starve.", askUpTo},
	{"a look leaves no trace", "A look charges nothing, refuses no other check and keeps nothing; otherwise watching a " +
		"counter changes it.", askLook},
	{"cost 0 is granted", "A check of cost 0 is never refused and says when 1 would pass; otherwise a client that asks " +
		"how long to wait is told nothing.", askCostZero},
	{"a whole limit, and no more", "From a fresh counter exactly the limit is admitted, in units of any size, up to the " +
		"greatest limit there is.", askWholeLimit},
	{"a cost above the capacity never passes", "Its wait is Never; otherwise the client is told to come back for " +
		"nothing.", askNever},

	// What is settled afterwards.
	{"give back goes to its window", "Units given back are credited to the window, mark or bucket they were charged " +
		"to, in sliding_window also to the window before; otherwise old refunds buy new requests.", askGiveBack},
	{"a late give back is dropped", "When the charge's window is past, its mark has left or the bucket would have " +
		"filled since, nothing is given back; nor for a receipt that names no charge.", askLateGiveBack},
	{"never below zero", "Giving back more than was charged returns what there is and reports it; otherwise a refund " +
		"sent twice raises the limit.", askNeverBelowZero},
	{"debt of at most one window", "A forced charge is recorded whatever is available, up to one window's count of " +
		"debt, and says how much was; otherwise one settlement locks a client out for good.", askDebt},

	// What the caller did wrong.
	{"a key twice is invalid", "A call with the same key twice wraps ErrInvalid and charges nothing; otherwise one of " +
		"the two answers is wrong.", askDuplicateKeys},
	{"too many checks are invalid", "More than ChecksMax checks wrap ErrInvalid and charge nothing; as many as that " +
		"are answered.", askTooManyChecks},
	{"numbers out of bounds are invalid", "Numbers that the algorithms cannot compute with exactly wrap ErrInvalid and " +
		"charge nothing, the rest of the call included.", askOutOfBounds},

	// What a changed policy does to counters.
	{"a changed limit keeps what was consumed", "Raising or lowering count or burst keeps the units already charged; " +
		"otherwise every policy reload is a fresh allowance.", askChangedLimit},
	{"a changed unit rounds against the client", "A bucket kept in other parts of a token is converted rounding up " +
		"what is missing; otherwise reloads mint tokens.", askChangedUnit},

	// What the clock does.
	{"answers are dated by the store's clock", "Result.At is the store's clock, the one every span counts from; " +
		"otherwise a receipt or a wait means something else on each node.", askAt},
	{"windows are aligned to the epoch", "Fixed and sliding windows start at multiples of their length; otherwise " +
		"X-RateLimit-Reset and two nodes' counters disagree.", askAligned},
	{"a clock back within a window is absorbed", "A counter that is ahead by at most a window goes on at its own " +
		"instant; otherwise a step of NTP is a fresh allowance.", askClockBack},
	{"a clock back by an hour locks nobody out", "A counter further ahead than a window is moved to now with what it " +
		"counted; otherwise its clients wait until the wrong hour has passed again.", askClockBackHour},
	{"a clock forth by an hour", "An hour later a counter is fresh, and back again nobody is locked out; otherwise a " +
		"clock that was wrong for a moment is felt for an hour.", askClockForth},
	{"waits are the truth", "At At + Wait the same cost passes, and a microsecond before it does not (a token bucket: " +
		"a tick); otherwise polite clients are refused twice, or sleep too long.", askWaits},
	{"reset and next say what they say", "Reset is the end of the window, when the oldest unit leaves, or when the " +
		"bucket is full; Next is when there is more than Remaining.", askResets},
}

// datedPromises are about calendar windows, penalties, and what is forgotten on purpose.
var datedPromises = []promise{
	// What the calendar does.
	{"a calendar window is the zone's", "A day, week, month or year begins and ends with the dates of the zone, to the " +
		"microsecond, however long it is; otherwise a quota is reset an hour early or late.", askCalendar},
	{"the store's clock says which period it is", "A caller whose clock is up to two periods behind counts where the " +
		"others do; otherwise two nodes count two days at once.", askCalendarClock},
	{"stale boundaries are no answer", "A call with boundaries that do not hold the store's clock wraps ErrStale and " +
		"ErrUnavailable, and nothing of it is executed; otherwise a wrong clock is a fresh allowance.", askStale},
	{"a clock back over a boundary goes on", "A counter of the period that had begun goes on there, and one further ahead " +
		"is counted now; otherwise a step of NTP at midnight is a fresh allowance, or locks out for a month.", askCalendarClockBack},
	{"yesterday's receipt buys nothing today", "What was charged to a period that is over is not given back to the next.",
		askCalendarReceipt},
	{"a changed zone keeps the day", "Where the period of the new zone began before the counter, or less than half a period " +
		"after it, its count is kept; otherwise every edit of the zone is a fresh allowance, and two nodes of which one has " +
		"not taken it over yet give one at every turn.", askZone},

	// What follows from refusals.
	{"a penalty grows with the violations", "From the threshold on a refusal's wait is multiplied, each time by the next " +
		"multiplier and then by the last, up to the longest; otherwise good clients are punished, or bad ones not.", askPenaltySteps},
	{"a penalty lasts as long as it says", "To the microsecond, and refuses every call of the client; it charges nothing, " +
		"and its refusals neither count nor prolong it; otherwise a client that asks again never gets out.", askPenaltyLasts},
	{"one violation until its wait is over", "Any number of refusals by one limit are one violation until the wait that the " +
		"first was told has passed, and two limits are two; otherwise a page that loads twenty things is a crime.", askOneViolation},
	{"the longest wait is multiplied", "Of the limits that refused, known violations included; otherwise who runs into an " +
		"hour's limit is let in after a second.", askLongestWait},
	{"no violation of the client's", "A limit without a guard, one that passes, log_only, looks, settlements, give backs, " +
		"resets, and what can never pass are no violations; otherwise a client is punished for others.", askNoViolation},
	{"violations decay", "Each is forgotten when the window has passed since; otherwise a client never becomes good.", askDecay},
	{"a thousand violations are remembered", "And of more the oldest are forgotten; otherwise a client fills the store.",
		askViolationsMax},
	{"a penalty can be lifted", "A reset forgets it and its violations, says how many those were, and stands in a call " +
		"that is refused; otherwise an operator cannot help a client.", askLift},
	{"a penalty survives a wrong clock", "A clock that goes back ends no penalty, and makes none longer than it may be; " +
		"otherwise a step of NTP sets everybody free, or locks them out.", askPenaltyClockBack},
	{"hammered, every violation", "Any number of goroutines lose none.", askViolationsHammered},

	// What is forgotten on purpose.
	{"a reset forgets", "A counter that was reset is as one never used, says how many units it held, and is so in a call " +
		"that is refused; otherwise an operator cannot help a client.", askReset},
}

// storePromises are about what a store is besides.
var storePromises = []promise{
	{"a context that is done charges nothing", "Take returns an error at once and nothing was charged; otherwise " +
		"requests that were given up are paid for.", askDoneContext},
	{"any bytes are a key", "Two keys that differ in any byte are two counters, NUL, invalid UTF-8 and a kibibyte of " +
		"length included; otherwise clients share counters.", askBinaryKeys},
	{"keys belong to the caller", "The caller may overwrite a key's bytes after Take; otherwise reused buffers move " +
		"counts between clients.", askKeyReuse},
	{"results are written whole", "Whatever the results slice held before is gone; otherwise the receipt of the last " +
		"request is given back by this one.", askDirtyResults},
	{"hammered, exactly the limit", "Any number of goroutines on one counter admit exactly the limit.", askHammer},
	{"overlapping calls never deadlock", "Calls with overlapping keys in any order all return, and none of their " +
		"counters admits more than its limit.", askOverlap},
}
