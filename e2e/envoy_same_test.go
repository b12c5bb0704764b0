// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/test/redistest"
)

const samePolicy = `name: shop
trusted_hops: 1
identify:
  - api_key: {keys_file: keys.toml, on_invalid: deny}
  - ip: {}
exempt: [{ip: 192.0.2.99, reason: a probe}]
block: [{ip: 192.0.2.66, reason: fraud}]
rules:
  - {name: api, match: {path: /api/*}, limit: [3/31d, 100/year], tiers: {business: [5/31d], enterprise: unlimited}}
  - {name: bucket, match: {path: /bucket}, limit: 2/31d burst 2}
  - {name: log, match: {path: /log}, limit: 2/31d sliding_log}
  - {name: hidden, per: [], match: {path: /hidden}, limit: 1/31d}
  - {name: tried, match: {path: /bucket}, limit: 1/31d, action: log_only}
  - {name: dear, match: {path: /dear}, limit: 5/31d, cost: [{match: {method: POST}, n: 3}, {n: 2}]}
  - name: own
    match: {path: /own}
    limit: 1/31d
    response: {status: 420, body: '{"slow": "down"}', content_type: application/vnd.shop+json, headers: {X-Plans: "https://shop.example/plans"}}
  - {name: said, match: {path: /said}, limit: 1/31d, response: {message: "Buy \"more\"."}, retry_after: 30s}
  - {name: closed, match: {path: /closed/**}, action: block}
  - {name: device, match: {path: /device}, per: ["header:X-Device"], unverified: true, missing: deny, limit: 1/31d}
  - {name: upstream, match: {path: /merged}, limit: 4/31d}
`

// same holds the requests, in the order in which they are sent.
var same = []struct {
	method, path, from string
	header             []string
}{
	{method: "GET", path: "/", from: "192.0.2.1"},
	{method: "GET", path: "/api/a", from: "192.0.2.1"},
	{method: "HEAD", path: "/api/a", from: "192.0.2.1"},
	{method: "GET", path: "/API//b/../c/", from: "192.0.2.1"},
	{method: "GET", path: "/api", from: "192.0.2.1"},
	{method: "HEAD", path: "/api/a", from: "192.0.2.1"},
	{method: "GET", path: "/api/a?x=1", from: "192.0.2.2, 192.0.2.1"},
	{method: "GET", path: "/api/a", from: "2001:db8::1"},
	{method: "GET", path: "/api/a", from: "2001:db8::2"},
	{method: "GET", path: "/api/a", from: "192.0.2.99"},
	{method: "GET", path: "/api/a", from: "192.0.2.66"},
	{method: "GET", path: "/api/a", header: []string{"X-API-Key", "try-business-2f6d0c1ab9"}},
	{method: "GET", path: "/api/a", header: []string{"Authorization", "Bearer try-business-2f6d0c1ab9"}},
	{method: "GET", path: "/api/a", header: []string{"X-API-Key", "nobody-knows"}},
	{method: "GET", path: "/api/a", header: []string{"X-API-Key", "try-revoked-0d9e8a7c6b"}},
	{method: "GET", path: "/", header: []string{"X-API-Key", "try-revoked-0d9e8a7c6b"}},
	{method: "GET", path: "/bucket", from: "192.0.2.3"},
	{method: "GET", path: "/bucket", from: "192.0.2.3"},
	{method: "GET", path: "/bucket", from: "192.0.2.3"},
	{method: "GET", path: "/log", from: "192.0.2.3"},
	{method: "GET", path: "/log", from: "192.0.2.3"},
	{method: "GET", path: "/log", from: "192.0.2.3"},
	{method: "GET", path: "/hidden", from: "192.0.2.3"},
	{method: "GET", path: "/hidden", from: "192.0.2.4"},
	{method: "POST", path: "/dear", from: "192.0.2.4"},
	{method: "GET", path: "/dear", from: "192.0.2.4"},
	{method: "GET", path: "/dear", from: "192.0.2.4"},
	{method: "GET", path: "/own", from: "192.0.2.4"},
	{method: "GET", path: "/own", from: "192.0.2.4"},
	{method: "GET", path: "/said", from: "192.0.2.4"},
	{method: "GET", path: "/said", from: "192.0.2.4"},
	{method: "GET", path: "/said", from: "192.0.2.4", header: []string{"Content-Type", "application/grpc"}},
	{method: "GET", path: "/closed/for/ever", from: "192.0.2.4"},
	{method: "GET", path: "/closed/", from: "192.0.2.4", header: []string{"Content-Type", "application/grpc+proto"}},
	{method: "GET", path: "/device", from: "192.0.2.4"},
	{method: "GET", path: "/device", from: "192.0.2.4", header: []string{"X-Device", "a"}},
	{method: "GET", path: "/device", from: "192.0.2.4", header: []string{"X-Device", "a"}},
	{method: "GET", path: "/device", from: "192.0.2.4", header: []string{"X-Device", "a", "X-Device", "b"}},
	{method: "GET", path: "/merged", from: "192.0.2.5"},
	{method: "GET", path: "/merged", from: "192.0.2.5"},
	{method: "GET", path: "/merged", from: "192.0.2.5"},
}

