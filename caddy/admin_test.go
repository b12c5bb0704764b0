// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// server.ask sends a request to the admin endpoint and returns the status and the answer.
func (s *server) ask(method, path string) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d/penstock/%s", s.admin, path), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(body, &answer); err != nil {
		s.t.Fatalf("%s %s: %s: %v", method, path, body, err)
	}
	return response.StatusCode, answer
}

// firstObject returns the first object in a list of the answer.
func firstObject(t *testing.T, answer map[string]any, list string) map[string]any {
	t.Helper()
	all, _ := answer[list].([]any)
	if len(all) == 0 {
		t.Fatalf("%s is empty: %v", list, answer)
	}
	return all[0].(map[string]any)
}

const adminSite = `:PORT {
	penstock {
		name shop
		penalty {
			window 1h
			threshold 2
			multipliers 10 20
		}
		rule api {
			limit 2/1m fixed_window
		}
		rule everybody {
			per []
			limit 100/1h fixed_window
		}
	}
	respond "ok"
}`

func TestAdminShowsAClientsCountersWithoutSpending(t *testing.T) {
	s := start(t, adminSite)
	s.get("/")
	for range 3 {
		status, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1")
		counter := firstObject(t, answer, "counters")
		if status != 200 || counter["remaining"] != 1.0 || counter["rule"] != "api" ||
			counter["key"] != "rl1:shop:api:{ip:127.0.0.1}:60s:fw" {
			t.Fatalf("%d %v", status, answer)
		}
	}
	if got := s.statuses(2, "/"); got != "200 429" {
		t.Errorf("after looking: %s, want 200 429", got)
	}
}

// TestAdminSelectsClients: the parameters tier, user, tenant and host, which describe a client
// besides its name, apply to clients of every kind.
func TestAdminSelectsClients(t *testing.T) {
	s := start(t, `:PORT {
	penstock {
		name shop
		identify attr http.auth.user.id
		identify ip
		user attr http.auth.user.id
		tenant host_label 1
		tier attr http.vars.tier
		rule api 2/1m {
			tiers gold 20/1m
		}
		rule person 7/1m {
			per user
		}
		rule firm 9/1m {
			per tenant
		}
	}
	respond "ok"
}`)
	for query, want := range map[string]string{
		"client=ip:127.0.0.1":                                           "api{ip:127.0.0.1}:2 person{ip:127.0.0.1}:7 firm{ip:127.0.0.1}:9",
		"client=ip:127.0.0.1&tier=gold&user=ann&tenant=t":               "api{ip:127.0.0.1}:20 person{user:ann}:7 firm{tenant:t}:9",
		"client=ip:127.0.0.1&host=acme.shop.example":                    "api{ip:127.0.0.1}:2 person{ip:127.0.0.1}:7 firm{tenant:acme}:9",
		"client=attr.http.auth.user.id:ann&user=ann&tier=gold&tenant=t": "api{attr.http.auth.user.id:ann}:20 person{user:ann}:7 firm{tenant:t}:9",
	} {
		status, answer := s.ask(http.MethodGet, "client?"+query)
		var got []string
		for _, c := range answer["counters"].([]any) {
			counter := c.(map[string]any)
			key := counter["key"].(string)
			got = append(got, fmt.Sprintf("%s%s:%v", counter["rule"], key[strings.Index(key, "{"):strings.Index(key, "}")+1], counter["remaining"]))
		}
		if text := strings.Join(got, " "); status != 200 || text != want {
			t.Errorf("%s: %d %s, want %s", query, status, text, want)
		}
	}
}

// TestAdminKnowsTheTierOfAKey: an API key has the counters of its tier. The operator finds and
// resets these counters without naming the tier.
func TestAdminKnowsTheTierOfAKey(t *testing.T) {
	const key = "pk_an_example_key_for_tests"
	sum := sha256.Sum256([]byte(key))
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, fmt.Appendf(nil, "[[keys]]\nid = \"acme\"\ntier = \"gold\"\nhash = \"sha256:%x\"\n", sum), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, `:PORT {
	penstock {
		name shop
		identify api_key {
			keys_file `+keys+`
		}
		identify ip
		rule api 2/1m {
			tiers gold 3/1h
		}
	}
	respond "ok"
}`)
	if got := s.statuses(4, "/", "X-API-Key", key); got != "200 200 200 429" {
		t.Fatal(got)
	}
	_, answer := s.ask(http.MethodGet, "client?client=api_key:acme")
	if c := firstObject(t, answer, "counters"); c["limit"] != "3/1h" || c["remaining"] != 0.0 || c["whose"] != "tier gold" {
		t.Errorf("the counter: %v", c)
	}
	if f := firstObject(t, answer, "profiles"); f["tier"] != "gold" || f["from"] != "keys.toml" {
		t.Errorf("the profile: %v", f)
	}
	s.ask(http.MethodPost, "reset?client=api_key:acme")
	if got := s.statuses(1, "/", "X-API-Key", key); got != "200" {
		t.Errorf("after a reset: %s", got)
	}
	for path, want := range map[string]string{
		"client?client=api_key:acne":           "404 no_such_client",
		"reset?client=header.x:acme":           "404 no_such_client",
		"client?client=api_key:acme&tier=iron": "404 <nil>",
		"client?client=ip:192.0.2.7&tier=gold": "200 <nil>",
	} {
		method := http.MethodGet
		if strings.HasPrefix(path, "reset") {
			method = http.MethodPost
		}
		status, answer := s.ask(method, path)
		if got := fmt.Sprint(status, " ", answer["reason"]); got != want {
			t.Errorf("%s: %s %v, want %s", path, got, answer, want)
		}
	}
}

