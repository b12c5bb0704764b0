// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"github.com/penstock/penstock/internal/test/seed"
	"math/big"
	"math/rand/v2"
	"testing"
)

// usage records how many units a client used at an instant. Refunded units are subtracted from it;
// for a token bucket, the refund is recorded as negative usage instead.
type usage struct {
	at      Micros
	units   int64
	receipt Micros
}

// greedyClient is a client that takes as many units as it can from one counter, at the instants
// that suit it best.
type greedyClient struct {
	rng   *rand.Rand
	limit Limit
	slot  []Slot
	now   Micros
	used  []usage
}

const noon Micros = 1_700_049_600 * Second

func newGreedy(rng *rand.Rand, l Limit) *greedyClient {
	return &greedyClient{rng: rng, limit: l, slot: make([]Slot, 1), now: noon + Micros(rng.Int64N(int64(l.window)))}
}

func (g *greedyClient) ask(op Op, cost int64, receipt Micros) Result {
	var r [1]Result
	c := Check{Limit: &g.limit, Op: op, Cost: cost, Receipt: receipt}
	if op == OpUpTo {
		c.Min, c.Max = 1, cost
	}
	Decide(g.now, []Check{c}, g.slot, r[:])
	switch {
	case r[0].Granted == 0:
	case op != OpRefund:
		g.used = append(g.used, usage{g.now, r[0].Granted, r[0].Receipt})
	case g.limit.algorithm == TokenBucket:
		g.used = append(g.used, usage{g.now, -r[0].Granted, 0})
	}
	return r[0]
}

// greedyClient.step sends a request and then waits, usually until the time at which the result
// promises more units.
func (g *greedyClient) step() {
	cost := min(g.limit.burst, []int64{1, 2, g.rng.Int64N(g.limit.burst) + 1, g.limit.burst, g.limit.burst/2 + 1}[g.rng.IntN(5)])
	r := g.ask([]Op{OpTake, OpTake, OpUpTo}[g.rng.IntN(3)], cost, 0)
	if g.rng.IntN(8) == 0 && len(g.used) > 0 {
		g.refund(&g.used[g.rng.IntN(len(g.used))])
	}
	switch g.rng.IntN(6) {
	case 0: // try again at once
	case 1:
		g.now += Micros(g.rng.Int64N(int64(g.limit.window)/3 + 1))
	case 2:
		g.now += r.Reset - min(r.Reset, Micros(g.rng.IntN(2)))
	case 3:
		g.now += r.Next
	default:
		if r.Wait < g.limit.window*2 {
			g.now += r.Wait
		}
	}
}

// greedyClient.refund refunds part of a usage, at most as much as was used.
func (g *greedyClient) refund(u *usage) {
	if u.units <= 0 || u.receipt == 0 {
		return
	}
	units := g.rng.Int64N(u.units + 1)
	if g.limit.algorithm == TokenBucket {
		u.receipt = 0 // each usage is refunded at most once
		g.ask(OpRefund, units, g.now)
		return
	}
	u.units -= g.ask(OpRefund, units, u.receipt).Granted
}

// perWindow returns the units used in each aligned window.
func (g *greedyClient) perWindow() map[Micros]int64 {
	units := map[Micros]int64{}
	for _, u := range g.used {
		units[u.at-u.at%g.limit.window] += u.units
	}
	return units
}

// mostInSpan returns the greatest number of units used in any span as long as a window.
func (g *greedyClient) mostInSpan() (most int64) {
	for i := range g.used {
		units := int64(0)
		for _, u := range g.used[i:] {
			if u.at >= g.used[i].at+g.limit.window {
				break
			}
			units += u.units
		}
		most = max(most, units)
	}
	return most
}

// greedyTraffic runs greedy traffic under many limits and calls check after each run.
func greedyTraffic(t *testing.T, a Algorithm, check func(t *testing.T, g *greedyClient)) {
	rng := seed.Random(t)
	windows := []Micros{WindowMin, 7 * Millisecond, 999_983, Second, Minute, Hour, WindowMax}
	for range 300 {
		count := 1 + rng.Int64N(1<<rng.IntN(14))
		if a != SlidingLog && rng.IntN(4) == 0 {
			count = 1 + rng.Int64N(1<<rng.IntN(41))
		}
		burst := int64(0)
		if a == TokenBucket {
			burst = 1 + rng.Int64N(3*min(count, CountMax/3))
		}
		l, err := NewLimit(a, count, windows[rng.IntN(len(windows))], burst)
		if err != nil {
			continue // the bucket would fill too slowly to be a valid limit
		}
		g := newGreedy(rng, l)
		for range 250 {
			g.step()
		}
		check(t, g)
	}
}

// windowPromise checks the promise of both algorithms that count by windows.
func windowPromise(t *testing.T, g *greedyClient) {
	for at, units := range g.perWindow() {
		if units > g.limit.count {
			t.Fatalf("%s: %d units in the window from %d", g.limit, units, at)
		}
	}
	if most := g.mostInSpan(); most > 2*g.limit.count {
		t.Fatalf("%s: %d units in a span of a window", g.limit, most)
	}
}

func TestFixedWindowPromise(t *testing.T) { greedyTraffic(t, FixedWindow, windowPromise) }

func TestSlidingWindowPromise(t *testing.T) { greedyTraffic(t, SlidingWindow, windowPromise) }

func TestSlidingLogPromise(t *testing.T) {
	greedyTraffic(t, SlidingLog, func(t *testing.T, g *greedyClient) {
		if most := g.mostInSpan(); most > g.limit.count {
			t.Fatalf("%s: %d units in a span of a window", g.limit, most)
		}
	})
}

