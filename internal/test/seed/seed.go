// SPDX-License-Identifier: Apache-2.0

// Package seed gives random tests a repeatable source of numbers. Each run has a new seed, which
// the test prints. The environment variable PENSTOCK_SEED repeats a run, and PENSTOCK_ROUNDS makes
// it longer or shorter.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Random returns the [Source] for the seed of [First].
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	return Source(First(t))
}

// Source returns a source of random numbers with the given seed.
func Source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// First returns the seed in PENSTOCK_SEED, or a random seed, and prints it. A test with several
// rounds uses this seed for its first round, and adds 1 for each further round, so that a round can
// be repeated alone. First fails the test if PENSTOCK_SEED is not a number.
func First(t testing.TB) uint64 {
	t.Helper()
	first := number(t, "PENSTOCK_SEED", rand.Uint64()>>1)
	t.Logf("repeat with PENSTOCK_SEED=%d", first)
	return first
}

// Rounds returns the number of rounds of a test, which is PENSTOCK_ROUNDS or, if this variable is
// not set, the argument named otherwise. Rounds fails the test if the variable is not a number
// above 0.
func Rounds(t testing.TB, otherwise int) uint64 {
	t.Helper()
	n := number(t, "PENSTOCK_ROUNDS", uint64(otherwise))
	if n == 0 {
		t.Fatal("PENSTOCK_ROUNDS=0 plays nothing: write 1 or more")
	}
	return n
}

func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}
