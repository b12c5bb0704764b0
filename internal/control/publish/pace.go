// SPDX-License-Identifier: Apache-2.0

package publish

import "time"

const (
	// answerMax is how much later than usual Redis may answer a read while a part of a page is
	// written.
	answerMax = 2 * time.Millisecond
	// shareMin and shareMax bound the pause after a part, as multiples of the time of its writing.
	shareMin = 0.5
	shareMax = 4
	// shareDecay is the factor by which the share is multiplied after an answer in time. A late
	// answer doubles the share, so the share grows if more than a quarter of the answers are late.
	shareDecay = 0.8
	// pauseMax bounds the pause after a part, because the next page must be written before it is
	// too old.
	pauseMax = 100 * time.Millisecond
)

// pace determines the pauses between parts of pages, in which Redis and its machine have time for
// checks. Usually, a pause is half as long as the writing. A late answer doubles the pauses. After
// answers in time, they slowly become shorter. The zero pace is ready to use.
type pace struct {
	share float64       // the last pause, as a multiple of the time of the writing
	least time.Duration // the shortest time of an answer, which depends on how far away Redis is
}

// pace.after returns the pause that follows a part of a page. The parameter wrote is how long the
// writing of the part took, and answer is how long Redis took to answer a read meanwhile.
func (p *pace) after(wrote, answer time.Duration) time.Duration {
	if p.least == 0 || answer < p.least {
		p.least = answer
	}
	if answer > p.least+answerMax {
		p.share = min(2*p.share, shareMax)
	} else {
		p.share = max(shareDecay*p.share, shareMin)
	}
	return min(time.Duration(p.share*float64(wrote)), pauseMax)
}
