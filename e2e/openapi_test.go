// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// describedPolicy has a rule for each kind of answer.
const describedPolicy = `name: described
identify: [{api_key: {keys_file: keys.toml, on_invalid: deny}}, ip]
events: {}
penalty: {threshold: 100}
rules:
  - {name: limited, match: {path: /limited}, limit: [1/1h, 5/1d]}
  - {name: blocked, match: {path: /blocked}, action: block}
  - {name: long, match: {path: /long, header: {X-Long: "a*"}}, limit: 10/1h}
`

// TestAnswersAreAsDescribed compares real answers of Caddy, Caddy's admin endpoint and the bridge
// with docs/reference/openapi.yaml. The test fails if an answer differs from its description, or if
// a described answer was never seen.
func TestAnswersAreAsDescribed(t *testing.T) {
	d := readDescription(t)
	folder := t.TempDir()
	policy := filepath.Join(folder, "policy.yaml")
	writeFile(t, policy, describedPolicy)
	writeFile(t, filepath.Join(folder, "keys.toml"), "keys = []\n")
	p := startCaddy(t, "{\n"+explainedHead+"\tpenstock {\n\t\tdirectory\n\t\tpolicy "+policy+"\n\t}\n}\n:SITE {\n\tpenstock_status /quota\n\tpenstock\n\trespond \"ok\"\n}\n")
	d.describesSite(p)
	d.describesEdits(p)
	d.describesKeys(p)
	d.describesEvents(p)
	d.describesAdmin(p, policy)
	d.describesOutage(t)
	d.describesBridge(t)
	d.describesRoutes()
	d.describesNothingElse()
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d *description) describesSite(p *process) {
	site, path := "http://"+p.address, "/{path}"
	d.answers(path, d.request("GET", site+"/limited", nil), 200)
	d.answers(path, d.request("GET", site+"/limited", nil), 429)
	d.answers(path, d.request("GET", site+"/blocked", nil), 403)
	d.answers(path, d.request("GET", site+"/limited", http.Header{"X-Api-Key": {"nobody-has-this-key"}}), 401)
	d.answers(path, d.request("GET", site+"/"+strings.Repeat("a", 8192), nil), 414)
	d.answers(path, d.request("GET", site+"/long", http.Header{"X-Long": {strings.Repeat("a", 8193)}}), 431)
	d.answers(path, d.rawRequest(p.address, "GET x:http://h/limited HTTP/1.1\r\nHost: h\r\n\r\n"), 400)
	d.answers("/quota", d.request("GET", site+"/quota", nil), 200)
	d.answers("/quota", d.request("GET", site+"/quota", http.Header{"X-Api-Key": {"nobody-has-this-key"}}), 401)
	d.answers("/quota", d.floodsQuota(p.address), 429)
}

func (d *description) describesAdmin(p *process, policy string) {
	ask := func(method, path, query string, status int) {
		d.answers("/penstock/"+path, d.request(method, "http://"+p.admin+"/penstock/"+path+query, nil), status)
	}
	const client = "?client=ip:127.0.0.1"
	ask("GET", "rules", "", 200)
	ask("GET", "client", client, 200)
	ask("GET", "client", "?client=nobody", 400)
	ask("GET", "client", client+"&rule=none", 404)
	ask("POST", "reset", client, 200)
	d.answersMethod("post", "/penstock/reset", d.request("GET", "http://"+p.admin+"/penstock/reset"+client, nil), 405)
	ask("POST", "lift", client, 200)
	ask("GET", "top", "", 200)
	ask("GET", "top", "?n=0", 400)
	penstock(d.t, "client", "block", "ip:192.0.2.7", "--reason", "a test", "--admin", p.admin).mustSucceed(d.t)
	ask("GET", "records", "", 200)
	ask("GET", "records", "?n=1001", 400)
	ask("GET", "records", "?kind=nobody", 422)
	ask("GET", "nodes", "", 200)
	ask("GET", "nodes", "?scope=all", 400)
	ask("POST", "reload", "", 200)
	writeFile(d.t, policy, "rules: []\n")
	ask("POST", "reload", "", 422)
}

// describesOutage compares the answers of a Caddy whose Redis does not exist with the document.
func (d *description) describesOutage(t *testing.T) {
	p := startCaddy(t, "{\n"+explainedHead+"\tpenstock {\n\t\tdirectory\n\t\tname away\n\t\tstore redis redis://"+freeport.Address(t)+
		"\n\t\ton_error deny\n\t}\n}\n:SITE {\n\tpenstock_status /quota\n\tpenstock 1/1h\n\trespond \"ok\"\n}\n")
	d.answers("/{path}", d.request("GET", "http://"+p.address+"/", nil), 503)
	d.answers("/quota", d.request("GET", "http://"+p.address+"/quota", nil), 503)
	ask := d.comparePost("http://" + p.admin)
	ask("/penstock/edit", `{"client":"user:ann","action":"block","actor":"ops","reason":"abuse"}`, 503)
	d.answers("/penstock/record", d.request("GET", "http://"+p.admin+"/penstock/record", nil), 503)
}

