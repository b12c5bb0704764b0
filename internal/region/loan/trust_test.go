// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/certtest"
)

// lender is an agent over a store in memory. The store's clock stands still until a test moves it.
type lender struct {
	*Agent
	t     *testing.T
	now   counter.Micros
	clock func() counter.Micros // the clock of the store; nil if it stands still at now
	key   []byte
	whole counter.Limit
	part  counter.Limit
}

func newLender(t *testing.T, limit string, shares [policy.RegionsMax]uint16, self uint8) *lender {
	t.Helper()
	l := &lender{t: t, now: 1_700_006_400 * counter.Second}
	store, err := memstore.New(memstore.Options{Now: func() counter.Micros {
		if l.clock != nil {
			return l.clock()
		}
		return l.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if l.whole, err = counter.ParseLimit(limit); err != nil {
		t.Fatal(err)
	}
	here := policy.Division{Shares: shares, Self: self}
	l.part, _ = here.Limit(&l.whole)
	l.key = []byte("rl1:n:r:{c}" + counter.KeyTail(&l.whole))
	l.Agent = New(Options{Store: store, Peers: []*Peer{{Name: "peer", send: away}}, Policy: func() Policy { return Policy{Namespace: "rl1:n:", Here: here} },
		Publish: func(context.Context, []byte) error { return nil }, Logger: slog.New(slog.DiscardHandler)})
	return l
}

// away replaces the function that sends messages to a region, as if the region did not answer.
func away(context.Context, string, any) (Loan, error) {
	return Loan{}, errors.New("the region is away")
}

// fromPeer returns the request with which another region sends a message.
func fromPeer(path, text string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(text))
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certtest.Region("peer")}}
	return r
}

// lender.post sends a message as another region does.
func (l *lender) post(path, text string) (answer Loan, status int) {
	l.t.Helper()
	w := httptest.NewRecorder()
	l.Handler().ServeHTTP(w, fromPeer(path, text))
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			l.t.Fatal(err)
		}
	}
	return answer, w.Code
}

// lender.question returns a question as JSON.
func (l *lender) question(want int, shares string) string {
	key, err := json.Marshal(l.key)
	if err != nil {
		l.t.Fatal(err)
	}
	return fmt.Sprintf(`{"key":%s,"limit":%q,"want":%d,"short":true,"part":20,"shares":%s}`, key, l.whole.String(), want, shares)
}

// lender.takes reports whether a request of this region is admitted.
func (l *lender) takes(cost int64) bool {
	l.t.Helper()
	return taken(l.t, l.o.Store, counter.Check{Key: l.key, Limit: &l.part, Cost: cost}) == 1
}

// TestDifferentSharesLendNothing tests that a region lends nothing to a region whose policy has
// other shares, as happens while the shares change. With the other region's limit, it would lend
// more than its own part.
func TestDifferentSharesLendNothing(t *testing.T) {
	us := newLender(t, "100/1h fixed_window", [policy.RegionsMax]uint16{10, 30, 50}, 2)
	var sum int64
	for range 12 {
		l, _ := us.post(loansPath, us.question(100, "[20,30,50,0,0,0,0,0]"))
		sum += l.Units
	}
	if sum != 0 {
		t.Errorf("%d units were lent, and the part of the region was 50 before and after the change", sum)
	}
	if l, status := us.post(loansPath, us.question(100, "[10,30,50,0,0,0,0,0]")); l.Units == 0 {
		t.Errorf("nothing is lent among equal shares: status %d", status)
	}
}

// TestQuestionsOfAnotherPolicy: an agent drops a question whose part is not that of its policy.
func TestQuestionsOfAnotherPolicy(t *testing.T) {
	ap := newLender(t, "100/1h fixed_window", [policy.RegionsMax]uint16{10, 30, 50}, 0)
	ap.hear(t.Context(), ap.question(100, "[]")) // the part of 20 is that of the previous policy
	if invalid, asked := ap.counts.invalid.Load(), ap.counts.questions.Load(); invalid != 1 || asked != 0 {
		t.Errorf("%d questions are invalid, %d were asked, want 1 and 0", invalid, asked)
	}
}

// TestOnlyLoansAreReturned tests that a region takes back only what it has lent, and each loan only
// once.
func TestOnlyLoansAreReturned(t *testing.T) {
	const shares = "[10,10,0,0,0,0,0,0]"
	us := newLender(t, "20/1h fixed_window", [policy.RegionsMax]uint16{10, 10}, 0)
	q := us.question(4, shares)
	giveBack := func(l Loan) (Loan, int) {
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		return us.post(returnsPath, fmt.Sprintf(`{"question":%s,"loan":%s}`, q, text))
	}
	l, _ := us.post(loansPath, q)
	if l.Units != 4 {
		t.Fatalf("%d units were lent, want 4", l.Units)
	}
	if !us.takes(6) || us.takes(1) {
		t.Fatal("6 units are left of 10 after a loan of 4")
	}
	for name, madeUp := range map[string]Loan{
		"no loan":        {Units: 1, Receipt: l.Receipt},
		"another loan":   {ID: "A", Units: 1, Receipt: l.Receipt},
		"more units":     {ID: l.ID, Units: 5, Receipt: l.Receipt},
		"another window": {ID: l.ID, Units: 1, Receipt: l.Receipt + counter.Hour},
	} {
		if back, status := giveBack(madeUp); status != http.StatusBadRequest || us.takes(1) {
			t.Errorf("%s: %+v was taken back with status %d", name, back, status)
		}
	}
	if back, status := giveBack(l); back.Units != 4 {
		t.Errorf("%d units were taken back of a loan of 4: status %d", back.Units, status)
	}
	if back, status := giveBack(l); status != http.StatusBadRequest {
		t.Errorf("a loan was taken back twice: %+v", back)
	}
	if !us.takes(4) || us.takes(1) {
		t.Error("4 units are left after they were taken back")
	}
}

// TestLoansAreForgotten: a lender remembers a bounded number of loans, for a bounded time.
func TestLoansAreForgotten(t *testing.T) {
	now, one := time.Unix(1_700_000_000, 0), Loan{Units: 1, Receipt: 1}
	var b book
	first := b.add(1, one, now)
	for range lentMax {
		b.add(1, one, now)
	}
	if len(b.loans) != lentMax || len(b.order) != lentMax || b.remove(1, first) == nil {
		t.Errorf("%d loans are remembered, want the last %d", len(b.loans), lentMax)
	}
	last := b.add(2, one, now.Add(lentTime+1))
	if len(b.loans) != 1 || len(b.order) != 1 {
		t.Errorf("%d loans are remembered after %v, want 1", len(b.loans), lentTime)
	}
	if b.remove(1, last) == nil || b.remove(2, last) != nil || b.remove(2, last) == nil {
		t.Error("a loan is not taken back once, for its key")
	}
}

// TestAnswersOutOfBounds tests that an answer with a negative number of units counts as no loan,
// and as nothing taken back.
func TestAnswersOutOfBounds(t *testing.T) {
	p := &Peer{Name: "us", send: func(context.Context, string, any) (Loan, error) { return Loan{Units: -5}, nil }}
	q := &Question{Want: 1}
	if l, err := p.ask(t.Context(), q); err == nil || l.Units != 0 {
		t.Errorf("lent %+v, error %v", l, err)
	}
	if units, err := p.giveBack(t.Context(), q, Loan{Units: 1}); err == nil || units != 0 {
		t.Errorf("%d units were taken back, error %v", units, err)
	}
}
