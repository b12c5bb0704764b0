// SPDX-License-Identifier: Apache-2.0

package front

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// wideConfig returns a configuration over Redis with a limit that no test reaches.
func wideConfig(onError string, redis *redistest.Server) string {
	return "name: shop\non_error: " + onError + "\nrules: [{name: all, limit: 1000000/31d}]\nstore: {type: redis, url: \"" + redis.URL() +
		"\", timeout: 10s}\n"
}

// arrive begins a request from a source, and fails the test unless the request must wait for the
// store.
func arrive(t testing.TB, f *Front, source string) (*Stream, *bell) {
	t.Helper()
	s, b := f.NewStream(), newBell()
	s.Headers = append(s.Headers, request("/")...)
	if v := s.Decide(source, emptyHost{}, b); v != Wait {
		t.Fatalf("verdict %d, want %d", v, Wait)
	}
	return s, b
}

// openHeld opens a front whose goroutines do not ask the store before release is called.
func openHeld(t testing.TB, settings string) (f *Front, release func()) {
	f = openFront(t, settings)
	<-f.store.asker.started
	f.store.asker.started = make(chan struct{})
	return f, func() { close(f.store.asker.started) }
}

// TestFirstRequestsWaitForTheConnection tests that the store is not called before it has tried to
// connect. Otherwise the first call would have to connect within its own deadline, and if it
// failed, on_error would decide.
func TestFirstRequestsWaitForTheConnection(t *testing.T) {
	redis := redistest.Start(t)
	f, release := openHeld(t, wideConfig("allow", redis))
	s, b := arrive(t, f, client)
	defer s.Release()
	eventually.Until(t, 10*time.Second, "a goroutine has begun", func() bool {
		f.store.asker.mu.Lock()
		defer f.store.asker.mu.Unlock()
		return f.store.asker.active == 1
	})
	if n := redis.Calls("evalsha"); n != 0 {
		t.Errorf("%d calls before the connection", n)
	}
	release()
	<-b.rung
	if v, fields := s.Woken(), fieldsOf(s); v != Continue || fields[response.FieldRemaining] != "999999" {
		t.Errorf("verdict %d, %v", v, fields)
	}
}

// TestAStoreThatDoesNotAnswerIsGivenUp tests that a request is woken although the store has not
// ended its call. If the store is known to be away, on_error decides. Otherwise the request is
// denied as in an overload, unless its rules only log. When the call ends later, nothing is left of
// the request.
func TestAStoreThatDoesNotAnswerIsGivenUp(t *testing.T) {
	redis := redistest.Start(t)
	for _, c := range []struct {
		onError string
		away    bool
		words   string
		want    Verdict
		kind    string
	}{
		{"allow", false, "", Respond, "overloaded"},
		{"deny", false, "", Respond, "overloaded"},
		{"allow", true, "", Continue, "other"},
		{"deny", true, "", Respond, "other"},
		{"allow", false, ", action: log_only", Continue, "overloaded"},
	} {
		t.Run(fmt.Sprintf("%s, away %t%s", c.onError, c.away, c.words), func(t *testing.T) {
			f := openFront(t, strings.Replace(wideConfig(c.onError, redis), "31d}", "31d"+c.words+"}", 1))
			ask(t, f, request("/"))
			redis.Pause()
			defer redis.Resume()
			a := f.store.asker
			a.away = func() bool { return c.away }
			s, b := arrive(t, f, client)
			takenAt := awaitTaken(t, a, s)
			a.endOverdue(takenAt.Add(a.late))
			if len(b.rung) != 0 {
				t.Error("it is given up too early")
			}
			a.endOverdue(takenAt.Add(a.late + time.Second))
			<-b.rung
			if v, fields := s.Woken(), fieldsOf(s); v != c.want || !fields.Empty() || s.Settling() != nil {
				t.Errorf("verdict %d, %v", v, fields)
			}
			r := s.Response()
			if overload := slices.Contains(r.Headers, [2]string{"retry-after", "1"}); r.Status != http.StatusServiceUnavailable || overload == c.away {
				t.Errorf("%d with %v", r.Status, r.Headers)
			}
			if n := errorsOf(t, f, c.kind); n != 1 {
				t.Errorf("%v errors of kind %q", n, c.kind)
			}
			s.Release()
			redis.Resume()
			eventually.Until(t, 20*time.Second, "the call has ended", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.under == 0
			})
			if len(b.rung) != 0 {
				t.Error("the request is woken twice")
			}
		})
	}
}

// errorsOf returns the number of the store's errors of the given kind, as the metrics have counted
// them.
func errorsOf(t testing.TB, f *Front, kind string) float64 {
	t.Helper()
	var m dto.Metric
	if err := f.process.metrics.StoreErrors.WithLabelValues(kind).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// awaitTaken waits until the store is asked about a request, and returns the time at which the
// request was taken from the queue.
func awaitTaken(t testing.TB, a *asker, s *Stream) (takenAt time.Time) {
	t.Helper()
	eventually.Until(t, 10*time.Second, "the store is asked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		takenAt = s.takenAt
		return s.taken
	})
	return takenAt
}

