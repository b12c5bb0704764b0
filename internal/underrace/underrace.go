// SPDX-License-Identifier: Apache-2.0

// Package underrace lets tests take fewer steps under the race detector. It is for random tests with a single goroutine:
// the detector makes a step ten times as long and sees nothing in it, and the same tests run in full without it. Tests in
// which goroutines meet are what the detector is for; they run in full.
package underrace

// Fewer returns n, or a tenth of it under the race detector, but no less than 1.
func Fewer(n int) int {
	if detecting {
		return max(1, n/10)
	}
	return n
}
