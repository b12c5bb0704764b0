// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// newProvisioned returns a handler with the given configuration that counts in memory.
func newProvisioned(t testing.TB, config string) *Handler {
	t.Helper()
	run, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	module, err := run.LoadModuleByID("http.handlers.penstock", json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	h := module.(*Handler)
	t.Cleanup(func() {
		if err := h.app.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return h
}

const threeRules = `{"name":"inside","rules":[
	{"name":"everyone","per":[],"limit":"1000000000/1d"},
	{"name":"api","match":{"path":"/api/*"},"limit":"1000000000/1m"},
	{"name":"search","match":{"path":"/api/search","method":"GET"},"limit":"COUNT/1m"}]}`

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

var nothing = caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
	w.WriteHeader(http.StatusOK)
	return nil
})

// newAsker returns a function that sends a request through the handler with a new record.
func newAsker(t testing.TB, h caddyhttp.MiddlewareHandler) func() {
	r := httptest.NewRequest(http.MethodGet, "http://shop.example/api/search?q=1", nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
	vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	vars[caddyhttp.ClientIPVarKey] = "192.0.2.7"
	r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, caddy.NewEmptyReplacer()))
	w := &discard{header: make(http.Header, 16)}
	return func() {
		delete(vars, recordVar)
		clear(w.header)
		if err := h.ServeHTTP(w, r, nothing); err != nil {
			t.Fatal(err)
		}
	}
}

// onlyHeaders sets the fields that an admitted request gets, and decides nothing.
type onlyHeaders struct{}

func (onlyHeaders) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	remaining := strconv.Itoa(1_000_000 + len(r.URL.Path))
	field := w.Header()
	field[fieldLimit] = []string{"1000000000"}
	field[fieldRemaining] = []string{remaining}
	field[fieldReset] = []string{"1795000000"}
	field[fieldPolicy] = []string{`"everyone";q=1000000000;w=86400, "api";q=1000000000;w=60, "search";q=1000000000;w=60`}
	field[fieldRateLimit] = []string{`"search";r=` + remaining + `;t=60`}
	return next.ServeHTTP(w, r)
}

// BenchmarkServe compares the handler with one that only sets header fields.
func BenchmarkServe(b *testing.B) {
	for _, c := range []struct{ name, count string }{{"headers only", ""}, {"admitted", "1000000000"}, {"refused", "1"}} {
		b.Run(c.name, func(b *testing.B) {
			var h caddyhttp.MiddlewareHandler = onlyHeaders{}
			if c.count != "" {
				h = newProvisioned(b, strings.Replace(threeRules, "COUNT", c.count, 1))
			}
			ask := newAsker(b, h)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}

// TestPlaceholdersAreReadTogether: several goroutines may read the placeholders of one request.
func TestPlaceholdersAreReadTogether(t *testing.T) {
	rec := new(record)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			if value, ok := rec.placeholder("http.penstock.decision"); !ok || value != "none" {
				t.Errorf("%v, %t", value, ok)
			}
		})
	}
	readers.Wait()
}

func TestSecretsInURLs(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "a b@c/d:e#f")
	s := Store{Type: storeRedis, URL: "redis://user:{env.PENSTOCK_TEST_SECRET}@host:6379/0", Password: "{env.PENSTOCK_TEST_SECRET}"}
	resolved, err := s.resolve()
	if err != nil {
		t.Fatal(err)
	}
	if want := "redis://user:a%20b%40c%2Fd%3Ae%23f@host:6379/0"; resolved.Redis.URL != want {
		t.Errorf("URL: got %q, want %q", resolved.Redis.URL, want)
	}
	if resolved.Redis.Password != "a b@c/d:e#f" {
		t.Errorf("password: got %q", resolved.Redis.Password)
	}
	if s.literalSecret() {
		t.Error("a placeholder is no literal secret")
	}
	if literal := (&Store{URL: "redis://:secret@host"}); !literal.literalSecret() {
		t.Error("a password in the URL is a literal secret")
	}
	unset := Store{Type: storeRedis, URL: "redis://host", Password: "{env.PENSTOCK_TEST_UNSET}"}
	if _, err := unset.resolve(); err == nil || !strings.Contains(err.Error(), "PENSTOCK_TEST_UNSET") {
		t.Errorf("an unset variable: %v", err)
	}
}

func TestNamespacesOfSites(t *testing.T) {
	seen := make(map[string]string)
	for _, site := range []string{":8080", "8080", "example.com", "http://example.com", "https://example.com", "a.test b.test",
		strings.Repeat("long.example ", 20), strings.Repeat("long.example ", 21), "ü.example", "ö.example", ":"} {
		namespace := siteNamespace(site)
		if other, taken := seen[namespace]; taken {
			t.Errorf("%q and %q share the namespace %q", site, other, namespace)
		}
		seen[namespace] = site
		if namespace == "" || len(namespace) > 64 {
			t.Errorf("%q: namespace %q", site, namespace)
		}
	}
	if got := siteNamespace("example.com"); got != "example.com" {
		t.Errorf("got %q: a site that is a name stays as it is", got)
	}
}

