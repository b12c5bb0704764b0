// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// TestALaterLoanIsTakenBackOnce: of messages that return the same loan for later at the same time,
// one is accepted.
func TestALaterLoanIsTakenBackOnce(t *testing.T) {
	const rounds, copies = 20_000, 4
	l := newLender(t, "2000/1m", equalShares, 0)
	q := Question{Key: l.key, Limit: l.whole.String(), Want: 1, Shares: equalShares}
	for range rounds {
		lent := l.lent.add(l.hash(l.key), Loan{Later: 1, Receipt: l.now}, time.Now())
		l.recalls.add(l.hash(l.key), lent)
		var taken atomic.Int64
		var returning sync.WaitGroup
		start := make(chan struct{})
		for range copies {
			returning.Go(func() {
				<-start
				if _, err := l.takeBack(t.Context(), &returned{q, Loan{ID: lent.ID, Units: 1, Receipt: lent.Receipt}}); err == nil {
					taken.Add(1)
				}
			})
		}
		close(start)
		if returning.Wait(); taken.Load() != 1 {
			t.Fatalf("a loan was taken back %d times", taken.Load())
		}
	}
}
