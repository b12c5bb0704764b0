// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// heldUpstream is an upstream that does not end its responses until the test permits it. At its
// end, each response reports a cost of 7.
type heldUpstream struct {
	begun chan struct{} // receives a value for each response that has begun
	may   chan struct{} // closed when responses may end
}

func newHeldUpstream() *heldUpstream {
	return &heldUpstream{begun: make(chan struct{}, 16), may: make(chan struct{})}
}

func (h *heldUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// startStreams opens streams through the metered Caddy as one client. It returns the group of
// goroutines that read the streams to the end.
func (m *meteredSite) startStreams(t *testing.T, h *heldUpstream) *sync.WaitGroup {
	t.Helper()
	reading := new(sync.WaitGroup)
	for range openStreams {
		r, err := m.open(t.Context(), m.process, http.MethodGet, "/tokens/held", "192.0.2.7")
		if err != nil {
			t.Fatal(err)
		}
		<-h.begun
		reading.Go(func() {
			// A stream may end early. The caller checks the charges.
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		})
	}
	if got := m.countCharged(t, "tokens", "192.0.2.7"); got != reservedAll {
		t.Fatalf("%d charged while they are open, want %d", got, reservedAll)
	}
	return reading
}

// awaitExit waits until the process has ended.
func (p *process) awaitExit(t *testing.T, patience time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("caddy has not ended in %v", patience)
	}
}

// meteredSite.remaining returns the number of remaining units that a Caddy reports. It adds the 100
// units that its own request reserves.
func (m *meteredSite) remaining(t *testing.T, p *process) int64 {
	t.Helper()
	return p.ask(t.Context(), http.MethodHead, "/tokens/next", "X-Forwarded-For", "192.0.2.7").number("X-RateLimit-Remaining") + 100
}

// TestACaddyKilledWithReservationsOpen tests that reserved units remain charged if the Caddy is
// killed, and that another Caddy counts them.
func TestACaddyKilledWithReservationsOpen(t *testing.T) {
	t.Parallel()
	h := newHeldUpstream()
	mux := http.NewServeMux()
	mux.Handle("/tokens/held", h)
	m := startMetered(t, mux)
	other := m.startAnother(t)
	reading := m.startStreams(t, h)
	if err := m.command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.awaitExit(t, patience)
	reading.Wait()
	close(h.may)
	if got := m.countCharged(t, "tokens", "192.0.2.7"); got != reservedAll {
		t.Errorf("%d charged, want the %d that were reserved to stand", got, reservedAll)
	}
	if got := m.remaining(t, other); got != 1_000_000-reservedAll {
		t.Errorf("the other Caddy tells of %d left, want %d", got, 1_000_000-reservedAll)
	}
	if got := other.metric(`penstock_store_errors_total`); got != 0 {
		t.Errorf("the other Caddy had %v errors", got)
	}
}

// TestACaddyThatStopsSettles tests that a Caddy settles the charges of streams that end during the
// grace period before it ends.
func TestACaddyThatStopsSettles(t *testing.T) {
	t.Parallel()
	h := newHeldUpstream()
	m := startMetered(t, h)
	reading := m.startStreams(t, h)
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "caddy shuts down", func() bool {
		return len(m.logLines("shutting down apps, then terminating")) > 0
	})
	close(h.may)
	reading.Wait()
	m.awaitExit(t, patience)
	if got := m.countCharged(t, "tokens", "192.0.2.7"); got != openStreams*7 {
		t.Errorf("%d charged, want %d", got, openStreams*7)
	}
}

// TestACaddyThatStopsWhileStreamsGoOn tests that a Caddy breaks off streams that outlast the grace
// period, and does not refund their reservations.
func TestACaddyThatStopsWhileStreamsGoOn(t *testing.T) {
	t.Parallel()
	h := newHeldUpstream()
	m := startMetered(t, h, "GRACE=300ms")
	reading := m.startStreams(t, h)
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.awaitExit(t, patience)
	reading.Wait()
	close(h.may)
	if got := m.countCharged(t, "tokens", "192.0.2.7"); got < reservedAll {
		t.Errorf("%d charged, less than the %d that were reserved", got, reservedAll)
	}
}

// TestAReloadWithStreamsOpen tests that reservations of streams that began before a reload are
// settled after it.
func TestAReloadWithStreamsOpen(t *testing.T) {
	t.Parallel()
	h := newHeldUpstream()
	m := startMetered(t, h)
	reading := m.startStreams(t, h)
	if err := m.reload(); err != nil {
		t.Fatal(err)
	}
	close(h.may)
	reading.Wait()
	eventually.Until(t, patience, "all are settled", func() bool { return m.countCharged(t, "tokens", "192.0.2.7") == openStreams*7 })
}
