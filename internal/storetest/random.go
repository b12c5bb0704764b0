// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
)

// seedVariable is the environment variable that repeats a random run.
const seedVariable = "PENSTOCK_SEED"

// Seed returns the seed of a random test: the one in PENSTOCK_SEED, or a new one, and prints it.
func Seed(t testing.TB) uint64 {
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("repeat with %s=%d", seedVariable, seed)
	return seed
}

// RunRandom sends steps random calls to a store and to [Model], and fails at the first that is answered differently or
// after which they do not hold the same.
func RunRandom(t *testing.T, open func(t testing.TB) Subject, steps int) {
	rng := rand.New(rand.NewPCG(Seed(t), 0))
	e := newExaminer(t, open(t))
	model := &Model{}
	for step := range steps {
		a := algorithms[rng.IntN(len(algorithms))]
		c := take(fmt.Sprintf("%s-%d", a.Label(), rng.IntN(4)), limit(a, 20, core.Second), rng.Int64N(22))
		e.at(e.now + core.Micros(rng.Int64N(300_000)))
		model.Pin(e.now)
		want := make([]core.Result, 1)
		if err := model.Take(context.Background(), []core.Check{c}, want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[0], e.one(c)); diff != "" {
			t.Fatalf("step %d at %s: %s: answer (-model +store):\n%s", step, clockTime(e.now), name(&c), diff)
		}
	}
}