func TestTokenBucketPromise(t *testing.T) {
	greedyTraffic(t, TokenBucket, func(t *testing.T, g *greedyClient) {
		for i := range g.used {
			units := int64(0)
			for _, u := range g.used[i:] {
				units += u.units
				refilled := mulDiv(g.limit.count, int64(u.at-g.used[i].at), int64(g.limit.window))
				if units > g.limit.burst+refilled {
					t.Fatalf("%s: %d units within %s", g.limit, units, u.at-g.used[i].at)
				}
			}
		}
	})
}

// patientClient returns a client that has taken units one by one for several windows, each as soon
// as it was allowed.
func patientClient(t *testing.T, l Limit, windows int) *greedyClient {
	t.Helper()
	g := newGreedy(rand.New(rand.NewPCG(1, 1)), l)
	g.now = noon - noon%l.window
	for end := g.now + Micros(windows)*l.window; ; {
		r := g.ask(OpTake, 1, 0)
		if g.now+r.Wait >= end {
			return g
		}
		g.now += r.Wait
	}
}

func TestTheWholeLimitCanBeUsedInEveryWindow(t *testing.T) {
	const windows = 12
	for _, text := range []string{"1/1ms", "1000/1ms", "7/10ms", "60/1m", "100/1s", "1000/31d"} {
		for _, algorithm := range []string{" fw", " sw", " sl", " tb"} {
			l, err := ParseLimit(text + algorithm)
			if err != nil {
				t.Fatal(err)
			}
			if l.count >= int64(l.window) && l.algorithm == SlidingWindow {
				// At one unit per microsecond, units used at the end of a window still count at the
				// end of the next.
				continue
			}
			g := patientClient(t, l, windows)
			used := g.perWindow()
			if l.algorithm == TokenBucket {
				// A full bucket has the burst in addition to what is refilled during the windows.
				// The client does not wait for the token due at the very end.
				if got, want := sumUsed(used), l.burst+windows*l.count-1; got < want-want/1000 || got > want+1 {
					t.Errorf("%s: %d used in %d windows, want %d", l, got, windows, want)
				}
				continue
			}
			for at, units := range used {
				if units != l.count {
					t.Errorf("%s: %d used in the window from %d", l, units, at)
				}
			}
			if len(used) != windows {
				t.Errorf("%s: used in %d windows of %d", l, len(used), windows)
			}
		}
	}
}

func sumUsed(used map[Micros]int64) (units int64) {
	for _, n := range used {
		units += n
	}
	return units
}

// TestTokenBucketSustainsItsRate: however coarse its tick, a bucket loses at most a thousandth of
// its rate.
func TestTokenBucketSustainsItsRate(t *testing.T) {
	rng := seed.Random(t)
	for range 500 {
		count := 1 + rng.Int64N(1<<rng.IntN(41))
		window := WindowMin + Micros(rng.Int64N(int64(WindowMax)>>rng.IntN(30)))
		l, err := NewLimit(TokenBucket, count, min(window, WindowMax), 0)
		if err != nil {
			t.Fatal(err)
		}
		g := newGreedy(rng, l)
		begin := g.now
		for g.now < begin+20*l.window {
			g.ask(OpUpTo, l.burst, 0)
			g.now += l.window/3 + 1
		}
		used := sumUsed(g.perWindow())
		refilled := new(big.Rat).Mul(big.NewRat(count, int64(l.window)), big.NewRat(int64(g.used[len(g.used)-1].at-begin), 1))
		least := new(big.Rat).Mul(refilled, big.NewRat(999, 1000))
		// One token and one tick may be incomplete.
		least.Add(least, big.NewRat(l.burst-2-count/1000, 1))
		if big.NewRat(used, 1).Cmp(least) < 0 {
			t.Fatalf("%s: %d used, refilled %s", l, used, refilled.FloatString(1))
		}
	}
}

// TestTokenBucketSustainsItsRateWithASmallBurst: a bucket that is emptied whenever it is full
// sustains its rate, however small its burst. It may lose three thousandths: one to the clock's
// resolution, one to the rounding of the rate, and one to waiting in ticks.
func TestTokenBucketSustainsItsRateWithASmallBurst(t *testing.T) {
	rng := seed.Random(t)
	for range 2_000 {
		count, window := 1+rng.Int64N(1<<rng.IntN(41)), WindowMin+Micros(rng.Int64N(int64(WindowMax)>>rng.IntN(30)))
		window = min(window, WindowMax)
		// Such a burst takes a thousand times the clock's resolution to refill.
		burst := max(1, mulDiv(count, 1000, int64(window))+rng.Int64N(1+count>>rng.IntN(41)))
		l, err := NewLimit(TokenBucket, count, window, min(burst, count))
		if err != nil {
			t.Fatal(err)
		}
		if mulDiv(count, 1000, int64(window)) > l.burst {
			continue
		}
		g := newGreedy(rng, l)
		begin, refills := g.now, int64(100)
		for range refills + 1 {
			wait := g.ask(OpLook, l.burst, 0).Wait
			g.now += wait
			if g.ask(OpTake, l.burst, 0).Denied {
				t.Fatalf("%s: denies after %s, the wait it named", l, wait)
			}
		}
		took := int64(g.now - begin)
		if most := mulDiv(refills*1003, mulDiv(l.burst, int64(window), count)+1, 1000); took > most {
			unit, refill, tick := l.Arithmetic()
			t.Fatalf("%s: %d refills took %d us, more than %d (unit %d, refill %d, tick %d)", l, refills, took, most,
				unit, refill, tick)
		}
	}
}
