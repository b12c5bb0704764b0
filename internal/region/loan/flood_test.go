// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/eventually"
)

// equalShares gives each of two regions half of a limit.
var equalShares = [policy.RegionsMax]uint16{50, 50}

// lender.flood returns a question for units of one of many counters, whose client is made up.
func (l *lender) flood(i int, source uint32, need int64) *Question {
	return &Question{Key: fmt.Appendf(nil, "rl1:n:r:{%d %d}%s", source, i, counter.KeyTail(&l.whole)), Limit: l.whole.String(),
		Part: l.part.Count(), Want: need + 50, Short: true, Need: need, ID: fmt.Sprint(source, " ", i), Source: source,
		Shares: equalShares}
}

// TestAFloodLeavesPlaces: a client whose requests have thousands of counters occupies half of the
// places of its region's agent. The question about another client's counter is asked at once,
// although the flood has touched the pauses of all counters.
func TestAFloodLeavesPlaces(t *testing.T) {
	for name, need := range map[string]int64{"in advance": 0, "while a request waits": 1} {
		t.Run(name, func(t *testing.T) {
			l := newLender(t, "100/1h", equalShares, 0)
			release := make(chan struct{})
			var other atomic.Bool
			asked := make(chan struct{})
			l.o.Peers = []*Peer{{Name: "other", send: func(_ context.Context, _ string, message any) (Loan, error) {
				if q, ok := message.(*Question); ok && q.Source == 9 && !other.Swap(true) {
					close(asked)
				}
				<-release
				return Loan{}, nil
			}}}
			hear := func(q *Question) {
				text, err := json.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				l.hear(t.Context(), string(text))
			}
			for i := range 4 * countersMax {
				hear(l.flood(i, 7, need))
			}
			before := len(l.places)
			hear(l.flood(0, 9, need))
			if got := len(l.places) - before; got != 1 {
				t.Errorf("%d questions of the flood are being asked, and %d of the other client", before, got)
			} else {
				<-asked
			}
			close(release)
			l.running.Wait()
		})
	}
}

// TestOthersCauseNoPause: the other regions were asked in vain about thousands of counters of one
// client. This does not delay a question about another client's counter.
func TestOthersCauseNoPause(t *testing.T) {
	l := newLender(t, "100/1h", equalShares, 0)
	for i := range l.pauses {
		l.pauses[i].ends(uint64(i), time.Now(), true)
		l.pauses[i].noteAsked(uint64(i), time.Now().Add(time.Hour), 0)
	}
	for _, need := range []int64{0, 1} {
		text, err := json.Marshal(l.flood(int(need), 9, need))
		if err != nil {
			t.Fatal(err)
		}
		before := l.counts.questions.Load()
		l.hear(t.Context(), string(text))
		if l.running.Wait(); l.counts.questions.Load() != before+1 {
			t.Errorf("a question for %d waiting requests is not asked", need)
		}
	}
}

// slowStore answers calls for the flood's counters only after release is closed.
type slowStore struct {
	counter.Store
	waiting atomic.Int64
	release chan struct{}
}

func (s *slowStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if strings.Contains(string(checks[0].Key), "{7 ") {
		s.waiting.Add(1)
		<-s.release
	}
	return s.Store.Take(ctx, checks, results)
}

// TestAFloodLeavesLenders: a client whose requests have thousands of counters occupies half of the
// places of a lender, which answers the question about another client's counter.
func TestAFloodLeavesLenders(t *testing.T) {
	l := newLender(t, "100/1h", equalShares, 0)
	slow := &slowStore{Store: l.o.Store, release: make(chan struct{})}
	l.o.Store = slow
	handler := l.Handler()
	post := func(q *Question) int {
		text, err := json.Marshal(q)
		if err != nil {
			t.Error(err)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, fromPeer(loansPath, string(text)))
		return w.Code
	}
	var asking sync.WaitGroup
	var busy atomic.Int64
	const flood = 2 * lendsMax
	for i := range flood {
		asking.Go(func() {
			if post(l.flood(i, 7, 1)) != http.StatusOK {
				busy.Add(1)
			}
		})
	}
	eventually.Until(t, patience, "each question of the flood waits or is rejected", func() bool { return busy.Load()+slow.waiting.Load() == flood })
	status := post(l.flood(0, 9, 1))
	close(slow.release)
	asking.Wait()
	if status != http.StatusOK || slow.waiting.Load() != lendsMax/2 {
		t.Errorf("the other client's question: status %d; %d questions of the flood were answered", status, slow.waiting.Load())
	}
}