func TestAdminResetsOneClientOnly(t *testing.T) {
	s := start(t, adminSite)
	if got := s.statuses(3, "/"); got != "200 200 429" {
		t.Fatal(got)
	}
	if status, answer := s.ask(http.MethodPost, "reset?client=ip:127.0.0.1"); status != 200 || len(answer["counters"].([]any)) != 1 {
		t.Fatalf("%d %v: want the client's own counter alone", status, answer)
	}
	if got := s.statuses(2, "/"); got != "200 200" {
		t.Errorf("after a reset: %s", got)
	}
	_, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1&rule=everybody")
	if left := firstObject(t, answer, "counters")["remaining"]; left != 96.0 {
		t.Errorf("the counter of everybody has %v left, want 96: it was not to be reset", left)
	}
}

func TestAdminShowsAndLiftsAPenalty(t *testing.T) {
	// The limit is such that the wait, and so the penalty, does not depend on the time of day.
	s := start(t, strings.NewReplacer("threshold 2", "threshold 1", "2/1m fixed_window", "2/1m sliding_log").Replace(adminSite))
	s.statuses(3, "/")
	_, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1")
	if p := firstObject(t, answer, "penalties"); p["in_force"] != true || p["violations"] != 1.0 || p["wait_ms"].(float64) <= 60_000 {
		t.Fatalf("the penalty: %v", p)
	}
	s.ask(http.MethodPost, "reset?client=ip:127.0.0.1")
	if got := s.statuses(1, "/"); got != "429" {
		t.Errorf("with its counters reset and its penalty in force: %s, want 429", got)
	}
	s.ask(http.MethodPost, "lift?client=ip:127.0.0.1")
	if got := s.statuses(1, "/"); got != "200" {
		t.Errorf("with its penalty lifted: %s, want 200", got)
	}
}

func TestAdminShowsTheRulesWithoutSecrets(t *testing.T) {
	s := start(t, strings.Replace(adminSite, "name shop", `name shop
		identify jwt {
			secret 0123456789abcdef0123456789abcdef
		}`, 1))
	status, answer := s.ask(http.MethodGet, "rules")
	text, _ := json.Marshal(answer)
	if p := firstObject(t, answer, "policies"); status != 200 || p["name"] != "shop" || p["version"] == "" {
		t.Errorf("%d %s", status, text)
	}
	if strings.Contains(string(text), "0123456789abcdef") || !strings.Contains(string(text), "everybody") {
		t.Errorf("want the rules and no secret: %s", text)
	}
}

func TestAdminReportsTheMostDeniedClients(t *testing.T) {
	s := start(t, strings.Replace(adminSite, "name shop", "name top-shop", 1))
	s.statuses(6, "/")
	status, answer := s.ask(http.MethodGet, "top?n=1000")
	for _, entry := range answer["clients"].([]any) {
		if e := entry.(map[string]any); e["policy"] == "top-shop" && e["client"] == "ip:127.0.0.1" && e["refused"].(float64) >= 4 {
			return
		}
	}
	t.Errorf("%d %v: want ip:127.0.0.1 with 4 denials", status, answer)
}

// TestAdminKnowsClientsByTheNamesItGivesThem: an IPv6 client is named by its network prefix.
func TestAdminKnowsClientsByTheNamesItGivesThem(t *testing.T) {
	s := start(t, adminSite)
	for _, name := range []string{"ip:2001:db8::7", "ip:2001:db8::/64", "ip:::ffff:192.0.2.7", "ip:192.0.2.7"} {
		status, answer := s.ask(http.MethodGet, "client?client="+name)
		want := "rl1:shop:api:{ip:2001%3Adb8%3A%3A/64}:60s:fw"
		if strings.HasSuffix(name, "192.0.2.7") {
			want = "rl1:shop:api:{ip:192.0.2.7}:60s:fw"
		}
		if counter := firstObject(t, answer, "counters"); status != 200 || counter["key"] != want {
			t.Errorf("%s: %d %v, want the key %s", name, status, counter, want)
		}
	}
}

