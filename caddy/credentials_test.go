// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// keysFile writes a file of API keys. The map entries holds, for each key, the lines of its entry
// besides its hash.
func keysFile(t *testing.T, entries map[string]string) string {
	t.Helper()
	var text strings.Builder
	for key, words := range entries {
		sum := sha256.Sum256([]byte(key))
		text.WriteString("[[keys]]\nhash = \"sha256:" + hex.EncodeToString(sum[:]) + "\"\n" + words + "\n")
	}
	path := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	premiumKey  = "pk_premium-0123456789-abcdefghijkl"
	ownKey      = "pk_own-limits-0123456789-abcdefghi"
	revokedKey  = "pk_revoked-0123456789-abcdefghijkl"
	inactiveKey = "pk_inactive-0123456789-abcdefghijk"
	lapsedKey   = "pk_lapsed-0123456789-abcdefghijklm"
	unknownKey  = "pk_unknown-0123456789-abcdefghijkl"
)

var someKeys = map[string]string{
	premiumKey:  "id = \"k-premium\"\ntier = \"premium\"\ntenant = \"acme\"\nuser = \"ann\"",
	ownKey:      "id = \"k-own\"\nlimits = { \"api\" = [\"4/30d\"] }",
	revokedKey:  "id = \"k-revoked\"\nrevoked = true",
	inactiveKey: "id = \"k-inactive\"\ninactive = true",
	lapsedKey:   "id = \"k-lapsed\"\nexpires = 2020-01-01T00:00:00Z",
}

const byKey = `:PORT {
	penstock {
		name keys
		identify api_key {
			keys_file KEYS
		}
		identify ip
		rule api 2/30d {
			tiers premium 5/30d
		}
	}
	respond "{http.penstock.client} {http.penstock.identity} {http.penstock.tier} {http.penstock.tenant} {http.penstock.user}"
}`

func TestCredentialStates(t *testing.T) {
	s := start(t, strings.ReplaceAll(byKey, "KEYS", keysFile(t, someKeys)))
	for _, c := range []struct{ name, key, status, limit, body string }{
		{name: "valid, with a tier", key: premiumKey, status: "200", limit: "5", body: "k-premium api_key premium acme ann"},
		{name: "valid, with limits of its own", key: ownKey, status: "200", limit: "4", body: "k-own api_key   "},
		{name: "absent", status: "200", limit: "2", body: "127.0.0.1 ip   "},
		{name: "unknown", key: unknownKey, status: "200", limit: "2", body: "127.0.0.1 ip   "},
		// the limit of the address is used up
		{name: "malformed", key: "no key", status: "429", limit: "2"},
		{name: "revoked", key: revokedKey, status: "401"},
		{name: "inactive", key: inactiveKey, status: "401"},
		{name: "lapsed", key: lapsedKey, status: "401"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.t = t
			r := s.get("/", "X-API-Key", c.key)
			equal(t, "status", strconv.Itoa(r.StatusCode), c.status)
			r.wantField(t, "X-RateLimit-Limit", c.limit)
			if c.body != "" {
				equal(t, "body", r.body, c.body)
			}
			if c.status == "401" {
				r.wantField(t, "WWW-Authenticate", `Bearer error="invalid_token"`)
				r.wantField(t, "Content-Type", "application/problem+json")
			}
		})
	}
	metrics := s.metrics()
	for _, state := range []string{"valid", "unknown", "malformed", "revoked", "inactive", "lapsed"} {
		line := `penstock_credentials_total{method="api_key",policy="keys",state="` + state + `"} `
		if !strings.Contains(metrics, line) {
			t.Errorf("no metric %s in\n%s", line, grep(metrics, "credentials"))
		}
	}
	for key := range someKeys {
		if strings.Contains(metrics, key) {
			t.Errorf("the metrics hold a key")
		}
	}
}

func TestATokenThatMustVerify(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_JWT", "a shared secret of 32 characters")
	s := start(t, `:PORT {
		penstock {
			name deny
			identify jwt {
				secret {env.PENSTOCK_TEST_JWT}
				on_invalid deny
			}
			rule api 2/30d {
				match path /api/*
			}
		}
		handle_errors {
			header X-Seen "{err.status_code} {http.penstock.decision}"
		}
		respond "ok"
	}`)
	r := s.get("/api/x", "Authorization", "Bearer not.a.token")
	equal(t, "status", strconv.Itoa(r.StatusCode), "401")
	r.wantField(t, "X-Seen", "401 unauthorized")
	r.wantField(t, "WWW-Authenticate", `Bearer error="invalid_token"`)
	equal(t, "where no rule is", s.statuses(1, "/", "Authorization", "Bearer not.a.token"), "200")
}

