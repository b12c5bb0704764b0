// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

// api returns an API over the desk of the other tests, with a directory in memory.
func api(t testing.TB) *operator.API {
	t.Helper()
	desk, _ := desk(t)
	clients, err := directory.Open(directory.Options{Source: new(directory.Memory)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = clients.Close() })
	desk.Directory = clients
	return &operator.API{Desk: desk, Front: "Caddy", DirectoryRemedy: "write directory", Reload: func() error { return nil },
		Node: fleet.New(fleet.Sources{Front: "caddy", Denied: topk.New(topk.Options{}), Events: events.New(events.Options{}).Tail}, time.Now())}
}

// sendRequest sends a request to the API. sendRequest fails the test unless the answer is JSON.
func sendRequest(t testing.TB, a *operator.API, method, target, body string) (status int, answer map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	path, query, _ := strings.Cut(target, "?")
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.URL = &url.URL{Path: operator.Prefix + path, RawQuery: query}
	a.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Header().Get("Content-Type") != "application/json" ||
		w.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %q: %d %s: %v, %v", method, target, w.Code, w.Body, err, w.Header())
	}
	if allow := w.Header().Get("Allow"); (allow != "") != (w.Code == http.StatusMethodNotAllowed) {
		t.Errorf("%s %q: status %d with Allow %q", method, target, w.Code, allow)
	}
	return w.Code, answer
}

// hash is the SHA-256 of a key, and newKey the edit that creates this key.
const (
	hash   = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	newKey = `{"action":"create","name":"acme","hash":"` + hash + `","record":{"name":"acme","client":"api_key:acme"},"reason":"x","actor":"y"}`
)

// exchange is a request with the status of its answer and a part of its error.
type exchange struct {
	method, target, body string
	status               int
	says                 string
}

func answersClearly(t *testing.T, a *operator.API, all []exchange) {
	t.Helper()
	for _, c := range all {
		status, answer := sendRequest(t, a, c.method, c.target, c.body)
		text, _ := json.Marshal(answer["error"])
		if status != c.status || !strings.Contains(string(text), c.says) && !strings.Contains(fmt.Sprint(answer["error"]), c.says) {
			t.Errorf("%s %.60s: %d %.200s, want %d and %q", c.method, c.target, status, text, c.status, c.says)
		}
	}
}

func TestEventsAndImportsAnswerClearly(t *testing.T) {
	answersClearly(t, api(t), []exchange{
		{"GET", "events", "", 200, ""},
		{"GET", "events?client=ip:192.0.2.0/24&rule=own&scope=node", "", 200, ""},
		{"GET", "events?rule=apy", "", 200, ""},
		{"GET", "events?client=ann", "", 422, "has no form KIND:ID"},
		{"GET", "events?after=x", "", 400, "no place in the events"},
		{"GET", "events?scope=all", "", 400, "scope \"all\" is unknown"},
		{"GET", "events?after=a-1&wait=5", "", 400, "is not a number of seconds from 0 to 4"},
		{"GET", "events?wait=1", "", 400, "wait goes with after"},
		{"GET", "events?after=a-1&wait=0", "", 200, ""},
		{"GET", "events?follow=true", "", 400, "is not a parameter"},
		{"POST", "import", `{"actor":"ops","reason":"x","lines":[{"client":"user:cid","record":{"tier":"none"}}]}`, 200, ""},
		{"POST", "import", `{"actor":"ops","reason":"x","lines":[{"client":"user:cid","record":{"teir":"none"}}]}`, 200, ""},
		{"POST", "import", `{"actor":"ops","lines":[]}`, 422, "a reason is missing"},
		{"POST", "import", `{"actor":"ops","reason":"x","lines":[` + strings.Repeat(`{"record":{}},`, 300) + `{}]}`, 422, "301 records at once are more than 256"},
		{"POST", "import", `{"actor":"ops","reason":"x","linse":[]}`, 400, "unknown field"},
		{"POST", "import?replace=true", `{}`, 400, "is not a parameter"},
	})
}

