// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
)

// environment variables of the child process that TestKilledBetween kills at a step of a round
const (
	childDatabase = "PENSTOCK_TEST_DATABASE"
	childStep     = "PENSTOCK_TEST_STEP"
)

// secrets holds the two secrets that every test uses, the previous one and the current one.
const secrets = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz\nwhsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldY\n"

// machine holds the networks of this machine, on which the receivers of the tests listen.
var machine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	if os.Getenv(childDatabase) != "" {
		os.Exit(child())
	}
	os.Exit(pgtest.Main(m))
}

func child() int {
	pool, err := database.Open(context.Background(), os.Getenv(childDatabase))
	if err != nil {
		panic(err)
	}
	n := newNotifier(pool, new(eventually.Journal))
	n.step = func(step string) {
		if step == os.Getenv(childStep) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if err := n.Round(context.Background(), start); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func newNotifier(pool *pgxpool.Pool, log *eventually.Journal) *Notifier {
	keys, err := ParseSecrets(secrets)
	if err != nil {
		panic(err)
	}
	return &Notifier{Pool: pool, Caller: NewCaller(keys, machine), Logger: slog.New(slog.NewTextHandler(log, nil)), clock: func() time.Time { return start }}
}

// world is a Notifier over a database of its own, to which tests add usage.
type world struct {
	*Notifier
	t      *testing.T
	url    string
	ledger *ledger.Ledger
	log    *eventually.Journal
	sent   int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, url: pgtest.Migrated(t, database.Open, database.Migrate), log: new(eventually.Journal)}
	pool, err := database.Open(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := (&retain.Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}).Round(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	w.Notifier, w.ledger = newNotifier(pool, w.log), &ledger.Ledger{Pool: pool, Now: func() time.Time { return start.AddDate(0, 0, -10) }}
	return w
}

// world.uses adds usage of clients under the rule api to the database.
func (w *world) uses(at time.Time, units map[string]int64) {
	w.t.Helper()
	var lines []feed.Line
	for client, n := range units {
		lines = append(lines, feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Client: client, Admitted: 1, Units: n})
	}
	w.sent++
	i := &ingest.Ingester{Pool: w.Pool, Now: func() time.Time { return at }}
	if _, err := i.Take(w.t.Context(), &ingest.Batch{Feed: fmt.Sprintf("%032x", 1), Number: w.sent, Node: "n", Lines: lines}); err != nil {
		w.t.Fatal(err)
	}
}

// world.threshold creates a threshold for a quota of 1000 units that applies to all clients.
func (w *world) threshold(name, url string) {
	w.t.Helper()
	if _, err := w.ledger.PutThreshold(w.t.Context(), ledger.Actor{Name: "test"}, ledger.Threshold{Threshold: name, Policy: "shop", Rule: "api", Units: 1000,
		Percents: []int{100, 80}, URL: url}, "a test"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) round(now time.Time) {
	w.t.Helper()
	if err := w.Round(w.t.Context(), now); err != nil {
		w.t.Fatal(err)
	}
}

// receiver is an HTTP server that checks the messages it receives as the guide describes, and keeps
// them.
type receiver struct {
	*httptest.Server
	t        *testing.T
	mu       sync.Mutex
	now      time.Time
	answer   func(w http.ResponseWriter, r *http.Request) bool // if not nil, may answer a call, and returns true if it did
	messages []message
	ids      []string // one for each message, including repeated ones
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, now: start}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// ServeHTTP checks and stores a message.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer != nil && r.answer(w, q) {
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	id, at := q.Header.Get("Webhook-Id"), q.Header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || r.now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute || !isSigned(id, at, body, q.Header.Get("Webhook-Signature")) {
		http.Error(w, "forged or old", http.StatusForbidden)
		return
	}
	seen := slices.Contains(r.ids, id)
	if r.ids = append(r.ids, id); seen {
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		r.t.Errorf("the body is %s: %v", body, err)
	}
	r.messages = append(r.messages, m)
}

// isSigned reports whether one of the signatures was made with the second of the secrets. It does
// not use the package under test.
func isSigned(id, at string, body []byte, signatures string) bool {
	mac := hmac.New(sha256.New, []byte("ABCDEFGHIJKLMNOPQRSTUVWX"))
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return slices.Contains(strings.Fields(signatures), want)
}

// receiver.notices returns the client, month and share of a quota that each received message names,
// sorted.
func (r *receiver) notices() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		all = append(all, fmt.Sprintf("%s %s %d%%", m.Data.Client, m.Data.Month, m.Data.Percent))
	}
	slices.Sort(all)
	return all
}

