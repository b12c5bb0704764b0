// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"math"
	"strconv"
)

// Micros is an instant (microseconds since the Unix epoch, on the store's clock) or a span in microseconds. Every
// computation uses it: microseconds stay exact in a Lua number until the year 2255, nanoseconds already do not.
type Micros int64

// Spans that the limits of this package are stated in.
const (
	Millisecond Micros = 1_000
	Second      Micros = 1_000_000
	Minute             = 60 * Second
	Hour               = 60 * Minute
	Day                = 24 * Hour
)

// Bounds of a limit. Within them every product that Go or Lua forms fits 2^53.
const (
	CountMax    int64  = 1 << 40       // units in a window, a burst or a cost
	LogCountMax int64  = 10_000        // units in a window of a sliding log: each may be a member of its own
	WindowMin          = Millisecond   // shorter windows would be noise beside the network
	WindowMax          = 31 * Day      // longer ones are calendar windows
	FillMax            = 366 * Day     // how long a token bucket may take to fill from empty
	exactMax    int64  = 1 << 53       // what a Lua number holds exactly
	Never       Micros = math.MaxInt64 // as a wait: this cost can never pass
)

// Algorithm names one of the four ways to count.
type Algorithm uint8

// The algorithms; the promises of each are in docs/policy.md. The zero Algorithm is none of them.
const (
	FixedWindow   Algorithm = iota + 1 // at most Count per aligned window
	SlidingWindow                      // at most Count per aligned window, the window before it weighted in
	SlidingLog                         // at most Count in any span of one window
	TokenBucket                        // at most burst + Count·t/window in any span t
)

// Limit is one limit as the algorithms want it: how many units in which window, counted how. Make one with [NewLimit] or
// [ParseLimit]; the zero Limit is not valid. A Limit is immutable and safe for concurrent use.
type Limit struct {
	algorithm Algorithm
	calendar  CalendarUnit
	count     int64  // units per window
	burst     int64  // token bucket: capacity in units; otherwise count
	window    Micros // a multiple of a microsecond between WindowMin and WindowMax; of a calendar unit, about

	// Token bucket arithmetic: one token is unit parts, a tick adds refill parts. count/window was reduced by its
	// greatest common divisor, and the tick coarsened or refill rounded down until (burst+count)·unit fits 2^53.
	unit   int64
	refill int64
	tick   Micros
	fill   Micros // from empty to full
}

// NewLimit returns a limit of count units per window. burst is the capacity of a token bucket, 0 meaning count, and must
// be 0 for every other algorithm. The error says which number is out of which bounds.
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
		return errors.New("algorithm " + strconv.Itoa(int(l.algorithm)) + " is unknown")
	case l.count < 1 || l.count > countMax:
		return countOutOfBounds(l.algorithm, l.count, countMax)
	case l.window < WindowMin || l.window > WindowMax:
		return errors.New("window " + l.window.String() + " is out of bounds: it must be between " + WindowMin.String() +
			" and " + WindowMax.String())
	case burst != 0 && l.algorithm != TokenBucket:
		return errors.New("burst " + decimal(burst) + " does not go with " + l.algorithm.String() + ": only token_bucket has a burst")
	case burst < 0 || burst > CountMax:
		return errors.New("burst " + decimal(burst) + " is out of bounds: it must be between 1 and " + decimal(CountMax))
	}
	return nil
}

func countOutOfBounds(a Algorithm, count, most int64) error {
	return errors.New("count " + decimal(count) + " is out of bounds: " + a.String() + " takes 1 to " + decimal(most))
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// reduce finds the smallest parts of a token in which a tick's refill is whole. Where they are too small for the numbers,
// the tick is coarsened, which rounds the window up and so the rate down, so that a bucket never gives more than count
// per window. A bucket loses up to a tick's refill whenever it is full, so a coarser tick may bring less than a
// thousandth of the burst only; where it would bring more, the rate is rounded instead. Either way it stays within one
// part in a thousand.
func (l *Limit) reduce() error {
	if mulDiv(l.burst, int64(l.window), l.count) > int64(FillMax) {
		return errors.New("burst " + decimal(l.burst) + " takes longer than " + FillMax.String() + " to fill at " +
			decimal(l.count) + " per " + l.window.String() + ": lower the burst or raise the count")
	}
	l.tick, l.unit, l.refill = l.coarsen()
	if l.tick > 1 && mulDiv(l.refill, lossMax, l.unit) >= l.burst {
		// The burst is less than the count here, or the tick would bring less of it: so refill is more than 1,600.
		l.tick, l.unit = 1, exactMax/(l.burst+l.count)
		l.refill = mulDiv(l.count, l.unit, int64(l.window))
	}
	l.fill = Micros(ceilDiv(l.burst*l.unit, l.refill)) * l.tick
	return nil
}

// lossMax is the part of a burst, one in so many, that a tick coarser than the clock may bring.
const lossMax = 1000

// coarsen returns the finest tick of 1, 2 or 5 times a power of ten in which the bucket's parts fit, with the parts of a
// token and those that a tick adds. Counts and bursts are bounded, so a tick with more than 1,600 to the window fits.
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

// Algorithm returns how the limit counts.
func (l *Limit) Algorithm() Algorithm { return l.algorithm }

// Count returns the units per window.
func (l *Limit) Count() int64 { return l.count }

// Window returns the window's length. A calendar window has no one length: then it is that of its unit as a rule, 1, 7, 30
// or 365 days, and good for comparing limits only.
func (l *Limit) Window() Micros { return l.window }

// Calendar returns the calendar unit that the limit counts in, 0 for none.
func (l *Limit) Calendar() CalendarUnit { return l.calendar }

// WindowLabel returns the window as it stands in a key: "60s", "500ms", "day".
func (l *Limit) WindowLabel() string {
	if l.calendar != 0 {
		return l.calendar.String()
	}
	return l.window.String()
}

// Capacity returns the greatest cost that can ever pass: the burst of a token bucket, otherwise the count.
func (l *Limit) Capacity() int64 { return l.burst }

// Arithmetic returns what a token bucket computes with: parts per token, parts added per tick, and the tick. All are 0
// for the other algorithms.
func (l *Limit) Arithmetic() (unit, refill int64, tick Micros) { return l.unit, l.refill, l.tick }

// TTL returns how long after a write a store must keep the counter: two windows, for a sliding log one, for a token
// bucket twice the time from empty to full. A bucket in debt must be kept for [Limit.Fresh] if that is longer. Of a calendar
// window it says about: its counter is kept to the boundary after next.
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