// serveOwnLimit is the handler of an upstream that has its own rate limit for /merged.
func serveOwnLimit(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if r.URL.Path == "/merged" {
		w.Header().Set("X-RateLimit-Limit", "10")
		w.Header().Set("X-RateLimit-Remaining", "2")
		w.Header().Set("X-RateLimit-Reset", "4000000000")
		w.Header().Set("RateLimit", `"theirs";r=2;t=60`)
		w.Header().Set("RateLimit-Policy", `"theirs";q=10;w=60`)
	}
	_, _ = io.WriteString(w, "ok")
}

// TestCaddyAndEnvoyAnswerAlike sends the same requests to Caddy and to Envoy, which have separate
// Redis servers. Status, header and body of the answers must be equal.
func TestCaddyAndEnvoyAnswerAlike(t *testing.T) {
	t.Parallel()
	keys, err := os.ReadFile("../examples/keys.toml")
	if err != nil {
		t.Fatal(err)
	}
	besideKeys := func(f *policyFile) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(f.path), "keys.toml"), keys, 0o600); err != nil {
			t.Fatal(err)
		}
		f.edit(samePolicy)
	}
	s := &site{set: longDeadline}
	e := useEnvoy(t, http.HandlerFunc(serveOwnLimit), s)
	b := newBridge(t, "", "--redis", redistest.Start(t).URL(), "--redis-timeout", "5s")
	b.listen = s.bridge
	besideKeys(b.policy)
	e.awaitPolicyLoad(t, func() { b.run(t) })
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	besideKeys(file)
	caddyfile := strings.Replace(editedCaddyfile, `respond "ok"`, "reverse_proxy "+startUpstream(t, http.HandlerFunc(serveOwnLimit)), 1)
	c := startCaddy(t, caddyfile, "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
	statuses := map[int]int{}
	for i, r := range same {
		header := r.header
		if r.from != "" {
			header = append([]string{"X-Forwarded-For", r.from}, header...)
		}
		byCaddy, byEnvoy := sameOf(t, c.address, r.method, r.path, header), sameOf(t, s.address, r.method, r.path, header)
		if diff := cmp.Diff(byCaddy, byEnvoy); diff != "" {
			t.Errorf("request %d, %s %s %q (-Caddy +Envoy):\n%s", i+1, r.method, r.path, header, diff)
		}
		statuses[byEnvoy.Status]++
	}
	for _, status := range []int{200, 401, 403, 420, 429} {
		if statuses[status] == 0 {
			t.Errorf("none of the requests was answered %d: %v", status, statuses)
		}
	}
}

// bareAnswer is an answer without times, and without the fields that are the proxy's own.
type bareAnswer struct {
	Status int
	Header map[string][]string
	Body   string
}

var (
	proxysOwn = regexp.MustCompile(`^(Date|Server|Via|Connection|Content-Length|X-Envoy-.*)$`)
	timed     = regexp.MustCompile(`(;t=|"retry_after":|again in |^)\d+( \w+\.)?`)
)

func sameOf(t *testing.T, address, method, path string, header []string) bareAnswer {
	t.Helper()
	request, err := http.NewRequest(method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := bareAnswer{response.StatusCode, map[string][]string{}, timed.ReplaceAllString(string(body), "${1}#")}
	for name, values := range response.Header {
		for _, value := range values {
			if name == "Retry-After" || name == "X-Ratelimit-Reset" || name == "Ratelimit" {
				value = timed.ReplaceAllString(value, "${1}#")
			}
			if !proxysOwn.MatchString(name) {
				got.Header[name] = append(got.Header[name], value)
			}
		}
	}
	return got
}