func (r *receiver) awaitMessages(want ...string) {
	r.t.Helper()
	if got := r.notices(); !slices.Equal(got, want) {
		r.t.Errorf("the receiver was told %q, want %q", got, want)
	}
}

// TestEachShareIsToldOnce tests that a client causes one notice per month for each share of a quota
// that it has used, although several processes look for such clients at the same time.
func TestEachShareIsToldOnce(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("quota", r.URL)
	w.uses(start, map[string]int64{"user:ann": 799, "user:bob": 800, "user:cid": 1500, "": 9999})
	together := func(now time.Time) {
		r.now = now
		var rounds sync.WaitGroup
		for range 4 {
			other := newNotifier(w.Pool, w.log)
			rounds.Go(func() {
				if err := other.Round(t.Context(), now); err != nil {
					t.Error(err)
				}
			})
		}
		rounds.Wait()
		w.round(now)
	}
	together(start)
	r.awaitMessages("user:bob 2026-11 80%", "user:cid 2026-11 100%", "user:cid 2026-11 80%")
	w.uses(start, map[string]int64{"user:ann": 201, "user:bob": 1})
	together(start.Add(time.Minute))
	first := []string{"user:ann 2026-11 100%", "user:ann 2026-11 80%", "user:bob 2026-11 80%", "user:cid 2026-11 100%", "user:cid 2026-11 80%"}
	r.awaitMessages(first...)
	if len(r.ids) != len(first) {
		t.Errorf("%d messages were sent", len(r.ids))
	}
	if m := r.messages[0]; m.Type != "usage.threshold" || !m.Timestamp.Equal(start) || m.Data.Units != 1000 || m.Data.Threshold != "quota" || m.Data.Rule != "api" {
		t.Errorf("a message is %+v", m)
	}
	december := start.AddDate(0, 0, 20)
	w.uses(december, map[string]int64{"user:ann": 850})
	w.uses(start.AddDate(0, 0, 1), map[string]int64{"user:bob": 199}) // comes late
	together(december)
	r.awaitMessages(append([]string{first[0], first[1], "user:ann 2026-12 80%", "user:bob 2026-11 100%"}, first[2:]...)...)
	notices, err := w.ledger.Notices(t.Context(), "quota", nil, 3)
	if err != nil || len(notices) != 3 || notices[0].Delivered == nil || notices[0].Attempts != 1 {
		t.Errorf("the notices are %+v, %v", notices, err)
	}
	rest, err := w.ledger.Notices(t.Context(), "quota", &ledger.NoticeKey{MadeAt: notices[2].MadeAt, Notice: notices[2].Notice}, 100)
	if err != nil || len(rest) != 4 {
		t.Errorf("the next page has %d notices, %v", len(rest), err)
	}
}

