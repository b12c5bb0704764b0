// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// held is an upstream whose responses end when they may: each says then that it cost 7.
type held struct {
	begun chan struct{} // gets one for each response that has begun
	may   chan struct{} // closed when they may end
}

func newHeld() *held { return &held{begun: make(chan struct{}, 16), may: make(chan struct{})} }

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", streamKind)
	_, _ = io.WriteString(w, "data: {}\n\n")
	_ = http.NewResponseController(w).Flush()
	h.begun <- struct{}{}
	select {
	case <-h.may:
		_, _ = io.WriteString(w, "data: {\"usage\":{\"total_tokens\":7}}\n\n")
	case <-r.Context().Done():
	}
}

const (
	openStreams = 5
	reservedAll = openStreams * 100
)

// opens opens streams through the metered Caddy as one client and returns what reads them to their ends.
func (m *metered) opens(t *testing.T, h *held) *sync.WaitGroup {
	t.Helper()
	reading := new(sync.WaitGroup)
	for range openStreams {
		r, err := m.open(t.Context(), m.process, http.MethodGet, "/tokens/held", "192.0.2.7")
		if err != nil {
			t.Fatal(err)
		}
		<-h.begun
		reading.Go(func() {
			_, _ = io.Copy(io.Discard, r.Body) // it may break off: the test says what must be
			r.Body.Close()
		})
	}
	if got := m.charged(t, "tokens", "192.0.2.7"); got != reservedAll {
		t.Fatalf("%d charged while they are open, want %d", got, reservedAll)
	}
	return reading
}

// ends waits until the process has ended.
func (p *process) ends(t *testing.T, patience time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("caddy has not ended in %v", patience)
	}
}

// remaining is what a Caddy tells the client to have left before this request, of which 100 are reserved.
func (m *metered) remaining(t *testing.T, p *process) int64 {
	t.Helper()
	return p.ask(t.Context(), http.MethodHead, "/tokens/next", "X-Forwarded-For", "192.0.2.7").number("X-RateLimit-Remaining") + 100
}

// TestACaddyKilledWithReservationsOpen: what it reserved stands as the charge, and the other Caddy counts with it.
func TestACaddyKilledWithReservationsOpen(t *testing.T) {
	h := newHeld()
	mux := http.NewServeMux()
	mux.Handle("/tokens/held", h)
	m := startMetered(t, mux)
	other := m.another(t)
	reading := m.opens(t, h)
	if err := m.command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.ends(t, patience)
	reading.Wait()
	close(h.may)
	if got := m.charged(t, "tokens", "192.0.2.7"); got != reservedAll {
		t.Errorf("%d charged, want the %d that were reserved to stand", got, reservedAll)
	}
	if got := m.remaining(t, other); got != 1_000_000-reservedAll {
		t.Errorf("the other Caddy tells of %d left, want %d", got, 1_000_000-reservedAll)
	}
	if got := other.metric(`penstock_store_errors_total`); got != 0 {
		t.Errorf("the other Caddy had %v errors", got)
	}
}

// TestACaddyThatStopsSettles: streams may end in its grace period, and all of them are settled before it is gone.
func TestACaddyThatStopsSettles(t *testing.T) {
	h := newHeld()
	m := startMetered(t, h)
	reading := m.opens(t, h)
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.Until(t, patience, "caddy shuts down", func() bool {
		return len(m.logLines("shutting down apps, then terminating")) > 0
	})
	close(h.may)
	reading.Wait()
	m.ends(t, patience)
	if got := m.charged(t, "tokens", "192.0.2.7"); got != openStreams*7 {
		t.Errorf("%d charged, want %d", got, openStreams*7)
	}
}

// TestACaddyThatStopsWhileStreamsGoOn: those that outlive its grace period are broken off, and no reservation is given
// back.
func TestACaddyThatStopsWhileStreamsGoOn(t *testing.T) {
	h := newHeld()
	m := startMetered(t, h, "GRACE=300ms")
	reading := m.opens(t, h)
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.ends(t, patience)
	reading.Wait()
	close(h.may)
	if got := m.charged(t, "tokens", "192.0.2.7"); got < reservedAll {
		t.Errorf("%d charged, less than the %d that were reserved", got, reservedAll)
	}
}

// TestAReloadWithStreamsOpen: what was reserved under the configuration before is settled all the same.
func TestAReloadWithStreamsOpen(t *testing.T) {
	h := newHeld()
	m := startMetered(t, h)
	reading := m.opens(t, h)
	if err := m.reload(); err != nil {
		t.Fatal(err)
	}
	close(h.may)
	reading.Wait()
	await.Until(t, patience, "all are settled", func() bool { return m.charged(t, "tokens", "192.0.2.7") == openStreams*7 })
}
