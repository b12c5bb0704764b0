// SPDX-License-Identifier: Apache-2.0

// Package seed gives random tests a repeatable source of numbers. Each run has a new seed, which
// the test prints. PENSTOCK_SEED repeats a run.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Random returns a source of random numbers. Random fails the test if PENSTOCK_SEED is not a
// number.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("PENSTOCK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with PENSTOCK_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