// TestReceiversThatFail tests that a notice is sent again with growing pauses while its receiver
// fails, redirects, hangs or is away, and that it is given up after three days. Another receiver
// must not be delayed by this.
func TestReceiversThatFail(t *testing.T) {
	t.Parallel()
	w, bad, good, elsewhere := newWorld(t), newReceiver(t), newReceiver(t), newReceiver(t)
	w.Caller.client.Timeout = time.Second
	w.threshold("bad", bad.URL)
	w.threshold("good", good.URL)
	w.uses(start, map[string]int64{"user:ann": 1000})
	var calls atomic.Int64
	hung := make(chan struct{})
	ways := []func(http.ResponseWriter, *http.Request) bool{
		func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		},
		func(rw http.ResponseWriter, q *http.Request) bool {
			http.Redirect(rw, q, elsewhere.URL, http.StatusPermanentRedirect)
			return true
		},
		func(_ http.ResponseWriter, q *http.Request) bool {
			select {
			case <-q.Context().Done():
			case <-hung:
			}
			return true
		},
	}
	bad.answer = func(rw http.ResponseWriter, q *http.Request) bool {
		_, _ = io.Copy(io.Discard, q.Body)
		return ways[min(int(calls.Add(1))-1, len(ways)-1)](rw, q)
	}
	t.Cleanup(func() { close(hung) })
	now := start
	for attempt, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		w.round(now)
		w.round(now.Add(pause - time.Millisecond)) // too soon
		if n := calls.Load(); n != int64(attempt+1) {
			t.Fatalf("%d calls after the attempt %d", n, attempt+1)
		}
		now = now.Add(pause)
	}
	good.awaitMessages("user:ann 2026-11 100%", "user:ann 2026-11 80%")
	elsewhere.awaitMessages()
	bad.Server.CloseClientConnections()
	notices, err := w.ledger.Notices(t.Context(), "bad", nil, 10)
	if err != nil || len(notices) != 2 || notices[0].Trouble == "" || notices[0].Attempts+notices[1].Attempts != 3 {
		t.Fatalf("the notices are %+v, %v", notices, err)
	}
	bad.mu.Lock()
	bad.answer = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	bad.mu.Unlock()
	w.round(start.Add(71 * time.Hour))
	if text := w.log.String(); strings.Contains(text, "given up") {
		t.Errorf("a notice is given up too soon: %s", text)
	}
	w.round(start.Add(73 * time.Hour))
	if text := w.log.String(); !strings.Contains(text, "given up") {
		t.Errorf("no notice is given up: %s", text)
	}
	bad.mu.Lock()
	bad.answer = nil
	bad.mu.Unlock()
	bad.now = start.Add(80 * time.Hour)
	w.round(bad.now)
	bad.awaitMessages()
}

// TestAReceiverThatIsAway tests that a receiver gets its notice as soon as it is available again.
func TestAReceiverThatIsAway(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("quota", r.URL)
	w.uses(start, map[string]int64{"user:ann": 900})
	address := r.Listener.Addr().String()
	r.Close()
	w.round(start)
	if notices, err := w.ledger.Notices(t.Context(), "quota", nil, 10); err != nil || len(notices) != 1 || !strings.Contains(notices[0].Trouble, "refused") {
		t.Fatalf("the notices are %+v, %v", notices, err)
	}
	back := &receiver{t: t, now: start.Add(time.Minute)}
	server := &http.Server{Addr: address, Handler: back}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.ListenAndServe() }()
	now := start
	eventually.Until(t, 20*time.Second, "the receiver is told", func() bool {
		now = now.Add(time.Second)
		w.round(now)
		return len(back.notices()) == 1
	})
	back.awaitMessages("user:ann 2026-11 80%")
}

// TestKilledBetween tests that a process that is killed at any step of a round neither loses a
// notice nor creates it twice. If a notice is sent twice, both messages have the same identifier.
func TestKilledBetween(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newReceiver(t)
	w.threshold("quota", r.URL)
	w.uses(start, map[string]int64{"user:ann": 1000, "user:bob": 900})
	for _, step := range []string{"make", "attempt", "call", "answer"} {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childDatabase+"="+w.url, childStep+"="+step)
		out, err := cmd.CombinedOutput()
		if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() {
			t.Fatalf("the process was not killed at the step %q: %v\n%s", step, err, out)
		}
		eventually.Until(t, 20*time.Second, "the database has noticed the end of the process", func() bool {
			var locks int
			err := w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "+
				"database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks)
			return err == nil && locks == 0
		})
	}
	r.mu.Lock()
	sent := len(r.ids)
	r.mu.Unlock()
	if sent != 1 {
		t.Errorf("%d messages were sent by the processes that were killed, and only the last was killed after a call", sent)
	}
	for now := start; now.Before(start.Add(4 * time.Minute)); now = now.Add(30 * time.Second) {
		w.round(now)
	}
	r.awaitMessages("user:ann 2026-11 100%", "user:ann 2026-11 80%", "user:bob 2026-11 80%")
	if len(r.ids) != 4 {
		t.Errorf("%d messages were sent: want three, and a copy of that after which a process was killed", len(r.ids))
	}
}