// TestTheQueueIsNoDelayOfTheStore tests that a request which was in the queue for a long time is
// not treated as one to which the store did not answer. Otherwise a client could prolong the queue
// so that on_error admits requests.
func TestTheQueueIsNoDelayOfTheStore(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, wideConfig("allow", redis))
	ask(t, f, request("/"))
	redis.Pause()
	s, b := arrive(t, f, client)
	defer s.Release()
	a := f.store.asker
	takenAt := awaitTaken(t, a, s)
	a.mu.Lock()
	s.begun = takenAt.Add(-2 * a.late)
	a.mu.Unlock()
	a.endOverdue(takenAt.Add(a.late))
	if len(b.rung) != 0 {
		t.Error("the request is given up")
	}
	redis.Resume()
	<-b.rung
	if v, fields := s.Woken(), fieldsOf(s); v != Continue || fields.Empty() {
		t.Errorf("verdict %d, %v", v, fields)
	}
}

// TestTheQueueDeniesInTime tests that a request is denied as in an overload, regardless of
// on_error, if it is in the queue for more than a second. A later request is served.
func TestTheQueueDeniesInTime(t *testing.T) {
	redis := redistest.Start(t)
	f, release := openHeld(t, wideConfig("allow", redis))
	a := f.store.asker
	first, firstBell := arrive(t, f, client)
	defer first.Release()
	eventually.Until(t, 10*time.Second, "time passes", func() bool { return time.Since(first.begun) > 10*time.Millisecond })
	second, secondBell := arrive(t, f, client)
	defer second.Release()
	a.endOverdue(first.begun.Add(queueTime + 5*time.Millisecond))
	<-firstBell.rung
	if v, r := first.Woken(), first.Response(); v != Respond || r.Status != http.StatusServiceUnavailable {
		t.Errorf("the first: verdict %d, %d", v, r.Status)
	}
	if len(secondBell.rung) != 0 {
		t.Error("the second request is denied, too")
	}
	release()
	<-secondBell.rung
	if v := second.Woken(); v != Continue {
		t.Errorf("the second: verdict %d", v)
	}
}

// TestTheRequestsOfATurnAreAskedAboutTogether tests that no goroutine asks the store before the
// requests are announced, and that one goroutine then asks about all of them.
func TestTheRequestsOfATurnAreAskedAboutTogether(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, wideConfig("allow", redis))
	ask(t, f, request("/")) // the store is connected
	a := f.store.asker
	goroutines := func() (asking, waiting int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.active, a.idle
	}
	eventually.Until(t, 10*time.Second, "the goroutine waits", func() bool { asking, waiting := goroutines(); return asking == 0 && waiting == 1 })
	var all []*bell
	for range 2 * batchMax / 3 {
		s, b := f.NewStream(), newBell()
		b.announces = true
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, b); v != Wait {
			t.Fatalf("verdict %d, want %d", v, Wait)
		}
		defer s.Release()
		all = append(all, b)
	}
	if asking, _ := goroutines(); asking != 0 {
		t.Errorf("%d goroutines ask before the requests are announced", asking)
	}
	f.Announce()
	for _, b := range all {
		<-b.rung
	}
	eventually.Until(t, 10*time.Second, "one goroutine has asked", func() bool { asking, waiting := goroutines(); return asking == 0 && waiting == 1 })
}

// TestSourcesUseAllCounts tests that addresses of clients are spread over all counts, with even and
// with odd indexes, although the lowest bit of every source is 1.
func TestSourcesUseAllCounts(t *testing.T) {
	f, release := openHeld(t, wideConfig("allow", redistest.Start(t)))
	defer release()
	var byParity [2]int
	for i := range 64 {
		s, _ := arrive(t, f, fmt.Sprintf("198.51.100.%d:4711", i))
		defer s.Gone()
		byParity[s.from%2]++
	}
	if byParity[0] == 0 || byParity[1] == 0 {
		t.Errorf("64 clients by the parity of their count: %v", byParity)
	}
}

// TestOneClientDoesNotFillTheQueue tests that the queue has room for requests of other clients
// while one client sends more than the store can answer.
func TestOneClientDoesNotFillTheQueue(t *testing.T) {
	redis := redistest.Start(t)
	f, release := openHeld(t, wideConfig("allow", redis))
	var waiting []*bell
	for {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		v := s.Decide(client, emptyHost{}, b)
		defer s.Release()
		if v != Wait {
			break
		}
		waiting = append(waiting, b)
	}
	if len(waiting) != crowdedFrom {
		t.Errorf("%d requests of one client wait, want %d", len(waiting), crowdedFrom)
	}
	served := 0
	const others = 32
	for i := range others {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(fmt.Sprintf("198.51.100.%d:4711", i), emptyHost{}, b); v == Wait {
			waiting = append(waiting, b)
			served++
		}
		defer s.Release()
	}
	if served < others-4 { // some may share a count with the flooding client
		t.Errorf("%d of %d others find room", served, others)
	}
	release()
	for _, b := range waiting {
		<-b.rung
	}
}

// fieldsOf returns copies of the fields of a stream.
func fieldsOf(s *Stream) response.Fields {
	of, _ := s.Fields()
	return cloned(of)
}
