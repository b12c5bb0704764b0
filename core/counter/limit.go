// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"math"
	"strconv"

	"github.com/penstock/penstock/core/slim"
)

// Micros is an instant (microseconds since the Unix epoch, by the store's clock) or a span in
// microseconds. All computations use microseconds, because a Lua number represents them exactly
// until the year 2255. A Lua number cannot represent the current time in nanoseconds exactly.
type Micros int64

// Units of time.
const (
	Millisecond Micros = 1_000
	Second      Micros = 1_000_000
	Minute             = 60 * Second
	Hour               = 60 * Minute
	Day                = 24 * Hour
)

// Bounds of a limit. Within them every product that Go or Lua computes fits in 2^53.
const (
	CountMax int64 = 1 << 40 // the maximum of a count, a burst or a cost
	// the maximum count of a sliding log, which can store each unit separately
	LogCountMax int64  = 10_000
	WindowMin          = Millisecond   // network jitter would dominate shorter windows
	WindowMax          = 31 * Day      // longer windows are calendar windows
	FillMax            = 366 * Day     // the longest time for a token bucket to fill from empty
	exactMax    int64  = 1 << 53       // up to this bound, a Lua number holds every integer exactly
	Never       Micros = math.MaxInt64 // a wait: the cost can never pass
)

// Algorithm names one of the four counting algorithms.
type Algorithm uint8

// The algorithms. docs/reference/policy.md states what each of them guarantees. The zero Algorithm
// is invalid.
const (
	FixedWindow Algorithm = iota + 1 // at most Count per aligned window
	// like fixed_window, but a weighted part of the previous window counts too
	SlidingWindow
	SlidingLog  // at most Count in any span of one window
	TokenBucket // at most burst + Count·t/window in any span t
)

// Limit is a compiled limit: a count of units, a window and an algorithm. [NewLimit] and
// [ParseLimit] create one; the zero Limit is invalid. A Limit is immutable and safe for concurrent
// use.
type Limit struct {
	algorithm Algorithm
	calendar  CalendarUnit
	count     int64  // units per window
	burst     int64  // token bucket: capacity in units; otherwise count
	window    Micros // between WindowMin and WindowMax; for a calendar unit, its typical length

	// Token bucket arithmetic: a token has unit parts, and a tick adds refill parts. The fraction
	// refill/unit is count divided by the ticks of a window, in lowest terms. The tick is coarsened
	// or the refill rounded down until (burst+count)·unit fits in 2^53.
	unit   int64
	refill int64
	tick   Micros
	fill   Micros // the time to fill from empty
}

// NewLimit returns a limit of count units per window. The argument burst is the capacity of a token
// bucket, where 0 means count. For every other algorithm it must be 0. The error names the number
// that is out of bounds and states the bounds.
func NewLimit(a Algorithm, count int64, window Micros, burst int64) (Limit, error) {
	l := Limit{algorithm: a, count: count, window: window, burst: burst}
	if burst == 0 {
		l.burst = count
	}
	if err := l.validate(burst); err != nil {
		return Limit{}, err
	}
	if a == TokenBucket {
		if err := l.reduce(); err != nil {
			return Limit{}, err
		}
	}
	return l, nil
}

func (l *Limit) validate(burst int64) error {
	countMax := CountMax
	if l.algorithm == SlidingLog {
		countMax = LogCountMax
	}
	switch {
	case l.algorithm < FixedWindow || l.algorithm > TokenBucket:
		return slim.NewError("algorithm " + strconv.Itoa(int(l.algorithm)) + " is unknown")
	case l.count < 1 || l.count > countMax:
		return countOutOfBounds(l.algorithm, l.count, countMax)
	case l.window < WindowMin || l.window > WindowMax:
		return slim.NewError("window " + l.window.String() + " is out of bounds: it must be between " + WindowMin.String() +
			" and " + WindowMax.String())
	case burst != 0 && l.algorithm != TokenBucket:
		return slim.NewError("burst " + decimal(burst) + " does not go with " + l.algorithm.String() + ": only token_bucket has a burst")
	case burst < 0 || burst > CountMax:
		return slim.NewError("burst " + decimal(burst) + " is out of bounds: it must be between 1 and " + decimal(CountMax))
	}
	return nil
}

func countOutOfBounds(a Algorithm, count, most int64) error {
	return slim.NewError("count " + decimal(count) + " is out of bounds: " + a.String() + " takes 1 to " + decimal(most))
}

