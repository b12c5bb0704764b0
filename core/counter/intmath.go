// SPDX-License-Identifier: Apache-2.0

package counter

import "math/bits"

// mulDiv returns ⌊a × b / c⌋ for a, b ≥ 0 and c > 0, saturating at the greatest int64.
func mulDiv(a, b, c int64) int64 { return mulSubDiv(a, b, 0, c) }

// mulSubDiv returns ⌊(a × b − d) / c⌋ for a × b ≥ d, saturating like mulDiv.
func mulSubDiv(a, b, d, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, borrow := bits.Sub64(lo, uint64(d), 0)
	hi -= borrow
	if hi >= uint64(c) {
		return int64(Never)
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, uint64(Never)))
}

// mulDivUp returns min(⌈a × b / c⌉, most).
func mulDivUp(a, b, c, most int64) int64 {
	if a == 0 {
		return 0
	}
	q := mulSubDiv(a, b, 1, c)
	if q >= most {
		return most
	}
	return q + 1
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