func TestAdminRejectsInvalidParameters(t *testing.T) {
	s := start(t, adminSite)
	for _, c := range []struct {
		method, path string
		status       int
		respondWith  string
	}{
		{method: http.MethodGet, path: "client", status: 400, respondWith: "write client=KIND:ID"},
		{method: http.MethodGet, path: "client?client=ip:nowhere", status: 400, respondWith: "is not an address"},
		{method: http.MethodGet, path: "reset?client=ip:127.0.0.1", status: 405, respondWith: "needs the method POST"},
		{method: http.MethodGet, path: "top?n=0", status: 400, respondWith: "is not a number from 1 to"},
		{method: http.MethodPost, path: "reset?client=ip:127.0.0.1&polcy=shop", status: 400, respondWith: `"polcy" is not a parameter`},
		{method: http.MethodPost, path: "reset?client=ip:127.0.0.1&rule=api&rule=everybody", status: 400, respondWith: "is listed twice"},
		{method: http.MethodPost, path: "reset?client=ip:127.0.0.1;rule=api", status: 400, respondWith: "cannot be read"},
		{method: http.MethodPost, path: "reset?client=ip:127.0.0.1&rule=apo", status: 404, respondWith: `a rule "apo"`},
		{method: http.MethodGet, path: "client?client=ip:127.0.0.1&policy=shap", status: 404, respondWith: `no policy "shap" is in force; there are: ["shop"]`},
		{method: http.MethodGet, path: "client?client=ip:127.0.0.1&policy=shop&rule=apo", status: 404, respondWith: `the policy "shop" has no rule "apo"`},
		{method: http.MethodGet, path: "client?client=usr:ann", status: 400, respondWith: "has an unknown kind; write user:ID"},
		{method: http.MethodGet, path: "client?client=header.:ann", status: 400, respondWith: "header.NAME:VALUE"},
		{method: http.MethodGet, path: "top?m=5", status: 400, respondWith: `"m" is not a parameter`},
		{method: http.MethodPost, path: "lift?client=ip:127.0.0.1&rule=api", status: 400, respondWith: "rule has no effect here"},
	} {
		status, answer := s.ask(c.method, c.path)
		if said, _ := answer["error"].(string); status != c.status || !strings.Contains(said, c.respondWith) {
			t.Errorf("%s %s: %d %v, want %d and %q", c.method, c.path, status, answer, c.status, c.respondWith)
		}
	}
}

// TestMetricsSurviveARejectedConfiguration: if Caddy rejects a configuration, because of Penstock's
// part or of another part, no metric of the running configuration is lost.
func TestMetricsSurviveARejectedConfiguration(t *testing.T) {
	s := start(t, adminSite)
	s.statuses(3, "/")
	const want = `penstock_requests_total{outcome="denied",policy="shop",rule="api"}`
	if !strings.Contains(s.metrics(), want) {
		t.Fatalf("the metrics lack %s:\n%s", want, s.metrics())
	}
	for _, rejected := range []struct{ path, body string }{
		{"apps/penstock", `{"rules":[{"name":"api","limit":"many"}]}`},
		{"apps/penstock", `{"store":{"type":"none"}}`},
		{"apps/tls", `{"certificates":{"load_files":[{"certificate":"/nowhere","key":"/nowhere"}]}}`},
	} {
		if status, answer := s.putConfig(rejected.path, rejected.body); status < 400 {
			t.Errorf("%s: %d %s, want that it is rejected", rejected.body, status, answer)
		}
		if !strings.Contains(s.metrics(), want) {
			t.Errorf("after %s was rejected, the metrics lack %s", rejected.body, want)
		}
	}
}

// putConfig replaces a part of the running configuration. putConfig returns the status and the body
// of the answer.
func (s *server) putConfig(path, body string) (status int, answer string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodPut, fmt.Sprintf("http://127.0.0.1:%d/config/%s", s.admin, path), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestBlockOfTheAppIsKnownToSites: the block of an app without rules names users that only one of
// the sites identifies. The block is in force in that site, and is not an error in the other site.
func TestBlockOfTheAppIsKnownToSites(t *testing.T) {
	const site = `{
	penstock {
		tier attr http.vars.tier
	}
}
:PORT {
	header >X-Rule {http.penstock.rule}
	handle /users* {
		penstock {
			identify header X-User unverified
			identify ip
			user header X-User unverified
			rule users 100/1m
		}
		respond "ok"
	}
	handle {
		penstock {
			rule others 100/1m
		}
		respond "ok"
	}
}`
	s := start(t, site)
	put := func(body string) (int, string) { return s.putConfig("apps/penstock/block", body) }

	if status, answer := put(`[{"tenant":"acme"}]`); status == 200 || !strings.Contains(answer, "block[0].tenant: can never be known") {
		t.Errorf("a tenant that no site knows: %d %s", status, answer)
	}
	if status, answer := put(`[{"user":"mallory"}]`); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if got := s.statuses(1, "/users", "X-User", "mallory"); got != "403" {
		t.Errorf("the blocked user: %s, want 403", got)
	}
	if got := s.get("/users", "X-User", "mallory").Header.Get("X-Rule"); got != "block[0]" {
		t.Errorf("the rule of a blocked request: %q, want block[0]", got)
	}
	if got := s.statuses(1, "/users", "X-User", "ann") + " " + s.statuses(1, "/", "X-User", "mallory"); got != "200 200" {
		t.Errorf("others: %s, want 200 200", got)
	}
}