func TestRoutesAnswerClearly(t *testing.T) {
	a := api(t)
	long := strings.Repeat("x", 70_000)
	answersClearly(t, a, []exchange{
		{"GET", "rules", "", 200, ""},
		{"GET", "client?client=ip:192.0.2.1", "", 200, ""},
		{"POST", "edit", `{"client":"user:ann","action":"block","reason":"abuse","actor":"ops"}`, 200, ""},
		{"GET", "record?client=user:ann", "", 200, ""},
		{"GET", "records?kind=user&blocked=true&n=1000", "", 200, ""},
		{"GET", "records?n=1001", "", 400, "is not a number from 1 to 1000"},
		{"GET", "records?blocked=yes", "", 400, "neither true nor false"},
		{"GET", "records?kind=usr", "", 422, "is unknown"},
		{"GET", "records?cursor=7", "", 400, "is not a parameter"},
		{"GET", "top", "", 200, ""},
		{"GET", "nodes", "", 200, ""},
		{"GET", "nodes?scope=node", "", 200, ""},
		{"GET", "nodes?scope=all", "", 400, "scope \"all\" is unknown"},
		{"POST", "nodes", "", 405, "needs the method GET"},
		{"POST", "reload", "", 200, ""},
		{"POST", "edit", "{\"client\":\"user:ann\xff\",\"action\":\"block\",\"reason\":\"abuse\",\"actor\":\"ops\"}", 400, "not UTF-8"},
		{"GET", "record?client=user:ann%FF", "", 422, "not UTF-8"},
		{"POST", "key", newKey, 200, ""},
		{"GET", "keys?name=acme", "", 200, ""},
		{"GET", "keys?after=a&n=1000", "", 200, ""},
		{"POST", "key", newKey, 422, "there is a key of the name"},
		{"POST", "key", strings.Replace(newKey, hash, "pk_a_key_itself_and_not_its_hash", 1), 422, "is not a SHA-256"},
		{"POST", "key", strings.Replace(newKey, `"client":`, `"tier":"golden","client":`, 1), 422, "golden"},
		{"POST", "key", strings.Replace(newKey, `"client":`, `"limits":{"apy":["1/1m"]},"client":`, 1), 422, "apy"},
		{"POST", "key", strings.Replace(newKey, `"create"`, `"renew"`, 1), 422, "is unknown"},
		{"POST", "key", `{"action":"revoke","name":"nobody","reason":"x","actor":"y"}`, 404, "there is no API key of the name"},
		{"POST", "key", newKey + "{}", 400, "data after the change"},
		{"GET", "keys?name=nobody", "", 404, "there is no API key of the name"},
		{"GET", "keys?n=1001", "", 400, "is not a number from 1 to"},
		{"GET", "keys?key=pk_x", "", 400, "is not a parameter"},
		{"GET", "", "", 404, "there is no route /penstock/; the routes are"},
		{"GET", "rules/", "", 404, "there is no route"},
		{"GET", "../rules", "", 404, "there is no route"},
		{"GET", "reset?client=ip:192.0.2.1", "", 405, "needs the method POST"},
		{"BREW", "rules", "", 405, "needs the method GET"},
		{"GET", "rules?policy=shop", "", 400, `"policy" is not a parameter`},
		{"GET", "client?client=" + long, "", 400, "16384 is the most"},
		{"GET", "events?rule=" + strings.Repeat("x", 513), "", 400, "has 513 bytes; 512 is the most"},
		{"GET", "top?n=-1", "", 400, "is not a number from 1 to"},
		{"GET", "record?n=100000", "", 400, "is not a number from 1 to"},
		{"POST", "edit", "", 400, "cannot be read"},
		{"POST", "edit", `{"client":"user:ann","bloc":1}`, 400, `unknown field \"bloc\"`},
		{"POST", "edit", `{"client":"user:ann","action":"block","reason":"x"}{}`, 400, "data after the change"},
		{"POST", "edit", `{"reason":"` + long + `"}`, 400, "has more than 65536 bytes"},
		{"POST", "edit", `{"client":"user:ann","action":"set-limit","rule":"apy","limits":["1/1m"],"reason":"x","actor":"y"}`, 422, "apy"},
		{"POST", "edit", `{"client":"user:ann","action":"block"}`, 422, "a reason is missing"},
		{"GET", "client?client=ip:192.0.2.1&policy=shap", "", 404, "no policy"},
		{"GET", "client?client=api_key:acme", "", 404, "identifies clients by ip"},
	})
	a.Desk.Directory = nil
	if status, answer := sendRequest(t, a, "GET", "record?client=user:ann", ""); status != 404 ||
		answer["error"] != "this Caddy has no directory of clients; write directory" {
		t.Errorf("without a directory: %d %v", status, answer)
	}
}