func TestAllProblemsAreReported(t *testing.T) {
	run, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if app, err := run.App("penstock"); err != nil || app.(*App).Cleanup() != nil {
			t.Error("the app is not there to be cleaned up")
		}
	})
	for config, words := range map[string][]string{
		`{"rules":[{"limit":"1/1x"},{"limit":"0/1m"}]}`:                       {`rules[0] "default".limit`, `rules[1] "default-2".limit`},
		`{"policy":"/nonexistent/policy.yaml","rules":[{"limit":"1/1x"}]}`:    {"/nonexistent/policy.yaml", `rules[0] "default".limit`},
		`{"rules":[{"name":"a","limit":"1/1m"},{"name":"a","limit":"1/1m"}]}`: {"rename one"},
		`{"rules":[{"limits":"1/1m"}]}`:                                       {"limits", "did you mean"},
		`{"on_error":"deny"}`:                                                 {"nothing to enforce"},
		`{}`:                                                                  {"penstock 100/1m"},
		`{"nmae":"x","rules":[{"limit":"1/1m"}]}`:                             {"nmae"},
		`{"penalty":{},"region":1,"identify":[{"jwt":{}},{"ip":{"foo":1}}],
		  "on_error":7,"rules":[{"limits":"1/1m","tiers":{}},3,{"limit":5}]}`: {"region: is an unknown field", "identify[0].jwt: has no keys to verify its tokens with",
			"identify[1].ip.foo", "on_error", "rules[0].limits", "rules[0].tiers: is an empty", "rules[1]: ", "rules[2].limit"},
		`{"rules":{"limit":"1/1m"},"policy":5,"site":[]}`: {"rules: ", "policy: ", "site: "},
	} {
		_, err = run.LoadModuleByID("http.handlers.penstock", json.RawMessage(config))
		if err == nil {
			t.Errorf("%s was taken", config)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: the error lacks %q: %v", config, word, err)
			}
		}
	}
}

func TestFailedLoadsLeaveNoStore(t *testing.T) {
	run, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{
		`{"store":{"counters_max":77},"rules":[{"limit":"1/1x"}]}`,
		`{"store":{"counters_max":77},"policy":"/nonexistent/policy.yaml"}`,
		`{"store":{"counters_max":-1}}`,
		`{"store":{"bytes_max":1048576}}`,
		`{"store":{"type":"redis","url":"redis://localhost:1"},"rules":[{"limit":"1/1m"}]}`,
	} {
		if _, err := run.LoadModuleByID("penstock", json.RawMessage(config)); err == nil {
			t.Errorf("%s was taken", config)
		}
	}
	stores.Range(func(key, _ any) bool {
		if text := key.(string); strings.Contains(text, "77") || strings.Contains(text, "redis") {
			t.Errorf("a store is left behind: %v", key)
		}
		return true
	})
}

func TestFlushAndReadFromCarryTheFields(t *testing.T) {
	h := newProvisioned(t, `{"name":"flush","rules":[{"limit":"9/30d"}]}`)
	for name, write := range map[string]func(http.ResponseWriter){
		"flush":    func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"flusher":  func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"write":    func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
		"readfrom": func(w http.ResponseWriter) { _, _ = w.(*responder).ReadFrom(strings.NewReader("x")) },
		"nothing":  func(http.ResponseWriter) {},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://shop.example/", nil)
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
		w := httptest.NewRecorder()
		if err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			write(w)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		if got := w.Result().Header.Get("X-RateLimit-Limit"); got != "9" {
			t.Errorf("%s: X-RateLimit-Limit %q", name, got)
		}
	}
}

// TestSecondCookieLineHidesNothing: the upstream reads a second Cookie field, so the attributes
// contain it.
func TestSecondCookieLineHidesNothing(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header["Cookie"] = []string{"a=1", "session=s-1"}
	a := attributes{r: r}
	if got, _ := a.Header("Cookie"); got != "a=1; session=s-1" {
		t.Errorf("the lines are read as %q", got)
	}
}

// TestResetStreamsAreNotDecided: if the client has reset the stream of a request before its
// decision, the request is neither passed on nor charged. The context of a request over HTTP/1 ends
// even if the client still waits for the response, so such a request is decided.
func TestResetStreamsAreNotDecided(t *testing.T) {
	for name, rule := range map[string]string{"deny": `"limit":"9/30d fixed_window"`,
		"throttle": `"limit":"9/30d fixed_window","action":"throttle","throttle":{"max_delay":"1s"}`} {
		for _, want := range []struct{ major, status, passed int }{{1, 200, 1}, {2, 499, 0}, {3, 499, 0}} {
			synctest.Test(t, func(t *testing.T) {
				h := newProvisioned(t, `{"name":"reset","rules":[{"name":"r",`+rule+`}]}`)
				r, w, passed := requestFor(http.MethodGet, "/"), httptest.NewRecorder(), 0
				ctx, reset := context.WithCancel(r.Context())
				reset()
				r.ProtoMajor = want.major
				if err := h.ServeHTTP(w, r.WithContext(ctx), caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
					passed++
					return nil
				})); err != nil {
					t.Error(err)
				}
				if used := usedUnits(t, h, "/"); w.Code != want.status || passed != want.passed || used != int64(want.passed) {
					t.Errorf("%s over HTTP/%d: status %d, %d passed on, %d charged; want %d, %d, %[4]d", name, want.major, w.Code, passed, used,
						want.status, want.passed)
				}
			})
		}
	}
}

// brokenConn is a connection that its client has closed.
type brokenConn struct{ discard }

func (*brokenConn) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestADisconnectIsNoError: Caddy logs handler errors, so a client that disconnects
// must not cause one.
func TestADisconnectIsNoError(t *testing.T) {
	h := newProvisioned(t, strings.Replace(threeRules, "COUNT", "1", 1))
	for range 2 {
		w := &brokenConn{discard{header: make(http.Header)}}
		if err := h.ServeHTTP(w, requestFor(http.MethodGet, "/api/search"), nothing); err != nil {
			t.Error(err)
		}
	}
}
