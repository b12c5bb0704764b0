// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"net/http"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
)

// forget removes the name of a client.
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

// TestAForgottenClientIsNotTold tests that no notice names a client that was forgotten: neither one
// that waits for its next attempt, nor one that a round has already read.
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
	r.wants()
	var rows int
	if err := w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM notices").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d notices name clients that were forgotten, %v", rows, err)
	}
}
