// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestLaterUnitsWhileOthersCharge: two agents of a region ask a lender in another region for units
// at the same moment, and the lender admits requests meanwhile. The second question and the
// requests may come at any step of the first loan. The borrowers never use a unit that was lent for
// later before the lender's counter could have admitted a request for it.
func TestLaterUnitsWhileOthersCharge(t *testing.T) {
	for _, step := range []int{1, 2, 3, 4, 5, 6, 51, 52, 53, 54, 55, 56} {
		for name, what := range map[string]func(idle *lender, q *Question) (l Loan, admitted int64){
			"another question": func(idle *lender, q *Question) (Loan, int64) {
				l, err := idle.lend(t.Context(), q)
				if err != nil {
					t.Error(err)
				}
				return l, 0
			},
			"requests": func(idle *lender, _ *Question) (l Loan, admitted int64) {
				for idle.takes(1) {
					admitted++
				}
				return l, admitted
			},
			"the next window": func(idle *lender, _ *Question) (l Loan, admitted int64) {
				idle.now += counter.Minute
				return l, 0
			},
		} {
			t.Run(fmt.Sprint(name, " at step ", step%10, " after ", step/10, " s"), func(t *testing.T) {
				_, idle := pair(t)
				idle.now += counter.Micros(step/10) * counter.Second
				start := idle.now - idle.now%counter.Minute
				q := &Question{Key: idle.key, Limit: idle.whole.String(), Part: 1000, Want: 300, Shares: equalShares, Ahead: true}
				var other Loan
				var admitted int64
				calls := 0
				idle.o.Store = &crowded{idle.o.Store, func() {
					if calls++; calls == step%10 {
						other, admitted = what(idle, q)
					}
				}}
				l, err := idle.lend(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if name == "the next window" {
					if l.Later > 0 && l.Receipt > start {
						t.Errorf("%+v: the speed is that of the window before", l)
					}
					return
				}
				worst := int64(0)
				for at := idle.now; at < start+counter.Minute; at += 10 * counter.Millisecond {
					used := admitted + l.Units + l.usable(at) + other.Units + other.usable(at)
					worst = max(worst, used-1000*int64(at-start)/int64(counter.Minute))
				}
				if worst > 1 {
					t.Errorf("%d units are used before they are available: %+v, %+v", worst, l, other)
				}
			})
		}
	}
}
