// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// served is an API over a database of its own. The type compares every answer with the OpenAPI
// document.
type served struct {
	t      *testing.T
	url    string
	api    *API
	ledger *ledger.Ledger
	tokens map[ledger.Role]string
	mu     sync.Mutex
	seen   map[string]bool // operations that were answered as described
}

func serve(t *testing.T, edits ...func(*Options)) *served {
	t.Helper()
	pool, err := database.Open(t.Context(), pgtest.Migrated(t, database.Open, database.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &served{t: t, ledger: &ledger.Ledger{Pool: pool}, tokens: map[ledger.Role]string{}, seen: map[string]bool{}}
	for _, role := range ledger.Roles {
		if s.tokens[role], _, err = s.ledger.NewToken(t.Context(), ledger.Actor{Name: "test"}, string(role), role, time.Now().Add(time.Hour), "a test"); err != nil {
			t.Fatal(err)
		}
	}
	keeper := retain.Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	if err := keeper.Round(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	o := Options{Ledger: s.ledger, Ingester: &ingest.Ingester{Pool: pool}, Reports: &reports.Reports{Pool: pool}, Logger: slog.New(slog.DiscardHandler), Ready: func(context.Context) Readiness { return Readiness{Ready: true} },
		Regions: []Region{{Counters: memory(t), Published: new(redisText).read}}, Encode: func(*ledger.Publication, *ledger.Revision, *ledger.Revision) error { return nil }, Notifies: true,
		ByClient: func(_ context.Context, policy string) error {
			if policy == "bridged" {
				return &ledger.Invalid{Place: "client_share_percent", Text: "some nodes cannot decide by the client"}
			}
			return nil
		}}
	for _, edit := range edits {
		edit(&o)
	}
	s.api = New(o)
	server := httptest.NewServer(s.api)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// memory returns an empty store of counters.
func memory(t *testing.T) *memstore.Store {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// answer is an answer of the API.
type answer struct {
	status int
	header http.Header
	body   string
}

// served.ask sends a request with the token of a role and a body of JSON.
func (s *served) ask(role ledger.Role, method, path, body string, header ...string) answer {
	s.t.Helper()
	for {
		a := s.send(http.DefaultClient, s.tokens[role], method, path, body, header...)
		if a.status != http.StatusRequestTimeout { // on a busy machine, a long body arrives late
			return a
		}
	}
}

// served.send is like ask, with any HTTP client and any token.
func (s *served) send(by *http.Client, token, method, path, body string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := by.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := answer{response.StatusCode, response.Header, string(text)}
	s.described(method, path, a)
	return a
}

// checkAnswer fails the test unless the answer has the status and contains the texts.
func (s *served) checkAnswer(a answer, status int, texts ...string) answer {
	s.t.Helper()
	if a.status != status {
		s.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			s.t.Errorf("the answer lacks %s: %s", text, a.body)
		}
	}
	return a
}

// served.described compares an answer with the document.
func (s *served) described(method, path string, a answer) {
	s.t.Helper()
	r := httptest.NewRequest(method, path, http.NoBody)
	_, pattern := s.api.mux.Handler(r)
	_, template, _ := strings.Cut(pattern, " ")
	item := s.api.OpenAPI().Paths[template]
	if item == nil {
		return // a path that does not exist
	}
	operation := map[string]*huma.Operation{"GET": item.Get, "PUT": item.Put, "POST": item.Post, "PATCH": item.Patch, "DELETE": item.Delete}[method]
	if operation == nil {
		return
	}
	described := operation.Responses[fmt.Sprint(a.status)]
	if described == nil {
		s.t.Errorf("%s %s: the status %d is not described: %s", method, template, a.status, a.body)
		return
	}
	media := described.Content[a.header.Get("Content-Type")]
	if a.body != "" && media == nil {
		s.t.Errorf("%s %s %d: the type %q is not described", method, template, a.status, a.header.Get("Content-Type"))
		return
	}
	if a.body != "" && media.Schema.Format != "binary" {
		var value any
		if err := json.Unmarshal([]byte(a.body), &value); err != nil {
			s.t.Errorf("%s %s %d: %v", method, template, a.status, err)
		}
		result := new(huma.ValidateResult)
		registry := s.api.OpenAPI().Components.Schemas
		huma.Validate(registry, media.Schema, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, value, result)
		for _, err := range result.Errors {
			s.t.Errorf("%s %s %d: %v in %s", method, template, a.status, err, a.body)
		}
	}
	if a.status < 300 {
		s.mu.Lock()
		s.seen[operation.OperationID] = true
		s.mu.Unlock()
	}
}

func client(name string) string { return "/v1/clients/" + url.PathEscape(name) }

const reason = `"reason":"a test"`

// TestEveryOperationIsAsDescribed walks through the API and compares real answers of every
// operation with the document.
func TestEveryOperationIsAsDescribed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/tiers/gold", `{"note":"sold","display_name":"Gold","price_cents":4900,"currency":"USD",`+reason+`}`), 200, `"price_cents":4900`)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/tiers/tin", `{"price_cents":4900,`+reason+`}`), 422, "body.currency")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/tiers", ""), 200, `"note":"sold"`, `"display_name":"Gold"`, `"currency":"USD"`)
	made := s.checkAnswer(s.ask(ledger.Editor, "PUT", client("user:ann"), `{"record":{"tier":"gold","limits":{"api":{"limits":["9/1s"]}}},`+reason+`}`, "If-None-Match", "*"),
		200, `"after":{"tier":"gold"`)
	read := s.checkAnswer(s.ask(ledger.Viewer, "GET", client("user:ann"), ""), 200, `"client":"user:ann"`)
	if tag := read.header.Get("ETag"); tag == "" || tag != made.header.Get("ETag") {
		t.Errorf("the ETag is %q, and was %q", tag, made.header.Get("ETag"))
	}
	s.checkAnswer(s.ask(ledger.Editor, "PATCH", client("user:ann"), `{"note":"n",`+reason+`}`, "If-Match", read.header.Get("ETag")), 200, `"note":"n"`)
	s.checkAnswer(s.ask(ledger.Editor, "PATCH", client("user:ann"), `{"note":"m",`+reason+`}`, "If-Match", read.header.Get("ETag")), 412, "has changed since")
	s.checkAnswer(s.ask(ledger.Editor, "PUT", client("user:ann"), `{"record":{},`+reason+`}`), 428, "If-Match")
	s.checkAnswer(s.ask(ledger.Editor, "PUT", client("user:ann"), `{"record":{},`+reason+`}`, "If-Match", "17"), 422, "header.If-Match")
	s.checkAnswer(s.ask(ledger.Editor, "PATCH", client("user:ann"), `{"note":"n",`+reason+`}`, "If-Match", ""), 422, "write a value, or leave the header out")
	s.checkAnswer(s.ask(ledger.Support, "POST", client("ip:192.0.2.0/24")+"/edits", `{"action":"block","until":"2999-01-01T00:00:00Z",`+reason+`}`), 200, `"client":"ip:192.0.2.0/24"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?limit=1", ""), 200, `"next":"ip:192.0.2.0/24"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?limit=1&after="+url.QueryEscape("ip:192.0.2.0/24"), ""), 200, `"client":"user:ann"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?blocked=true&kind=user", ""), 200, `"clients":[]`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?limt=1", ""), 422, "query.limt")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("user:nobody"), ""), 404)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/changes?limit=2", ""), 200, `"next":`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("user:ann")+"/changes", ""), 200, `"actor":"editor"`, `"origin":"127.0.0.1"`, `"action":"patch note"`)
	s.checkAnswer(s.ask(ledger.Admin, "POST", "/v1/changes/verification", ""), 200, `"whole":true`)
	s.checkAnswer(s.ask(ledger.Editor, "DELETE", "/v1/tiers/gold?reason=x", ""), 422, "body.tier", `clients have the tier`)
	s.checkAnswer(s.ask(ledger.Editor, "POST", client("user:ann")+"/edits", `{"action":"forget",`+reason+`}`), 200)
	s.checkAnswer(s.ask(ledger.Editor, "DELETE", "/v1/tiers/gold?reason=x", ""), 204)
	s.checkAnswer(s.ask(ledger.Editor, "DELETE", "/v1/tiers/gold?reason=x", ""), 404)
	var token struct{ Token, Secret string }
	a := s.checkAnswer(s.ask(ledger.Admin, "POST", "/v1/tokens", fmt.Sprintf(`{"name":"console","role":"viewer","expires_at":%q,%s}`, time.Now().Add(time.Hour).Format(time.RFC3339), reason)), 201)
	if err := json.Unmarshal([]byte(a.body), &token); err != nil {
		t.Fatal(err)
	}
	s.tokens["console"] = token.Secret
	s.checkAnswer(s.ask("console", "GET", "/v1/clients", ""), 200)
	s.checkAnswer(s.ask(ledger.Admin, "DELETE", "/v1/tokens/"+token.Token+"?reason=lost", ""), 204)
	s.checkAnswer(s.ask("console", "GET", "/v1/clients", ""), 401, "revoked")
	if a := s.checkAnswer(s.ask(ledger.Admin, "GET", "/v1/tokens", ""), 200, `"revoked_at"`); strings.Contains(a.body, token.Secret[4:]) {
		t.Error("the list of tokens shows a secret")
	}
	s.policies()
	s.walkPublished()
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/regions", ""), 200, `"region":""`, `"published":false`, `"missing_policies":["`)
	s.walkExplanations()
	s.testKeys()
	s.walkReports()
	s.walkThresholds()
	for path, item := range s.api.OpenAPI().Paths {
		for _, o := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if o != nil && !s.seen[o.OperationID] {
				t.Errorf("no answer of %s %s %s was seen", o.OperationID, o.Method, path)
			}
		}
	}
}

// TestRolesMayWhatTheyMay tests that each role is denied the operations of higher roles, and that a
// caller without a token gets no data.
func TestRolesMayWhatTheyMay(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.tokens[""] = ""
	edits := client("user:bob") + "/edits"
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys", `{"record":{"name":"kept","client":"user:ann"},`+reason+`}`), 201)
	for _, c := range []struct {
		least              ledger.Role
		method, path, body string
	}{
		{ledger.Viewer, "GET", "/v1/clients", ""},
		{ledger.Viewer, "GET", "/v1/usage", ""},
		{ledger.Viewer, "GET", "/v1/policies/shop/published", ""},
		{ledger.Viewer, "GET", client("ip:192.0.2.7") + "/remaining", ""},
		{ledger.Node, "PUT", batchPath(1), `{"time":"2026-11-23T10:00:00Z","kind":"usage","units":1}`},
		{ledger.Support, "POST", edits, `{"action":"block",` + reason + `}`},
		{ledger.Support, "POST", edits, `{"action":"set-limit","rule":"api","limits":["1/1s"],` + until(30) + reason + `}`},
		{ledger.Editor, "POST", edits, `{"action":"set-limit","rule":"api","limits":["1/1s"],` + until(32) + reason + `}`},
		{ledger.Editor, "POST", edits, `{"action":"set-limit","rule":"api","limits":["1/1s"],` + reason + `}`},
		{ledger.Support, "POST", edits, `{"action":"exempt",` + until(30) + reason + `}`},
		{ledger.Editor, "POST", edits, `{"action":"exempt",` + until(32) + reason + `}`},
		{ledger.Editor, "POST", edits, `{"action":"exempt",` + reason + `}`},
		{ledger.Support, "POST", edits, `{"action":"grant","rule":"api","units":5,` + reason + `}`},
		{ledger.Editor, "POST", edits, `{"action":"set-tenant","tenant":"t",` + reason + `}`},
		{ledger.Editor, "PATCH", client("user:bob"), `{"note":"n",` + reason + `}`},
		{ledger.Editor, "PUT", "/v1/tiers/gold", `{` + reason + `}`},
		{ledger.Viewer, "GET", "/v1/keys", ""},
		{ledger.Viewer, "GET", "/v1/keys/bob/changes", ""},
		{ledger.Editor, "POST", "/v1/keys/kept/edits", `{"action":"rotate",` + reason + `}`},
		{ledger.Admin, "GET", "/v1/tokens", ""},
		{ledger.Admin, "PUT", "/v1/thresholds/quota", thresholdBody},
		{ledger.Viewer, "GET", "/v1/thresholds/quota/notices", ""},
		{ledger.Admin, "POST", "/v1/changes/verification", ""},
	} {
		s.checkAnswer(s.ask("", c.method, c.path, c.body), 401)
		for _, role := range ledger.Roles {
			want := 200
			if !role.May(c.least) && !(role == ledger.Node && strings.HasSuffix(c.path, publishedSuffix)) {
				want = 403
			}
			if a := s.ask(role, c.method, c.path, c.body); a.status != want {
				t.Errorf("%s %s %s as %s: status %d, want %d: %s", c.method, c.path, c.body, role, a.status, want, a.body)
			}
		}
	}
	changes, err := s.ledger.History(t.Context(), ledger.WhatClient, "user:bob", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.Actor == string(ledger.Viewer) {
			t.Errorf("a viewer has made the change %+v", c)
		}
	}
}

// until returns the field of an edit that ends after the given number of days.
func until(days int) string {
	return `"until":"` + time.Now().AddDate(0, 0, days).UTC().Format(time.RFC3339) + `",`
}

// TestWideNetworksNeedAnAdmin tests that only an admin may block or exempt a network that is wider
// than /8 (IPv4) or /19 (IPv6), whether by an edit or as a whole record. The error must name the
// bound.
func TestWideNetworksNeedAnAdmin(t *testing.T) {
	t.Parallel()
	s := serve(t)
	until := until(30)
	for network, wide := range map[string]string{"0.0.0.0/0": "/8", "10.0.0.0/7": "/8", "11.9.9.9/7": "/8", "::/0": "/19",
		"2000::/18": "/19", "10.0.0.0/8": "", "192.0.2.7": "", "2001::/19": "", "2001:db8::1": ""} {
		path := client("ip:" + network)
		for _, role := range []ledger.Role{ledger.Support, ledger.Editor, ledger.Admin} {
			for _, action := range []string{"block", "exempt"} {
				a := s.ask(role, "POST", path+"/edits", `{"action":"`+action+`",`+until+reason+`}`)
				switch denied := wide != "" && role != ledger.Admin; {
				case denied && (a.status != 403 || !strings.Contains(a.body, "is wider than "+wide+":") || !strings.Contains(a.body, "role admin")):
					t.Errorf("%s of %s as %s: %d %s", action, network, role, a.status, a.body)
				case !denied && a.status != 200:
					t.Errorf("%s of %s as %s: %d %s", action, network, role, a.status, a.body)
				}
			}
		}
		if wide == "" {
			continue
		}
		s.checkAnswer(s.ask(ledger.Support, "POST", path+"/edits", `{"action":"unexempt",`+reason+`}`), 200)
		read := s.checkAnswer(s.ask(ledger.Viewer, "GET", path, ""), 200)
		match := []string{"If-Match", read.header.Get("ETag")}
		for _, record := range []string{`{"exempt":{}}`, `{"block":{}}`} {
			s.checkAnswer(s.ask(ledger.Editor, "PUT", path, `{"record":`+record+`,`+reason+`}`, match...), 403, "is wider than "+wide)
		}
		s.checkAnswer(s.ask(ledger.Editor, "PUT", path, `{"record":{"note":"n"},`+reason+`}`, match...), 200)
	}
}

// TestHostileWrites sends requests that an attacker might send. The test tests that each is
// answered with a status below 500, that nothing outside the body is stored, and that stored values
// are those that were sent.
func TestHostileWrites(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, id := range []string{`'; DROP TABLE penstock.clients; --`, `" OR 1=1 --`, `$1`, `%s%n`, `\'; SELECT pg_sleep(9)`, "a\tb", "a\x00b", "\xff\xfe", "☃", "../../tokens",
		"a/b?c#d", strings.Repeat("x", 256), strings.Repeat("x", 3000), "{env.SECRET}", "\u202e", ".", ".."} {
		name := "user:" + id
		a := s.ask(ledger.Support, "POST", client(name)+"/edits", `{"action":"block",`+reason+`}`)
		if a.status != 200 && a.status != 422 {
			t.Errorf("%q: status %d: %s", id, a.status, a.body)
		}
		if a.status != 200 {
			continue
		}
		var changed struct{ Client string }
		if err := json.Unmarshal([]byte(a.body), &changed); err != nil || changed.Client != name && len(id) <= 255 {
			t.Errorf("%q is stored as %q, %v", id, changed.Client, err)
		}
		s.checkAnswer(s.ask(ledger.Viewer, "GET", client(name), ""), 200)
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?limit=1&after="+url.QueryEscape(changed.Client), ""), 200)
	}
	edits := client("user:bob") + "/edits"
	for body, want := range map[string]int{
		`{"action":"block","actor":"somebody else",` + reason + `}`:                           422, // unknown field
		`{"action":"grant",` + reason + `}`:                                                   422,
		`{"action":"block","reason":"a\nb"}`:                                                  422,
		`{"action":"block","reason":"a\u0000b"}`:                                              422,
		`{"action":"block","until":"tomorrow",` + reason + `}`:                                422,
		`{"action":"set-limit","rule":"api","limits":["5/bogus"],` + until(30) + reason + `}`: 422,
		`{"action":"note","note":"\u0000",` + reason + `}`:                                    422,
		`{`:  400,
		`[]`: 422,
		`{"action":"block","reason":"` + strings.Repeat("x", bodyBytesMax) + `"}`: 413,
	} {
		if a := s.ask(ledger.Support, "POST", edits, body); a.status != want || !strings.Contains(a.header.Get("Content-Type"), "problem+json") {
			t.Errorf("%.60s: status %d %s, want %d: %s", body, a.status, a.header.Get("Content-Type"), want, a.body)
		}
	}
	s.checkAnswer(s.ask(ledger.Support, "POST", edits, "action=block&reason=x", "Content-Type", "application/x-www-form-urlencoded"), 415)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/tiers/a%00b", `{`+reason+`}`), 422)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/tiers?after=%00", ""), 422)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?kind=%00", ""), 422)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients?tier=%ff", ""), 422)
	s.checkAnswer(s.ask(ledger.Admin, "DELETE", "/v1/tokens/%00?reason=x", ""), 404)
	s.checkAnswer(s.ask(ledger.Admin, "DELETE", "/v1/tiers/x?reason=%00", ""), 422)
	if a := s.ask(ledger.Viewer, "GET", client("user:bob"), ""); a.status != 404 {
		t.Errorf("a write that was denied has changed a client: %s", a.body)
	}
}

// TestTheDocumentIsTheOneInTheReference tests that docs has the document of this program. To update
// it: penstock control openapi > docs/reference/control.openapi.json. Then go generate
// ./controlclient.
func TestTheDocumentIsTheOneInTheReference(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/reference/control.openapi.json"
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(New(Options{}).OpenAPI(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != string(text)+"\n" {
		t.Error("docs/reference/control.openapi.json is not what penstock control openapi prints")
	}
}

// TestTheGuideHasEveryOperation tests that the guide has a row for each operation of the document.
func TestTheGuideHasEveryOperation(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/guides/control-plane.md")
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range New(Options{}).OpenAPI().Paths {
		for _, o := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if o != nil && !strings.Contains(string(guide), "`"+o.Method+" "+path+"`") && !strings.Contains(string(guide), "`"+o.Method+" "+path+"?") {
				t.Errorf("the guide has no %s %s", o.Method, path)
			}
		}
	}
}
