// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

func TestASharedStoreNeedsAName(t *testing.T) {
	s := start(t, ":PORT {\n respond ok\n}")
	err := s.load(`{
		penstock {
			store redis redis://127.0.0.1:1
		}
	}
	:PORT {
		penstock 3/1m
	}`)
	if err == nil || !strings.Contains(err.Error(), "name shop") {
		t.Errorf("error: %v", err)
	}
}

func TestRuleNamesAreUniqueInANamespace(t *testing.T) {
	s := start(t, ":PORT {\n respond ok\n}")
	err := s.load(`http://a.test:PORT {
		penstock {
			name shop
			rule api 3/1m
		}
	}
	http://b.test:PORT {
		penstock {
			name shop
			rule api 4/1m
		}
	}`)
	if err == nil || !strings.Contains(err.Error(), `rule "api" is listed twice in namespace "shop"`) {
		t.Errorf("error: %v", err)
	}
}

// TestAPolicyFileOfTwoSitesBelongsInTheGlobalBlock: the error names the file once, not each of its
// rules, and the remedy works.
func TestAPolicyFileOfTwoSitesBelongsInTheGlobalBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("name: shop\nrules: [{name: a, limit: 3/1m}, {name: b, limit: 30/1h}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, ":PORT {\n respond ok\n}")
	err := s.load("http://a.test:PORT {\n penstock {\n policy " + file + "\n}\n}\nhttp://b.test:PORT {\n penstock {\n policy " + file + "\n}\n}")
	want := `policy "shop" in ` + file + " is listed twice: in site "
	if err == nil || strings.Count(err.Error(), "listed twice") != 1 || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "write it once, in the global penstock block") {
		t.Errorf("error: %v", err)
	}
	if err := s.load("{\n penstock {\n policy " + file + "\n}\n}\nhttp://a.test:PORT {\n penstock\n}\nhttp://b.test:PORT {\n penstock\n}"); err != nil {
		t.Error(err)
	}
}

// TestNamesDoNotDependOnTheOrderOfServers: Caddy provisions servers in any order. A rule numbered
// in that order would have a different counter after a reload, and on another node.
func TestNamesDoNotDependOnTheOrderOfServers(t *testing.T) {
	s := start(t, ":PORT {\n respond ok\n}")
	server := func(handler string) string {
		return `{"listen":[":` + strconv.Itoa(freePort(t)) + `"],"routes":[{"handle":[` + handler + `]}]}`
	}
	err := s.loadJSON([]byte(`{"apps":{"http":{"servers":{
		"a":` + server(`{"handler":"penstock","name":"shop","rules":[{"limit":"1/1m"}]}`) + `,
		"b":` + server(`{"handler":"penstock","name":"shop","rules":[{"limit":"2/1m"}]}`) + `}}}}`))
	if err == nil || !strings.Contains(err.Error(), `rule "default" is listed twice in namespace "shop"`) {
		t.Errorf("error: %v", err)
	}
	if err := s.loadJSON([]byte(`{"apps":{"http":{"servers":{
		"a":` + server(`{"handler":"penstock","name":"shop","rules":[{"limit":"1/1m"},{"limit":"2/1m"}]},
			{"handler":"penstock","name":"shop","rules":[{"limit":"3/1m"}]}`) + `,
		"b":` + server(`{"handler":"penstock","rules":[{"limit":"2/1m"}]}`) + `}}}}`)); err != nil {
		t.Error(err)
	}
}

func TestSitesInMemoryCountApart(t *testing.T) {
	s := start(t, `http://a.test:PORT, http://b.test:PORT {
		penstock 2/30d
		respond "ok"
	}
	http://c.test:PORT {
		penstock 2/30d
		respond "ok"
	}`)
	equal(t, "a", s.statuses(1, "/", "Host", "a.test"), "200")
	equal(t, "b, the same site", s.statuses(2, "/", "Host", "b.test"), "200 429")
	equal(t, "c, another", s.statuses(3, "/", "Host", "c.test"), "200 200 429")
}

// TestOneSiteOfTwoListeners: a site on two listeners has its handler in two servers, and both count
// in the same counters.
func TestOneSiteOfTwoListeners(t *testing.T) {
	other := strconv.Itoa(freePort(t))
	s := start(t, `:PORT, :`+other+` {
		penstock 2/30d
		respond "ok"
	}`)
	equal(t, "first", s.statuses(1, "/"), "200")
	there := *s
	there.port, _ = strconv.Atoi(other)
	equal(t, "second", there.statuses(2, "/"), "200 429")
}

