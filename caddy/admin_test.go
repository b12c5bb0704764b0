// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// ask asks the admin endpoint and returns the status and the answer.
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

// first returns the first object in a list of the answer.
func first(t *testing.T, answer map[string]any, list string) map[string]any {
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

func TestAdminTellsAClientsCountersWithoutSpending(t *testing.T) {
	s := start(t, adminSite)
	s.get("/")
	for range 3 {
		status, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1")
		counter := first(t, answer, "counters")
		if status != 200 || counter["remaining"] != 1.0 || counter["rule"] != "api" ||
			counter["key"] != "rl1:shop:api:{ip:127.0.0.1}:60s:fw" {
			t.Fatalf("%d %v", status, answer)
		}
	}
	if got := s.statuses(2, "/"); got != "200 429" {
		t.Errorf("after looking: %s, want 200 429", got)
	}
}

// What is said of a client beside its name holds for every kind of client.
func TestAdminTakesWhatIsSaidOfAClient(t *testing.T) {
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

func TestAdminResetsAClientAndNobodyElse(t *testing.T) {
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
	if left := first(t, answer, "counters")["remaining"]; left != 96.0 {
		t.Errorf("the counter of everybody has %v left, want 96: it was not to be reset", left)
	}
}

func TestAdminShowsAndLiftsAPenalty(t *testing.T) {
	// The wait, and so the penalty, is as long whatever the time of day.
	s := start(t, strings.NewReplacer("threshold 2", "threshold 1", "2/1m fixed_window", "2/1m sliding_log").Replace(adminSite))
	s.statuses(3, "/")
	_, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1")
	if p := first(t, answer, "penalties"); p["in_force"] != true || p["violations"] != 1.0 || p["wait_ms"].(float64) <= 60_000 {
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

func TestAdminTellsTheRulesWithoutSecrets(t *testing.T) {
	s := start(t, strings.Replace(adminSite, "name shop", `name shop
		identify jwt {
			secret 0123456789abcdef0123456789abcdef
		}`, 1))
	status, answer := s.ask(http.MethodGet, "rules")
	text, _ := json.Marshal(answer)
	if p := first(t, answer, "policies"); status != 200 || p["name"] != "shop" || p["version"] == "" {
		t.Errorf("%d %s", status, text)
	}
	if strings.Contains(string(text), "0123456789abcdef") || !strings.Contains(string(text), "everybody") {
		t.Errorf("want the rules and no secret: %s", text)
	}
}

func TestAdminTellsWhoIsRefusedMost(t *testing.T) {
	s := start(t, strings.Replace(adminSite, "name shop", "name top-shop", 1))
	s.statuses(6, "/")
	status, answer := s.ask(http.MethodGet, "top?n=1000")
	for _, entry := range answer["clients"].([]any) {
		if e := entry.(map[string]any); e["policy"] == "top-shop" && e["client"] == "ip:127.0.0.1" && e["refused"].(float64) >= 4 {
			return
		}
	}
	t.Errorf("%d %v: want ip:127.0.0.1 with 4 refusals", status, answer)
}

// TestAdminKnowsClientsByTheNamesItGivesThem: the client of an IPv6 address is a prefix, and so it is named.
func TestAdminKnowsClientsByTheNamesItGivesThem(t *testing.T) {
	s := start(t, adminSite)
	for _, name := range []string{"ip:2001:db8::7", "ip:2001:db8::/64", "ip:::ffff:192.0.2.7", "ip:192.0.2.7"} {
		status, answer := s.ask(http.MethodGet, "client?client="+name)
		want := "rl1:shop:api:{ip:2001%3Adb8%3A%3A/64}:60s:fw"
		if strings.HasSuffix(name, "192.0.2.7") {
			want = "rl1:shop:api:{ip:192.0.2.7}:60s:fw"
		}
		if counter := first(t, answer, "counters"); status != 200 || counter["key"] != want {
			t.Errorf("%s: %d %v, want the key %s", name, status, counter, want)
		}
	}
}

func TestAdminRefusesWhatItCannotMean(t *testing.T) {
	s := start(t, adminSite)
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{http.MethodGet, "client", 400, "write client=KIND:ID"},
		{http.MethodGet, "client?client=ip:nowhere", 400, "is no address"},
		{http.MethodGet, "reset?client=ip:127.0.0.1", 405, "is asked with POST"},
		{http.MethodGet, "top?n=0", 400, "is no number from 1 to"},
		{http.MethodPost, "reset?client=ip:127.0.0.1&polcy=shop", 400, `"polcy" is no parameter`},
		{http.MethodPost, "reset?client=ip:127.0.0.1&rule=api&rule=everybody", 400, "stands there twice"},
		{http.MethodPost, "reset?client=ip:127.0.0.1;rule=api", 400, "cannot be read"},
		{http.MethodPost, "reset?client=ip:127.0.0.1&rule=apo", 404, `a rule "apo"`},
		{http.MethodGet, "client?client=ip:127.0.0.1&policy=shap", 404, `no policy "shap" is in force; there are: ["shop"]`},
		{http.MethodGet, "client?client=ip:127.0.0.1&policy=shop&rule=apo", 404, `the policy "shop" has no rule "apo"`},
		{http.MethodGet, "client?client=usr:ann", 400, "of no kind that there is; write user:ID"},
		{http.MethodGet, "client?client=header.:ann", 400, "header.NAME:VALUE"},
		{http.MethodGet, "top?m=5", 400, `"m" is no parameter`},
		{http.MethodPost, "lift?client=ip:127.0.0.1&rule=api", 400, "rule means nothing here"},
	} {
		status, answer := s.ask(c.method, c.path)
		if said, _ := answer["error"].(string); status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%s %s: %d %v, want %d and %q", c.method, c.path, status, answer, c.status, c.says)
		}
	}
}
