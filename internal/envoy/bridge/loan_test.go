// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/loantest"
)

// lent is a policy that gives each client two units in the region eu.
const lent = `
name: shop
regions: {us: 9, eu: 1}
across: lease
lease: auto
rules: [{ name: all, limit: 20/31d fixed_window }]
`

// lendingBridge is a bridge in simulated time. The test acts as the agent of the bridge's region.
type lendingBridge struct {
	*testBridge
	region *loantest.Region
	begin  time.Time
}

// withRegion runs a test in a region that has two units for each client. The client 192.0.2.1 has
// used both.
func withRegion(t *testing.T, story func(*lendingBridge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		document, err := policyfile.Decode("shop", policyfile.YAML, []byte(lent))
		if err != nil {
			t.Fatal(err)
		}
		l := &lendingBridge{region: loantest.New(t)}
		l.testBridge = open(t, lent, func(o *Options) {
			o.PolicyFile, o.Policy, o.Region, o.Store, o.Loans = "", document, "eu", l.region, l.region.Store
		})
		for range 2 {
			if a := l.ask(l.of("192.0.2.1"))[0]; a.Results[0].Denied {
				t.Fatal("the client has fewer than two units")
			}
		}
		l.begin = time.Now()
		story(l)
	})
}

func (l *lendingBridge) of(peer string) wire.Item { return l.question("/", peer) }

// lendingBridge.send makes a call of a filter that reads [wire.StatusLoan].
func (l *lendingBridge) send(ctx context.Context, items ...wire.Item) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/check", bytes.NewReader(l.call(items...)))
	r.Header.Set("Content-Type", wire.ContentType)
	r.Header.Set(wire.LoansHeader, "1")
	w := httptest.NewRecorder()
	l.b.Handler().ServeHTTP(w, r)
	return w
}

// lendingBridge.wait sends a question that waits. It returns a function that returns the answer and
// the time of the answer.
func (l *lendingBridge) wait(ctx context.Context, peer string) func() (answers []wire.Answer, after time.Duration) {
	item := l.of(peer)
	item.Kind = wire.KindWait
	var w *httptest.ResponseRecorder
	var after time.Duration
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w, after = l.send(ctx, item), time.Since(l.begin)
	}()
	synctest.Wait()
	return func() ([]wire.Answer, time.Duration) {
		<-ended
		if ctx.Err() != nil {
			return nil, after
		}
		return l.answers(w, 1), after
	}
}

// lendingBridge.asked waits for the next question to the agent, and returns it.
func (l *lendingBridge) asked() *regionstore.Question {
	q := <-l.region.Questions
	return &q
}

// checkEnd checks the answer to a question that has waited for a loan.
func (l *lendingBridge) checkEnd(end func() ([]wire.Answer, time.Duration), denied bool, want time.Duration) {
	l.t.Helper()
	a, after := end()
	if a[0].Status != wire.StatusOK || len(a[0].Results) != 1 || a[0].Results[0].Denied != denied || after != want {
		l.t.Errorf("answered %+v after %v, want denied: %v after %v", a[0], after, denied, want)
	}
}

// TestALoanDelaysNoOtherQuestion: a question that lacks units is answered with StatusLoan at once,
// and so are later questions about its counter. The other questions of their calls are answered at
// once. The request waits in a call of its own, until units arrive.
func TestALoanDelaysNoOtherQuestion(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		a := l.answers(l.send(l.t.Context(), l.of("192.0.2.1"), l.of("192.0.2.2")), 2)
		if a[0].Status != wire.StatusLoan || a[1].Status != wire.StatusOK || a[1].Results[0].Denied || time.Since(l.begin) != 0 {
			l.t.Errorf("answered %+v after %v", a, time.Since(l.begin))
		}
		first := l.wait(l.t.Context(), "192.0.2.1")
		q := l.asked()
		begun := time.Since(l.begin)
		l.region.Restore(q, 1) // for the first question
		a = l.answers(l.send(l.t.Context(), l.of("192.0.2.2"), l.of("192.0.2.1")), 2)
		if a[0].Status != wire.StatusOK || a[0].Results[0].Denied || a[1].Status != wire.StatusLoan || time.Since(l.begin) != begun {
			l.t.Errorf("behind one that waits: %+v after %v", a, time.Since(l.begin)-begun)
		}
		second := l.wait(l.t.Context(), "192.0.2.1")
		<-time.After(100 * time.Millisecond)
		l.region.Tell(q, 1)
		l.checkEnd(first, false, begun+100*time.Millisecond)
		l.region.Refuse(q)
		l.checkEnd(second, true, begun+100*time.Millisecond)
		if n := l.region.Taken(); n != 5 {
			l.t.Errorf("%d units are charged", n)
		}
		a = l.answers(l.send(l.t.Context(), l.of("192.0.2.1")), 1)
		if a[0].Status != wire.StatusOK || !a[0].Results[0].Denied {
			l.t.Errorf("after a refusal: %+v", a)
		}
		for name, want := range map[string]int{`penstock_loan_waits_total{result="admitted"}`: 1, `penstock_loan_waits_total{result="denied"}`: 1,
			`penstock_bridge_answers_total{status="loan"}`: 2, `penstock_requests_total{outcome="denied",policy="shop",rule="all"}`: 2} {
			if got := l.counted(name); got != want {
				l.t.Errorf("%s is %d, want %d", name, got, want)
			}
		}
	})
}

