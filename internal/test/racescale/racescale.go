// SPDX-License-Identifier: Apache-2.0

// Package racescale reduces the number of steps of a test where more steps would take long and find
// little: under the race detector, which makes a step ten times as slow; with -short, which make
// check uses; and for long walks, except in make exam.
//
// The package is for random tests with a single goroutine, which still prove their promise with
// fewer steps, and for tests that fill memory. The race detector finds nothing in them. Tests with
// several goroutines take at least a quarter of their steps there.
package racescale

import (
	"flag"
	"os"
	"testing"
)

// ExamVariable is the environment variable that make exam sets, so that long walks have their full
// length.
const ExamVariable = "PENSTOCK_EXAM"

// The divisors of the number of steps. Only the largest that applies is used.
const (
	raceDivisor  = 10 // under the race detector
	shortDivisor = 20 // with -short
	longDivisor  = 5  // for a long walk, except in make exam
)

// Fewer returns n, a tenth of it under the race detector, or a twentieth with -short, but no less
// than 1.
func Fewer(n int) int { return max(1, n/divisor(isShort())) }

// Long is [Fewer] for a walk of several seconds: where Fewer returns n, it returns a fifth of n,
// except in make exam.
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

// The function isShort reports whether -short is set. Package variables are initialized before
// flags are parsed, so there it returns false.
func isShort() bool { return flag.Parsed() && testing.Short() }