func (d *description) describesBridge(t *testing.T) {
	listen := freeport.Address(t)
	b := newBridge(t, "name: shop\nrules: [{name: all, limit: 1/1h}]\n", "--listen", listen, "--token", "six-teen-letters")
	b.runAt(t, "tcp", listen)
	bearer := http.Header{"Authorization": {"Bearer six-teen-letters"}}
	check := func(body string, header http.Header, status int) {
		r, err := http.NewRequest("POST", "http://"+listen+"/v1/check", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		d.answers("/v1/check", d.do(r), status)
	}
	const ask = `{"path":"/x","ip":"192.0.2.7"}`
	check(ask, bearer, 200)
	check(ask, bearer, 200) // denied
	check(`{"pathh":"/x"}`, bearer, 400)
	check(ask, http.Header{}, 401)
	own := http.Header{"X-Penstock-Peer": {"192.0.2.8:4711"}, "X-Penstock-Token": {"six-teen-letters"}}
	d.answers("/v1/status", d.request("GET", "http://"+listen+"/v1/status", own), 200)
	d.answers("/v1/status", d.request("GET", "http://"+listen+"/v1/status", http.Header{"X-Penstock-Token": own["X-Penstock-Token"]}), 400)
	d.answers("/v1/status", d.request("GET", "http://"+listen+"/v1/status", nil), 401)
	get := func(path string, header http.Header, status int) reply {
		r := d.request("GET", "http://"+listen+path, header)
		d.answers(path, r, status)
		return r
	}
	now := get("/v1/policy", bearer, 200)
	get("/v1/policy", http.Header{"Authorization": bearer["Authorization"], "If-None-Match": now.Header["Etag"]}, 304)
	get("/v1/policy", nil, 401)
	get("/metrics", bearer, 200)
	get("/metrics", nil, 401)
	get("/healthz", nil, 200)
	get("/readyz", nil, 200)

	away := freeport.Address(t)
	b = newBridge(t, "name: shop\nrules: [{name: all, limit: 1/1h}]\n", "--listen", away, "--redis", "redis://"+freeport.Address(t))
	b.runAt(t, "tcp", away)
	d.answers("/readyz", d.request("GET", "http://"+away+"/readyz", nil), 503)
}

// comparePost returns a function that sends a POST and compares the answer with the document. If
// the expected status is 200, the function also compares the body of the request.
func (d *description) comparePost(server string) func(path, body string, status int) {
	return func(path, body string, status int) {
		d.t.Helper()
		if status == http.StatusOK {
			var value any
			if err := json.Unmarshal([]byte(body), &value); err != nil {
				d.t.Fatalf("%s: %v", body, err)
			}
			d.holds("the body of "+path, d.at("paths", path, "post", "requestBody", "content", "application/json", "schema"), value)
		}
		r, err := http.NewRequest("POST", server+path, strings.NewReader(body))
		if err != nil {
			d.t.Fatal(err)
		}
		d.answers(path, d.do(r), status)
	}
}

// aHash is the SHA-256 hash of an API key.
const aHash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

// describesEdits changes the record of a client in every way, imports records, and compares the
// answers with the document.
func (d *description) describesEdits(p *process) {
	post := d.comparePost("http://" + p.admin)
	get := func(path, query string, status int) {
		d.t.Helper()
		d.answers(path, d.request("GET", "http://"+p.admin+path+query, nil), status)
	}
	const client, why = `{"client":"ip:192.0.2.9","action":`, `,"actor":"ops","reason":"a test"}`
	for _, edit := range []string{`"set-tenant","tenant":"t_1"`, `"set-limit","rule":"limited","limits":["7/1h"],"until":"2100-01-01T00:00:00Z"`,
		`"block","until":"2100-01-01T00:00:00Z"`, `"exempt"`, `"note","note":"call back"`, `"unblock"`, `"unset-limit","rule":"limited"`, `"unset-tier"`} {
		post("/penstock/edit", client+edit+why, 200)
	}
	get("/penstock/record", "?client=ip:192.0.2.9&n=5", 200)
	get("/penstock/record", "", 200)
	get("/penstock/record", "?n=0", 400)
	get("/penstock/record", "?client=nobody", 422)
	post("/penstock/edit", client+`"forget"`+why, 200)
	post("/penstock/edit", client, 400)
	post("/penstock/edit", client+`"block"}`, 422)
	d.answersMethod("post", "/penstock/edit", d.request("GET", "http://"+p.admin+"/penstock/edit", nil), 405)
	const lines = `{"lines":[{"client":"user:ann","record":{"tier":"old","block":{"reason":"abuse"}}},{"key":"` + aHash +
		`","record":{"name":"old","client":"user:ann","limits":{"*":["5/1h"]}}}]`
	post("/penstock/import", lines+`,"check":true`+why, 200)
	post("/penstock/import", lines+`,"last":true`+why, 200)
	post("/penstock/import", strings.Replace(lines, "abuse", "another", 1)+why, 200) // the record has a problem
	post("/penstock/import", lines, 400)
	post("/penstock/import", lines+"}", 422)
}

// describesKeys changes API keys, and compares the answers with the document.
func (d *description) describesKeys(p *process) {
	post := d.comparePost("http://" + p.admin)
	get := func(query string, status int) {
		d.t.Helper()
		d.answers("/penstock/keys", d.request("GET", "http://"+p.admin+"/penstock/keys"+query, nil), status)
	}
	const why = `,"name":"acme","actor":"ops","reason":"a test"}`
	post("/penstock/key", `{"action":"create","hash":"`+strings.Replace(aHash, "9", "8", 1)+`","record":{"name":"acme","client":"api_key:acme","expires_at":"2100-01-01T00:00:00Z"}`+why, 200)
	post("/penstock/key", `{"action":"rotate","hash":"`+strings.Replace(aHash, "9", "7", 1)+`","until":"2090-01-01T00:00:00Z"`+why, 200)
	post("/penstock/key", `{"action":"disable"`+why, 200)
	post("/penstock/key", `{"action":"revoke","hash":"8"`+why, 200)
	post("/penstock/key", `{"action":"forget"`+why, 200)
	post("/penstock/key", `{`, 400)
	post("/penstock/key", `{"action":"enable","name":"nobody","actor":"ops","reason":"a test"}`, 404)
	post("/penstock/key", `{"action":"rename"`+why, 422)
	get("?name=acme", 200)
	get("?n=1", 200)
	get("?n=0", 400)
	get("?name=nobody", 404)
	get("?client=ip:192.0.2.7", 422)
}

// describesEvents reads the events of the previous denials, and compares the answers with the
// document.
func (d *description) describesEvents(p *process) {
	get := func(query string, status int) reply {
		r := d.request("GET", "http://"+p.admin+"/penstock/events"+query, nil)
		d.answers("/penstock/events", r, status)
		return r
	}
	eventually.Until(d.t, patience, "the denials are events", func() bool {
		return strings.Contains(get("?client=ip:127.0.0.1&rule=limited&scope=node", 200).body, `"limit":"1/1h"`)
	})
	get("?rule=none", 200)
	get("?after=nowhere", 400)
	get("?client=nobody", 422)
}

// reply is an answer, with the method of the request and the body of the answer.
type reply struct {
	*http.Response
	method, body string
}

func (d *description) request(method, url string, header http.Header) reply {
	d.t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	return d.do(r)
}

func (d *description) do(r *http.Request) reply {
	d.t.Helper()
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.read(r.Method, response)
}

// rawRequest sends a request that net/http's client would not send.
func (d *description) rawRequest(address, text string) reply {
	d.t.Helper()
	connection, err := net.Dial("tcp", address)
	if err != nil {
		d.t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, text); err != nil {
		d.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.read("GET", response)
}

// floodsQuota sends requests for the client's limits over one connection until the status of an
// answer is not 200. It returns that answer.
func (d *description) floodsQuota(address string) (r reply) {
	d.t.Helper()
	const requests = 1000
	connection, err := net.Dial("tcp", address)
	if err != nil {
		d.t.Fatal(err)
	}
	defer connection.Close()
	go func() {
		_, _ = io.WriteString(connection, strings.Repeat("GET /quota HTTP/1.1\r\nHost: h\r\n\r\n", requests))
	}()
	answers := bufio.NewReader(connection)
	for i := 0; i < requests && (i == 0 || r.StatusCode == 200); i++ {
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			d.t.Fatal(err)
		}
		r = d.read("GET", response)
	}
	return r
}

func (d *description) read(method string, response *http.Response) reply {
	d.t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return reply{response, strings.ToLower(method), string(body)}
}

// description.answers compares an answer with the description of its path, method and status.
func (d *description) answers(path string, r reply, status int) {
	d.t.Helper()
	d.answersMethod(r.method, path, r, status)
}

func (d *description) answersMethod(method, path string, r reply, status int) {
	d.t.Helper()
	where := fmt.Sprintf("%s %s %d", method, path, status)
	if r.StatusCode != status {
		d.t.Errorf("%s: answered %d %s", where, r.StatusCode, r.body)
		return
	}
	d.seen[where] = true
	described := d.resolve(d.at("paths", path, method, "responses", fmt.Sprint(status)))
	headers, _ := described["headers"].(map[string]any)
	for _, name := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
		"X-RateLimit-Cost", "Retry-After"} {
		value := r.Header.Get(name)
		header, known := headers[name].(map[string]any)
		switch {
		case value != "" && !known:
			d.t.Errorf("%s: %s: %s is not described", where, name, value)
		case value != "":
			d.holds(where+" "+name, d.resolve(header)["schema"], value)
		}
	}
	content, _ := described["content"].(map[string]any)
	media, known := content[r.Header.Get("Content-Type")].(map[string]any)
	switch {
	case content == nil:
	case !known:
		d.t.Errorf("%s: the type %q is not described", where, r.Header.Get("Content-Type"))
	case strings.Contains(r.Header.Get("Content-Type"), "json"):
		var body any
		if err := json.Unmarshal([]byte(r.body), &body); err != nil {
			d.t.Errorf("%s: %v in %s", where, err, r.body)
		}
		d.holds(where, media["schema"], body)
	}
}