//go:noinline
func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// Limit.reduce divides a token into the fewest parts for which a tick refills a whole number of
// parts. If the numbers are too large, reduce makes the tick coarser. That rounds the window up and
// the rate down, so a bucket never grants more than count per window. A full bucket loses up to the
// refill of one tick, so a coarser tick must refill less than a thousandth of the burst. If a tick
// would refill more than that, the method rounds the rate instead. In both cases the rate is exact
// to one part in a thousand.
func (l *Limit) reduce() error {
	if mulDiv(l.burst, int64(l.window), l.count) > int64(FillMax) {
		return slim.NewError("burst " + decimal(l.burst) + " takes longer than " + FillMax.String() + " to fill at " +
			decimal(l.count) + " per " + l.window.String() + ": lower the burst or raise the count")
	}
	l.tick, l.unit, l.refill = l.coarsen()
	if l.tick > 1 && mulDiv(l.refill, lossMax, l.unit) >= l.burst {
		// At this point the burst is less than the count: a tick refills less than a thousandth of
		// any larger burst. So refill is more than 1,600.
		l.tick, l.unit = 1, exactMax/(l.burst+l.count)
		l.refill = mulDiv(l.count, l.unit, int64(l.window))
	}
	l.fill = Micros(ceilDiv(l.burst*l.unit, l.refill)) * l.tick
	return nil
}

// lossMax bounds the refill of a tick coarser than one microsecond: such a refill is less than
// the burst divided by lossMax.
const lossMax = 1000

// Limit.coarsen returns the finest tick, of 1, 2 or 5 times a power of ten, for which the bucket's
// numbers fit. It also returns the parts of a token and the parts that a tick adds. Counts and
// bursts are bounded, so some tick of less than a 1,600th of the window always fits.
func (l *Limit) coarsen() (tick Micros, unit, refill int64) {
	for decade := Micros(1); ; decade *= 10 {
		for _, tick = range [...]Micros{decade, 2 * decade, 5 * decade} {
			windowTicks := ceilDiv(int64(l.window), int64(tick))
			divisor := gcd(l.count, windowTicks)
			unit, refill = windowTicks/divisor, l.count/divisor
			if l.burst+l.count <= exactMax/unit {
				return tick, unit, refill
			}
		}
	}
}

// Algorithm returns the limit's algorithm.
func (l *Limit) Algorithm() Algorithm { return l.algorithm }

// Count returns the number of units per window.
func (l *Limit) Count() int64 { return l.count }

// Window returns the window's length. For a calendar window, whose length varies, it returns the
// typical length (1, 7, 30 or 365 days), which is only useful for comparing limits.
func (l *Limit) Window() Micros { return l.window }

// Calendar returns the limit's calendar unit, or 0 if it has none.
func (l *Limit) Calendar() CalendarUnit { return l.calendar }

// WindowLabel returns the window as keys spell it: "60s", "500ms", "day".
func (l *Limit) WindowLabel() string {
	if l.calendar != 0 {
		return l.calendar.String()
	}
	return l.window.String()
}

// Capacity returns the greatest cost that can ever pass: the burst of a token bucket, otherwise the
// count.
func (l *Limit) Capacity() int64 { return l.burst }

// Arithmetic returns the numbers of a token bucket: parts per token, parts added per tick, and the
// tick. The three numbers are 0 for the other algorithms.
func (l *Limit) Arithmetic() (unit, refill int64, tick Micros) { return l.unit, l.refill, l.tick }

// TTL returns how long after a write a store must keep the counter. The TTL is two windows; for a
// sliding log it is one window, and for a token bucket twice the fill time. A bucket in debt must
// be kept until the instant that [Limit.Fresh] returns, if that is later. For a calendar window TTL
// is approximate: the counter is kept until the boundary after the next.
func (l *Limit) TTL() Micros {
	switch l.algorithm {
	case SlidingLog:
		return l.window
	case TokenBucket:
		return 2 * l.fill
	default:
		return 2 * l.window
	}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// ReceiptAt returns the receipt of a charge at the given instant of the store's clock. ReceiptAt
// returns 0 for a sliding log, where the instant alone does not determine the receipt.
func (l *Limit) ReceiptAt(at Micros, b *Bounds) Micros {
	switch {
	case b != nil:
		return b[b.period(at)]
	case l.algorithm == TokenBucket:
		return at
	case l.algorithm == SlidingLog:
		return 0
	default:
		return at - at%l.window
	}
}

// Fillable returns the largest burst for which a bucket of count tokens per window fills within
// [FillMax].
func (l *Limit) Fillable(count int64) int64 { return mulDiv(int64(FillMax), count, int64(l.window)) }

// Resized returns the limit with a different count. The argument burst replaces the burst of a
// token bucket; other algorithms ignore it.
func (l *Limit) Resized(count, burst int64) (Limit, error) {
	if l.calendar != 0 {
		return NewCalendarLimit(count, l.calendar)
	}
	if l.algorithm != TokenBucket {
		burst = 0
	}
	return NewLimit(l.algorithm, count, l.window, burst)
}