// TestADeskWithoutPoliciesHasTheDirectory: without policies, a desk can read the directory in
// Redis, but cannot determine which counters a client has.
func TestADeskWithoutPoliciesHasTheDirectory(t *testing.T) {
	a := api(t)
	a.Desk.Policies, a.Reload = nil, nil
	for target, want := range map[string]int{"rules": 400, "client?client=ip:192.0.2.1": 400, "record?client=ip:192.0.2.1": 200} {
		if status, answer := sendRequest(t, a, "GET", target, ""); status != want || want == 400 && !strings.Contains(fmt.Sprint(answer), "--policy") {
			t.Errorf("%s: %d %v, want %d", target, status, answer, want)
		}
	}
	for target, want := range map[string]int{"reset?client=ip:192.0.2.1": 400, "lift?client=ip:192.0.2.1": 400, "reload": 400} {
		if status, answer := sendRequest(t, a, "POST", target, ""); status != want {
			t.Errorf("%s: %d %v, want %d", target, status, answer, want)
		}
	}
	edit := `{"client":"user:ann","action":"set-tier","tier":"any","reason":"x","actor":"y"}`
	if status, answer := sendRequest(t, a, "POST", "edit", edit); status != 200 {
		t.Errorf("a tier, where no policy is known: %d %v", status, answer)
	}
}

// FuzzRoutes tests that no request makes a route panic, and that each is answered with JSON and a
// suitable status.
func FuzzRoutes(f *testing.F) {
	f.Add("GET", "client", "client=user:"+strings.Repeat("\xff", 255), "")
	f.Add("POST", "edit", "", `{"client":"ip:10.0.0.0/8","action":"block","reason":"x","actor":"y","until":"2100-01-01T00:00:00Z"}`)
	f.Add("POST", "edit", "", `{"client":"user:`+strings.Repeat("é", 127)+`","action":"note","note":"\u0000","reason":"x"}`)
	f.Add("GET", "record", "client=%zz&n=5", "")
	f.Add("POST", "reset", "client=header.X-User:a%00b&rule=own", "")
	f.Add("GET", "top", "n=1024", "")
	f.Add("POST", "key", "", newKey)
	f.Add("POST", "key", "", strings.Replace(newKey, "create", "rotate", 1))
	f.Add("GET", "keys", "after=%00%ff&n=7", "")
	f.Add("GET", "records", "after=%00%ff&n=7&kind=header.%2A&blocked=true", "")
	f.Add("GET", "events", "client=ip:2001:db8::/64&after=a-18446744073709551615,b-0", "")
	f.Add("GET", "events", "client=user:"+strings.Repeat("%00", 255)+"&rule=%ff&scope=node", "")
	f.Add("POST", "import", "", `{"actor":"y","reason":"x","replace":true,"last":true,"lines":[{"client":"ip:10.0.0.0/8","record":{"block":{}}},`+
		`{"key":"`+hash+`","record":{"name":"a","client":"user:a"}}]}`)
	f.Add("POST", "import", "", `{"actor":"y","reason":"x","check":true,"lines":[{"client":"user:a","record":null},{"client":"user:\u0000","record":{"v":2}},{}]}`)
	a := api(f)
	f.Fuzz(func(t *testing.T, method, name, query, body string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL = method, &url.URL{Path: operator.Prefix + name, RawQuery: query}
		a.ServeHTTP(w, r)
		switch {
		case !json.Valid(w.Body.Bytes()):
			t.Errorf("%d %q", w.Code, w.Body)
		case w.Code != 200 && w.Code != 400 && w.Code != 404 && w.Code != 405 && w.Code != 422:
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
	})
}