// TestAnEarlierFilterIsDenied: a filter that does not read StatusLoan gets a denial.
func TestAnEarlierFilterIsDenied(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		if a := l.ask(l.of("192.0.2.1"))[0]; a.Status != wire.StatusOK || !a.Results[0].Denied {
			l.t.Errorf("answered %+v", a)
		}
	})
}

// TestAQuestionForUnitsInAdvanceWaits: a question that also leases units is answered with
// StatusLoan like any other, and nothing is leased with it.
func TestAQuestionForUnitsInAdvanceWaits(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		leasing := l.wanting(wire.KindLease, "/", func(u *wire.Units) { u.Cost, u.Max, u.Age = 2, 2, 0 })
		a := l.answers(l.send(l.t.Context(), leasing, l.of("192.0.2.2")), 2)
		if a[0].Status != wire.StatusLoan || len(a[0].Leases) != 0 || a[1].Status != wire.StatusOK || a[1].Results[0].Denied {
			l.t.Errorf("answered %+v", a)
		}
	})
}

// TestALoanIsAwaitedWithinTheFiltersTime: the bridge answers after 800 ms, or when it stops.
func TestALoanIsAwaitedWithinTheFiltersTime(t *testing.T) {
	withRegion(t, func(l *lendingBridge) { l.checkEnd(l.wait(l.t.Context(), "192.0.2.1"), true, loanWait) })
	withRegion(t, func(l *lendingBridge) {
		end := l.wait(l.t.Context(), "192.0.2.1")
		l.b.Dismiss()
		l.checkEnd(end, true, 0)
	})
}

// TestACallerThatLeavesIsNotCharged: if a caller leaves, units that arrive later are left to other
// requests.
func TestACallerThatLeavesIsNotCharged(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		ctx, leave := context.WithCancel(l.t.Context())
		end, other := l.wait(ctx, "192.0.2.1"), l.wait(l.t.Context(), "192.0.2.1")
		q := l.asked()
		l.region.Restore(q, 1)
		leave()
		end()
		l.region.Tell(q, 1)
		l.checkEnd(other, false, time.Since(l.begin))
		if n := l.region.Taken(); n != 3 || l.counted(`penstock_loan_waits_total{result="gone"}`) != 1 || l.counted(`penstock_bridge_calls_under_way`) != 0 {
			l.t.Errorf("%d units are charged", n)
		}
	})
}

// TestPlacesAreBounded: a question that finds no place in the queue is denied at once.
func TestPlacesAreBounded(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		var ends []func() ([]wire.Answer, time.Duration)
		for range regionstore.SourceMax {
			ends = append(ends, l.wait(l.t.Context(), "192.0.2.1"))
		}
		item := l.of("192.0.2.1")
		for _, item.Kind = range []wire.Kind{wire.KindAsk, wire.KindWait} {
			if a := l.answers(l.send(l.t.Context(), item), 1)[0]; a.Status != wire.StatusOK || !a.Results[0].Denied {
				l.t.Errorf("kind %d: %+v", item.Kind, a)
			}
		}
		q := l.asked()
		if since := time.Since(l.begin); since >= loanWait {
			l.t.Errorf("a question beyond the bound waited %v", since)
		}
		l.region.Refuse(q)
		for _, end := range ends {
			end()
		}
	})
}

// TestAJSONCallWaits tests that a call in JSON waits for a loan, and that it does not count towards
// CallsMax while it waits.
func TestAJSONCallWaits(t *testing.T) {
	withRegion(t, func(l *lendingBridge) {
		var asking sync.WaitGroup
		outcomes := make(chan string, 2)
		for range 2 {
			asking.Go(func() {
				w := l.post([]byte(`{"ip":"192.0.2.1"}`), "application/json")
				var answer struct{ Outcome string }
				if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
					l.t.Error(err)
				}
				outcomes <- answer.Outcome
			})
		}
		q := l.asked()
		if n := l.b.under.Load(); n != 0 || len(outcomes) > 0 {
			l.t.Errorf("%d calls count, %d are answered", n, len(outcomes))
		}
		l.region.Lend(q, 1)
		l.region.Refuse(q)
		asking.Wait()
		if got := <-outcomes + " " + <-outcomes; !strings.Contains(got, "allowed") || !strings.Contains(got, "denied") {
			l.t.Errorf("they are %s", got)
		}
	})
}
