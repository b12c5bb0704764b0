// SPDX-License-Identifier: Apache-2.0

// Package racescale reduces the number of steps of a test where more steps would take long and find
// little. It does so under the race detector, which makes a step ten times as slow, and with the
// flag -short, which "make check" sets. It also shortens long walks, except in "make exam".
//
// The package is for random tests with a single goroutine, which are useful even with fewer steps,
// and for tests that fill memory. The race detector finds nothing in such tests. A test with
// several goroutines should still take at least a quarter of its steps under the race detector.
package racescale

import (
	"flag"
	"os"
	"testing"
)

// ExamVariable is the environment variable with which "make exam" gives long walks their full
// length.
const ExamVariable = "PENSTOCK_EXAM"

// The number of steps is divided by the largest of these divisors that applies.
const (
	raceDivisor  = 10 // under the race detector
	shortDivisor = 20 // with -short
	longDivisor  = 5  // for a long walk, except in make exam
)

// Fewer returns n, or a tenth of n under the race detector, or a twentieth of n with -short, but at
// least 1.
func Fewer(n int) int { return max(1, n/divisor(isShort())) }

// Long is [Fewer] for a walk of several seconds. Where Fewer returns n, Long returns a fifth of n,
// except in "make exam".
func Long(n int) int {
	d := divisor(isShort())
	if os.Getenv(ExamVariable) == "" {
		d = max(d, longDivisor)
	}
	return max(1, n/d)
}

func divisor(short bool) int {
	switch {
	case short:
		return shortDivisor
	case detecting:
		return raceDivisor
	}
	return 1
}

// isShort reports whether -short is set. It returns false during the initialization of package
// variables, because flags are parsed later.
func isShort() bool { return flag.Parsed() && testing.Short() }
