// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// served.exec executes SQL over a connection of its own, which is closed when the test ends.
func (s *served) exec(statements ...string) *pgx.Conn {
	s.t.Helper()
	c, err := pgx.ConnectConfig(s.t.Context(), s.ledger.Pool.Config().ConnConfig.Copy())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close(context.Background()) })
	for _, statement := range statements {
		if _, err := c.Exec(s.t.Context(), statement); err != nil {
			s.t.Fatal(statement, err)
		}
	}
	return c
}

// TestASlowDatabase tests that people get a 503 that names the database while PostgreSQL answers
// too late. It also tests that no usage is lost: when PostgreSQL answers in time again, the sums
// equal those of the node.
func TestASlowDatabase(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.api.time = 500 * time.Millisecond
	m := meter.New()
	f, err := feed.Open(feed.Options{Target: controlcall.Target{URL: s.url, Token: func() (string, error) { return s.tokens[ledger.Node], nil }},
		Folder: t.TempDir(), Node: "n", Meter: m, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	used := int64(0)
	use := func() {
		used++
		m.Count(&meter.Key{Policy: "p", Rule: "r", Kind: "user", Client: "ann"}, meter.Sum{Admitted: 1, Units: 3})
		if _, err := f.Write([]events.Event{{Time: time.Now(), Kind: events.KindDenied, Client: "user:ann", Count: 1}}); err != nil { // sent at once
			t.Error(err)
		}
	}
	use()
	eventually.Until(t, patience, "a batch is taken", func() bool { return f.Figures().Sent > 0 })
	s.exec("CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(20); RETURN NEW; END'",
		"CREATE TRIGGER late BEFORE INSERT ON feeds FOR EACH ROW EXECUTE FUNCTION late()")
	busy := s.exec("BEGIN", "LOCK TABLE clients IN ACCESS EXCLUSIVE MODE")
	use()
	eventually.Until(t, patience, "a batch comes too late", func() bool { return f.Figures().Failed > 1 })
	a := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients", ""), http.StatusServiceUnavailable, "the database does not answer")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("the header is %v", a.header)
	}
	if f.Figures().Rejected > 0 || f.Figures().Waiting == 0 {
		t.Errorf("the feed has %+v", f.Figures())
	}
	if _, err := busy.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	s.exec("DROP TRIGGER late ON feeds")
	// The pause after failures lasts up to 36 s.
	eventually.Until(t, 4*patience, "no batch waits", func() bool { return f.Figures().Waiting == 0 })
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients", ""), http.StatusOK)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var admitted, units, denials int64
	if err := s.ledger.Pool.QueryRow(t.Context(), "SELECT (SELECT sum(admitted) FROM client_usage), (SELECT sum(units) FROM client_usage), "+
		"(SELECT sum(events) FROM rate_limit_events)").Scan(&admitted, &units, &denials); err != nil {
		t.Fatal(err)
	}
	if admitted != used || units != 3*used || denials != used {
		t.Errorf("%d requests, %d units and %d events are in the tables, want %d", admitted, units, denials, used)
	}
}

// TestAReadOnlyDatabase tests that people can read while PostgreSQL is read-only, as a standby is,
// and that each write is then answered 503 and changes nothing.
func TestAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	s := serve(t)
	block := func() answer {
		return s.ask(ledger.Support, "POST", client("user:bob")+"/edits", `{"action":"block",`+reason+`}`)
	}
	set := func(to string) {
		s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = " + to + "', current_database()); END $$")
		s.ledger.Pool.Reset()
	}
	set("on")
	a := s.checkAnswer(block(), http.StatusServiceUnavailable, "the database does not answer")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("the header is %v", a.header)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("user:bob"), ""), http.StatusNotFound)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/usage", ""), http.StatusOK)
	c := s.exec("SET default_transaction_read_only = off")
	if _, err := c.Exec(t.Context(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$"); err != nil {
		t.Fatal(err)
	}
	s.ledger.Pool.Reset()
	s.checkAnswer(block(), http.StatusOK)
}

// TestAPolicyThatIsCheckedTooLate tests that the answer names what took the time of a request: the
// body arrives late, and the database is healthy.
func TestAPolicyThatIsCheckedTooLate(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.api.time = time.Second
	text := `{"text":"rules: [{name: api, limit: 3/1m}]","format":"yaml",` + reason + `}`
	body, write := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "PUT", s.url+"/v1/policies/shop", body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + s.tokens[ledger.Editor], "Content-Type": "application/json", "If-None-Match": "*"} {
		r.Header.Set(name, value)
	}
	late, cancel := context.WithTimeout(t.Context(), 2*s.api.time)
	defer cancel()
	go func() {
		_, _ = io.WriteString(write, text[:10]) // if this fails, so does the request
		<-late.Done()
		_, _ = io.WriteString(write, text[10:])
		_ = write.Close()
	}()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = "receiving and checking the policy took "
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" || !strings.Contains(string(answer), want) ||
		!strings.Contains(string(answer), "and a request has 1s") {
		t.Errorf("the answer is %d, %v, %s", response.StatusCode, response.Header, answer)
	}
}