func TestALiteralSecretIsWarnedOf(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	start(t, `{
		log {
			output file `+log+`
		}
	}
	:PORT {
		penstock {
			name warn
			identify jwt {
				secret "a shared secret of 32 characters"
			}
			rule api 2/30d
		}
	}`)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "identify[0].jwt.secret: is visible to everyone"); got != 1 || strings.Contains(string(text), "shared secret of") {
		t.Errorf("%d warnings, want one, without the secret:\n%s", got, grep(string(text), "identify"))
	}
}

func TestPenaltiesGrow(t *testing.T) {
	s := start(t, `:PORT {
		penstock {
			name penal
			penalty {
				window 1h
				threshold 2
				multipliers 2 4
				max 30m
			}
			rule a 1/30d {
				match path /a
			}
			rule b 1/30d {
				match path /b
			}
			rule c 100/30d {
				match path /c
			}
		}
		penstock_status /quota
		handle_errors {
			header X-Seen "{err.status_code} {http.penstock.decision}"
		}
		respond "ok"
	}`)
	// this is one violation, whose penalty lasts until the time in Retry-After
	equal(t, "a", s.statuses(3, "/a"), "200 429 429")
	equal(t, "c", s.statuses(1, "/c"), "200")
	equal(t, "b", s.statuses(1, "/b"), "200")
	r := s.get("/b")
	r.wantField(t, "X-Seen", "429 penalized")
	if !strings.Contains(r.body, "abnormal-usage-detected") {
		t.Errorf("body: %s", r.body)
	}
	r = s.get("/c") // another path, requested by a penalized client
	r.wantField(t, "X-Seen", "429 penalized")
	if wait, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || wait < 1700 || wait > 1800 {
		t.Errorf("Retry-After %q, want what is left of 30 min", r.Header.Get("Retry-After"))
	}
	var told struct{ Penalized int64 }
	if err := json.Unmarshal([]byte(s.get("/quota").body), &told); err != nil || told.Penalized < 1700 || told.Penalized > 1800 {
		t.Errorf("penalized for %d s, want 30 min: %v", told.Penalized, err)
	}
	if metrics := s.metrics(); !strings.Contains(metrics, `penstock_requests_total{outcome="penalized",policy="penal",rule=""}`) {
		t.Errorf("metrics:\n%s", grep(metrics, "penalized"))
	}
}

func TestForwardedAddresses(t *testing.T) {
	site := func(words string) string {
		return `http://HOST.test:PORT {
			penstock {
				` + words + `
				rule api 2/30d
			}
			respond "{http.penstock.client}"
		}
		`
	}
	s := start(t, strings.ReplaceAll(site(""), "HOST", "own")+
		strings.ReplaceAll(site("trusted_proxies 127.0.0.0/8 10.0.0.0/8"), "HOST", "list")+
		strings.ReplaceAll(site("trusted_hops 1"), "HOST", "hops"))
	for _, c := range []struct{ host, forwarded, client string }{
		{"own", "203.0.113.9", "127.0.0.1"}, // Caddy trusts no proxy
		{"list", "203.0.113.9", "203.0.113.9"},
		{"list", "192.0.2.66, 203.0.113.10, 10.1.2.3", "203.0.113.10"},
		{"list", "192.0.2.66, ::ffff:203.0.113.11", "203.0.113.11"},
		{"list", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"},
		{"hops", "192.0.2.66, 203.0.113.12", "203.0.113.12"},
		{"hops", "", "127.0.0.1"},
	} {
		var fields []string
		if c.forwarded != "" {
			fields = []string{"X-Forwarded-For", c.forwarded}
		}
		r := s.get("/", append(fields, "Host", c.host+".test")...)
		if r.StatusCode != http.StatusOK || r.body != c.client {
			t.Errorf("%s, %q: %d, client %q, want %q", c.host, c.forwarded, r.StatusCode, r.body, c.client)
		}
	}
}

// TestWarningsOfACaddyfile: Caddy logs the warnings, because penstock validate does not read
// Caddyfiles.
func TestWarningsOfACaddyfile(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	start(t, `{
		log {
			output file `+log+`
		}
	}
	:PORT {
		penstock {
			name advised
			rule wide 10/1m {
				match path /api/*
			}
			rule narrow 100/1m {
				match path /api/search
			}
		}
	}`)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "is never reached"); got != 1 {
		t.Errorf("%d warnings of a limit that is never reached, want one:\n%s", got, text)
	}
}
