// SPDX-License-Identifier: Apache-2.0

package publish

import "time"

const (
	// answerMax is how much later than usual Redis may answer a read while a page is written.
	answerMax = 2 * time.Millisecond
	// shareMax bounds the pause after a page, as a multiple of the time of its writing.
	shareMax = 4
	// pauseMax bounds the pause after a page, because the next page must be written before it is
	// old.
	pauseMax = time.Second
)

// pace determines the pauses between pages, in which Redis and its machine have time for checks.
// Pauses are as long as the writing. When Redis answers late, they double, and then they become
// shorter slowly. The zero pace is ready to use.
type pace struct {
	share float64       // of the last pause, as a multiple of the time of the writing
	least time.Duration // the shortest time of an answer, which depends on how far away Redis is
}

// after returns the pause after a page that was written in the time wrote, while Redis answered a
// read in the time answer.
func (p *pace) after(wrote, answer time.Duration) time.Duration {
	if p.least == 0 || answer < p.least {
		p.least = answer
	}
	if answer > p.least+answerMax {
		p.share = min(2*p.share, shareMax)
	} else {
		p.share = max(0.95*p.share, 1)
	}
	return min(time.Duration(p.share*float64(wrote)), pauseMax)
}
