// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"github.com/penstock/penstock/internal/test/seed"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// anyNumber returns a random non-negative number whose bit length is uniformly distributed.
func anyNumber(rng *rand.Rand) int64 {
	edges := []int64{0, 1, 2, 1<<40 - 1, 1 << 40, 1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64}
	if rng.IntN(4) == 0 {
		return edges[rng.IntN(len(edges))]
	}
	return int64(rng.Uint64() >> (1 + rng.IntN(63)))
}

// saturatedInt returns n, limited to the greatest int64.
func saturatedInt(n *big.Int) int64 {
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

func TestExactAgainstBig(t *testing.T) {
	rng := seed.Random(t)
	for range 200_000 {
		a, b, c, d := anyNumber(rng), anyNumber(rng), max(1, anyNumber(rng)), anyNumber(rng)
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		divisor := big.NewInt(c)
		if got, want := mulDiv(a, b, c), saturatedInt(new(big.Int).Div(product, divisor)); got != want {
			t.Fatalf("mulDiv(%d, %d, %d) = %d, want %d", a, b, c, got, want)
		}
		if less := new(big.Int).Sub(product, big.NewInt(d)); less.Sign() >= 0 {
			if got, want := mulSubDiv(a, b, d, c), saturatedInt(less.Div(less, divisor)); got != want {
				t.Fatalf("mulSubDiv(%d, %d, %d, %d) = %d, want %d", a, b, d, c, got, want)
			}
		}
		if b > 0 {
			up := new(big.Int).Add(product, new(big.Int).Sub(divisor, big.NewInt(1)))
			if got, want := mulDivUp(a, b, c, d), min(d, saturatedInt(up.Div(up, divisor))); got != want {
				t.Fatalf("mulDivUp(%d, %d, %d, %d) = %d, want %d", a, b, c, d, got, want)
			}
		}
	}
}

func TestRoundedQuotients(t *testing.T) {
	rng := seed.Random(t)
	for range 100_000 {
		a, b := anyNumber(rng)>>1, 1+anyNumber(rng)>>2
		if got, want := ceilDiv(a, b), -new(big.Int).Div(big.NewInt(-a), big.NewInt(b)).Int64(); got != want {
			t.Fatalf("ceilDiv(%d, %d) = %d, want %d", a, b, got, want)
		}
		for _, a := range []int64{a, -a} { // big.Int.Div rounds down if the divisor is positive
			if got, want := floorDiv(a, b), new(big.Int).Div(big.NewInt(a), big.NewInt(b)).Int64(); got != want {
				t.Fatalf("floorDiv(%d, %d) = %d, want %d", a, b, got, want)
			}
		}
	}
}

// TestBucketArithmeticIsExact: a bucket refills at most its count per window, and at least 999
// thousandths of it. The bucket's products fit in 53 bits. A burst can be rejected because the
// products would not fit, but a count never is.
func TestBucketArithmeticIsExact(t *testing.T) {
	rng := seed.Random(t)
	windows := []Micros{WindowMin, 999_983, Second, Minute, Hour, Day, WindowMax, 0}
	for i := range 50_000 {
		window := windows[i/2%len(windows)]
		if window == 0 {
			window = WindowMin + Micros(rng.Int64N(int64(WindowMax-WindowMin)))
		}
		count := 1 + anyNumber(rng)%CountMax
		burst := int64(i%2) * (1 + anyNumber(rng)%CountMax)
		l, err := NewLimit(TokenBucket, count, window, burst)
		switch {
		case err != nil && burst == 0:
			t.Fatalf("a whole count fills in a window: %v", err)
		case err != nil:
			continue
		}
		unit, refill, tick := l.Arithmetic()
		if unit < 1 || refill < 1 || tick < 1 || mulDiv(l.burst+l.count, unit, 1) > exactMax {
			t.Fatalf("%s: unit %d refill %d tick %s: its products do not fit 2^53", l, unit, refill, tick)
		}
		rate := new(big.Rat).Mul(big.NewRat(refill, unit), big.NewRat(int64(window), int64(tick)))
		if rate.Cmp(big.NewRat(count, 1)) > 0 || rate.Cmp(big.NewRat(count*999, 1000)) < 0 {
			t.Fatalf("%s: refills %s per window", l, rate.FloatString(3))
		}
	}
}
