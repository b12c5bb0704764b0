// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/ledger"
)

// world.forget removes a client's name from the database.
func (w *world) forget(client string) {
	w.t.Helper()
	name, err := ledger.Name(client)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.ledger.Forget(w.t.Context(), ledger.Actor{Name: "test"}, name, "asked for it"); err != nil {
		w.t.Error(err)
	}
}

// TestAForgottenClientIsNotTold tests that no message names a client whose name was removed. It
// tests a notice that waits for its next attempt, and one that a round has already read from the
// database.
func TestAForgottenClientIsNotTold(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("quota", r.URL)
	w.uses(start, map[string]int64{"user:ann": 900})
	r.answer = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	w.round(start)
	r.answer = nil
	w.forget("user:ann")
	w.uses(start, map[string]int64{"user:bob": 900})
	w.step = func(step string) {
		if step == "attempt" {
			w.forget("user:bob")
		}
	}
	r.now = start.AddDate(0, 0, 1)
	w.round(r.now)
	r.awaitMessages()
	var rows int
	if err := w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM notices").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d notices name clients that were forgotten, %v", rows, err)
	}
}

// TestTheURLOfAReceiverIsNotShown tests that neither the log nor the recorded error of a receiver
// that is away contains the path or the query of its URL, because these may be secret.
func TestTheURLOfAReceiverIsNotShown(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("quota", r.URL+"/hook?token=s3cret")
	w.uses(start, map[string]int64{"user:ann": 900})
	r.Close()
	w.round(start)
	notices, err := w.ledger.Notices(t.Context(), "quota", nil, 10)
	if err != nil || len(notices) != 1 || notices[0].Trouble == "" {
		t.Fatalf("the notices are %+v, %v", notices, err)
	}
	if text := w.log.String(); !strings.Contains(text, "could not be told") || strings.Contains(text+notices[0].Trouble, "s3cret") {
		t.Errorf("the log is %s, and the notice has %q", text, notices[0].Trouble)
	}
}

// world.startClock makes w use a clock that stands still. It returns a function that advances this
// clock.
func (w *world) startClock() func(time.Duration) {
	var passed atomic.Int64
	w.clock = func() time.Time { return start.Add(time.Duration(passed.Load())) }
	return func(d time.Duration) { passed.Add(int64(d)) }
}

// TestASlowReceiverWithManyNotices tests that another receiver gets its notices although a slow
// receiver has older notices, more than a round sends. A round sends to the slow receiver only for
// a bounded time, and leaves the rest of that receiver's notices due.
func TestASlowReceiverWithManyNotices(t *testing.T) {
	t.Parallel()
	w, slow, other := newWorld(t), newReceiver(t), newReceiver(t)
	pass := w.startClock()
	slow.answer = func(http.ResponseWriter, *http.Request) bool { pass(time.Second); return false }
	if _, err := w.Pool.Exec(t.Context(), "INSERT INTO notices (notice, threshold, client, month, percent, policy, rule, used, units, url, made_at, next_at) "+
		"SELECT 'msg_' || n, 'a', 'user:' || n, '2026-11-01', 80, 'shop', 'api', 800, 1000, $1, $2, $2 FROM generate_series(1, $3::int) n",
		slow.URL, start.Add(-time.Hour), sentMax+1); err != nil {
		t.Fatal(err)
	}
	w.threshold("quota", other.URL)
	w.uses(start, map[string]int64{"user:ann": 900})
	w.round(start)
	other.awaitMessages("user:ann 2026-11 80%")
	const most = int(sendTime/time.Second) + 1
	first := len(slow.notices())
	if first == 0 || first > most {
		t.Errorf("%d messages were sent to a receiver that takes a second for each; want %d at most", first, most)
	}
	w.round(start.Add(time.Minute))
	if n := len(slow.notices()); n <= first || n > 2*most {
		t.Errorf("%d messages were sent after the second round, %d after the first", n, first)
	}
}

// TestTheTimeOfAMessageIsThatOfItsCall tests that a message is signed with the time at which it is
// sent, even if its round began long before, because receivers reject an old time.
func TestTheTimeOfAMessageIsThatOfItsCall(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	pass := w.startClock()
	w.threshold("quota", r.URL)
	w.uses(start, map[string]int64{"user:ann": 900})
	w.step = func(step string) {
		if step == "attempt" || step == "make" {
			pass(6 * time.Minute)
		}
	}
	r.now = start.Add(18 * time.Minute) // the notices of two months are made, and then there is one attempt
	w.round(start)
	r.awaitMessages("user:ann 2026-11 80%")
}

// TestAThresholdThatFails tests that an error of one threshold is reported, and that the notices of
// other thresholds are still created and sent.
func TestAThresholdThatFails(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("a-bad", r.URL)
	w.threshold("good", r.URL)
	w.uses(start, map[string]int64{"user:ann": 900})
	if _, err := w.Pool.Exec(t.Context(), "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$; "+
		"CREATE TRIGGER fails BEFORE INSERT ON notices FOR EACH ROW WHEN (NEW.threshold = 'a-bad') EXECUTE FUNCTION fails()"); err != nil {
		t.Fatal(err)
	}
	if err := w.Round(t.Context(), start); err == nil || !strings.Contains(err.Error(), `the threshold "a-bad"`) || !strings.Contains(err.Error(), "no room") {
		t.Errorf("the error is %v", err)
	}
	r.awaitMessages("user:ann 2026-11 80%")
}