func TestPolicyFileInAppAndSite(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"app.yaml":  "name: shop\nrules:\n  - name: all\n    limit: 5/30d\n",
		"site.toml": "[[rules]]\nname = \"api\"\nlimit = \"2/30d\"\nmatch.path = \"/api/*\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	redis := redistest.Start(t)
	s := start(t, `{
		penstock {
			store redis `+redis.URL()+` {
				timeout 1s
			}
			policy `+filepath.Join(dir, "app.yaml")+`
		}
	}
	:PORT {
		penstock {
			name shop-web
			policy `+filepath.Join(dir, "site.toml")+`
			rule other {
				match path /other
				limit 9/30d
			}
		}
		respond "ok"
	}`)
	before := redis.Calls("evalsha")
	r := s.get("/api/x")
	if got := redis.Calls("evalsha") - before; got != 1 {
		t.Errorf("%d round trips for two rules of two policies, want 1", got)
	}
	if got := r.Header.Get("RateLimit-Policy"); !strings.Contains(got, `"all";q=5`) || !strings.Contains(got, `"api";q=2`) {
		t.Errorf("RateLimit-Policy: %q", got)
	}
	equal(t, "api", s.statuses(2, "/api/x"), "200 429")
	equal(t, "a refused request is charged nowhere", s.statuses(4, "/"), "200 200 200 429")
	err := s.load(`:PORT {
		penstock {
			policy ` + filepath.Join(dir, "missing.yaml") + `
		}
	}`)
	if err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("error: %v", err)
	}
}

func TestABlockGovernsItsPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  - {name: one, limit: 1/30d}\n  - {name: two, limit: 2/30d}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	block := func(words string) string {
		return "{\n" + words + "\n policy " + file + "\n}\n"
	}
	s := start(t, ":PORT {\n penstock "+block("enforce first")+" respond ok\n}")
	s.get("/").wantField(t, "RateLimit-Policy", `"one";q=1;w=2592000`)
	for name, config := range map[string]string{
		"site":   ":PORT {\n penstock " + block("enabled false") + " respond {http.penstock.decision}\n}",
		"global": "{\n penstock " + block("enabled false") + "}\n:PORT {\n penstock\n respond {http.penstock.decision}\n}",
	} {
		if err := s.load(config); err != nil {
			t.Fatal(err)
		}
		equal(t, name, s.statuses(3, "/"), "200 200 200")
	}
	// Disabling penstock globally switches off the rules of the global block, but not the rules of
	// sites.
	if err := s.load("{\n penstock {\n enabled false\n }\n}\n:PORT {\n penstock 1/30d\n respond ok\n}"); err != nil {
		t.Fatal(err)
	}
	equal(t, "a site's own", s.statuses(2, "/"), "200 429")
}

func TestFieldsWithoutEffectAreRejected(t *testing.T) {
	s := start(t, ":PORT {\n respond ok\n}")
	for config, word := range map[string]string{
		`{"apps":{"penstock":{"on_error":"perhaps"}}}`: "on_error",
		`{"apps":{"penstock":{"name":"a b"}}}`:         "name",
		`{"apps":{"penstock":{"rules":[{"limit":"1/1m"}]},"http":{"servers":{"a":{"listen":[":0"],"routes":[{"handle":[
			{"handler":"penstock","name":"other"}]}]}}}}}`: "has no rule",
	} {
		if err := s.loadJSON([]byte(config)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %v", config, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	s := start(t, `{
		log {
			output file `+log+`
			level WARN
		}
		servers {
			trusted_proxies static 127.0.0.1/32
		}
		penstock {
			name shop
			store redis redis://127.0.0.1:1 {
				password hunter2
			}
		}
	}
	:PORT {
		penstock 3/30d
		respond "ok"
	}`)
	s.statuses(20, "/", "X-Forwarded-For", "198.51.100.1")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for word, times := range map[string]int{"trusted_proxies_strict": 1, "on_error decides": 1, "password of the store": 1} {
		if got := linesWith(string(text), word); got != times {
			t.Errorf("%d lines say %q, want %d:\n%s", got, word, times, grep(string(text), word))
		}
	}
	if strings.Contains(string(text), "hunter2") {
		t.Error("the log shows the password")
	}
}

func TestUnixSocketsHaveNoClients(t *testing.T) {
	dir := t.TempDir()
	log, socket := filepath.Join(dir, "log"), filepath.Join(dir, "s")
	start(t, `{
		log {
			output file `+log+`
			level WARN
		}
	}
	http:// {
		bind unix/`+socket+`
		penstock 1/30d
		respond "ok"
	}`)
	over := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer over.CloseIdleConnections()
	for _, want := range []int{200, 429, 429} {
		response, err := over.Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("status %d, want %d: all count together", response.StatusCode, want)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := linesWith(string(text), "trusted_proxies_unix"); got != 1 {
		t.Errorf("%d lines say that nobody is told apart, want 1:\n%s", got, text)
	}
}

func linesWith(text, word string) (n int) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			n++
		}
	}
	return n
}

// TestPenaltyOfASharedNamespace: a site without a name shares the app's namespace, its penalty, and
// therefore the client's record.
func TestPenaltyOfASharedNamespace(t *testing.T) {
	s := start(t, `{
		penstock {
			name shop
			store redis `+redistest.Start(t).URL()+` {
				timeout 1s
			}
			penalty {
				threshold 1
			}
			rule all 9/30d
		}
	}
	:PORT {
		penstock {
			rule api 1/30d
		}
		respond "ok"
	}`)
	equal(t, "statuses", s.statuses(3, "/"), "200 429 429")
	if got := s.get("/").body; !strings.Contains(got, "abnormal-usage-detected") {
		t.Errorf("the penalty is not told: %s", got)
	}
}
