// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/test/redistest"
)

// explainedHead is the beginning of a Caddyfile that trusts forwarded addresses.
const explainedHead = `	admin ADMIN
	servers {
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
	}
`

// explainedCaddy is a Caddy that counts in Redis. The command penstock explain must predict its
// decisions.
type explainedCaddy struct {
	*process
	t     *testing.T
	redis *redistest.Server
	// matchers is set if penstock directives in the Caddyfile have Caddy's matchers, which a policy
	// cannot express.
	matchers bool
	region   string // the region of the process, if the policy has regions
}

// request is a request that is first explained and then sent.
type request struct {
	method, path, host, ip string
	fields                 []string // header fields: each name is followed by its value
}

// explanation is the part of explain's output that the tests read.
type explanation struct {
	Rules []struct {
		Name   string
		Checks []struct {
			Key       string
			Remaining int64
		}
	}
	Decision struct {
		Outcome string
		Status  int
	}
}

func (e *explanation) keys() (keys []string) {
	for _, rule := range e.Rules {
		for _, check := range rule.Checks {
			keys = append(keys, check.Key)
		}
	}
	return keys
}

// explainedCaddy.explain runs penstock explain for a request under a policy file.
func (e *explainedCaddy) explain(file, name string, r request) (reported explanation) {
	e.t.Helper()
	args := []string{"explain", "--json", "--policy", file, "--redis", e.redis.URL(), "--method", r.method,
		"--path", r.path, "--host", r.host, "--ip", r.ip, "--remote", "127.0.0.1", "--header", "X-Forwarded-For: " + r.ip}
	if name != "" {
		args = append(args, "--name", name)
	}
	if e.region != "" {
		args = append(args, "--region", e.region)
	}
	for i := 0; i < len(r.fields); i += 2 {
		args = append(args, "--header", r.fields[i]+": "+r.fields[i+1])
	}
	penstock(e.t, args...).read(e.t, &reported)
	return reported
}

// explainedCaddy.send sends the request and returns the status of the answer.
func (e *explainedCaddy) send(r request) int {
	e.t.Helper()
	asked, err := http.NewRequestWithContext(e.t.Context(), r.method, "http://"+e.address+r.path, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	asked.Host = r.host
	asked.Header.Set("X-Forwarded-For", r.ip)
	for i := 0; i < len(r.fields); i += 2 {
		asked.Header.Set(r.fields[i], r.fields[i+1])
	}
	response, err := asking.Do(asked)
	if err != nil {
		e.t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// explainedCaddy.dump returns all counters in Redis by key, except for the sums of sliding logs.
func (e *explainedCaddy) dump() map[string]string {
	e.t.Helper()
	client, all := e.redis.Client(), map[string]string{}
	for _, key := range client.Keys(context.Background(), "rl1:[^~]*").Val() { // counters
		if !strings.HasSuffix(key, ":n") {
			all[key] = client.Dump(context.Background(), key).Val()
		}
	}
	return all
}

// explainedCaddy.compare explains a request under the policy files, sends it, and compares the
// predicted keys and status with the actual ones. It returns the number of keys.
func (e *explainedCaddy) compare(name string, r request, files ...string) int {
	e.t.Helper()
	want, status := e.predict(name, r, files)
	got := e.send(r)
	keys := []string{}
	for key := range e.dump() {
		keys = append(keys, key)
	}
	if got != max(status, http.StatusOK) {
		e.t.Errorf("%v: explain says %d, Caddy answers %d", r, status, got)
	}
	if status > 0 {
		want = []string{} // a denied request charges nothing
	}
	if e.matchers { // Caddy's matchers decide which of the rules apply
		want = slices.DeleteFunc(want, func(key string) bool { return !slices.Contains(keys, key) })
	}
	slices.Sort(want)
	slices.Sort(keys)
	if diff := cmp.Diff(want, keys); diff != "" {
		e.t.Errorf("%v under %v: keys of explain and of Redis (-explain +redis):\n%s", r, files, diff)
	}
	return len(keys)
}

// explainedCaddy.predict explains a request while Redis is empty, and checks that penstock explain
// writes nothing. If there are keys afterwards, the settlement of the previous request may have
// written them, so the method tries again. Keys that explain writes would appear each time.
func (e *explainedCaddy) predict(name string, r request, files []string) (keys []string, status int) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		e.redis.Client().FlushAll(context.Background())
		keys, status = []string{}, 0
		for _, file := range files {
			reported := e.explain(file, name, r)
			keys, status = append(keys, reported.keys()...), max(status, reported.Decision.Status)
		}
		left := e.dump()
		if len(left) == 0 {
			return keys, status
		}
		if time.Now().After(deadline) {
			e.t.Errorf("explain has written to Redis: %q", left)
			return keys, status
		}
	}
}

// TestExplainAgreesWithCaddy compares penstock explain with Caddy for every policy in the examples
// and for many kinds of requests.
func TestExplainAgreesWithCaddy(t *testing.T) {
	t.Parallel()
	folder, redis := t.TempDir(), redistest.Start(t)
	signs := newEC(t, "k1")
	issuer := newIssuer(t, signs)
	business := examplesFolder(t, folder, issuer)
	caddyfile := "{\n" + explainedHead + "\tpenstock {\n\t\tname examples\n\t\tstore redis " + redis.URL() + "\n\t\tpolicy FILE\n\t}\n}\n" +
		":SITE {\n\tpenstock\n\trespond \"ok\"\n}\n"
	requests := map[string][]request{
		"policy": {
			{"GET", "/api/search", "localhost", "192.0.2.7", nil},
			{"POST", "/api/files/a/b", "localhost", "2001:db8:1:2:3:4:5:6", nil},
			{"GET", "/v2/x/y", "acme.shop.example", "192.0.2.8", []string{"X-Api-Client", "c1"}},
			{"GET", "/", "localhost", "192.0.2.9", []string{"User-Agent", "ShopApp/3", "X-Device-Id", "d-1:{x}"}},
			{"GET", "/reports/2026", "localhost", "192.0.2.7", nil},
			{"GET", "/reports/2026", "localhost", "203.0.113.7", nil},
			{"GET", "/api/x", "localhost", "198.51.100.4", nil},
			{"GET", "/api/x", "localhost", "10.1.2.3", nil},
		},
		"tiers": {
			{"GET", "/v1/things", "localhost", "192.0.2.7", nil},
			{"GET", "/v1/ask", "localhost", "192.0.2.7", []string{"Authorization", "Bearer " + planToken(t, signs, "u 1", "business")}},
			{"GET", "/v1/ask", "localhost", "192.0.2.7", []string{"Authorization", "Bearer " + planToken(t, signs, "u-2", "enterprise")}},
			{"GET", "/v1/export", "localhost", "192.0.2.7", []string{"X-API-Key", business}},
			{"GET", "/v1/export", "localhost", "192.0.2.7", []string{"X-API-Key", "pk_nobody-has-this-key-0123456789"}},
			{"POST", "/login", "localhost", "192.0.2.7", nil},
			{"GET", "/v1/things", "localhost", "192.0.2.7", []string{"Authorization", "Bearer " + planToken(t, signs, "monitoring", "")}},
		},
	}
	var e *explainedCaddy
	keys := 0
	files, err := filepath.Glob(filepath.Join(folder, "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		kind, _, _ := strings.Cut(filepath.Base(file), ".")
		if requests[kind] == nil {
			continue
		}
		if out := penstock(t, "validate", file).mustSucceed(t); !strings.Contains(out, file+": valid") {
			t.Errorf("validate says %s", out)
		}
		if e == nil {
			e = &explainedCaddy{startCaddy(t, strings.ReplaceAll(caddyfile, "FILE", file), "TOKEN_SECRET="+tokenSecret), t, redis, false, ""}
		} else if e.write(strings.ReplaceAll(caddyfile, "FILE", file)); e.reload() != nil {
			t.Fatalf("%s: %v", file, e.reload())
		}
		for _, r := range requests[kind] {
			keys += e.compare("", r, file)
		}
	}
	if want := 3 * (len(requests["policy"]) + len(requests["tiers"])); keys < want {
		t.Errorf("%d keys were compared, want at least %d", keys, want)
	}
	e.explainCharged(filepath.Join(folder, "policy.yaml"), requests["policy"][0])
}

// explainCharged checks that penstock explain shows the charges of counters and does not change
// them.
func (e *explainedCaddy) explainCharged(file string, r request) {
	e.t.Helper()
	fresh := e.explain(file, "", r)
	e.write(strings.ReplaceAll(e.read(), "tiers.yaml", "policy.yaml"))
	if err := e.reload(); err != nil {
		e.t.Fatal(err)
	}
	e.compare("", r, file)
	before := e.dump()
	charged := e.explain(file, "", r)
	if diff := cmp.Diff(before, e.dump()); diff != "" {
		e.t.Errorf("explain has changed what is in Redis:\n%s", diff)
	}
	for i, rule := range fresh.Rules {
		for j, check := range rule.Checks {
			if strings.Contains(check.Key, ":1s:") {
				continue // the window may have ended since the charge
			}
			if got := charged.Rules[i].Checks[j].Remaining; got >= check.Remaining {
				e.t.Errorf("%s: %d left of the fresh counter, %d of the charged one", check.Key, check.Remaining, got)
			}
		}
	}
}

// process.read returns the Caddyfile.
func (p *process) read() string {
	p.t.Helper()
	text, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// examplesFolder fills a folder with the policies of the examples and the files of keys that they
// name. In the policies, only the address of the issuer is changed. It returns an API key of the
// tier business.
func examplesFolder(t *testing.T, folder string, i *issuer) (business string) {
	t.Helper()
	files, err := filepath.Glob("../examples/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Replace(string(text), "https://id.shop.example/keys", "http://"+i.address+"/keys", 1)
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := penstock(t, "hash-key", "acme-prod", "--tier", "business", "--tenant", "acme-corp", "--limit", "export=9/1s burst 9")
	if err := os.WriteFile(filepath.Join(folder, "keys.toml"), []byte(made.out), 0o600); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`pk_\S+`).FindString(made.diagnostics)
}

// planToken returns a token for the shop of the examples, with the given user and plan.
func planToken(t *testing.T, s *signer, user, plan string) string {
	t.Helper()
	token := jwt.NewWithClaims(s.method, jwt.MapClaims{"sub": user, "iss": "https://id.shop.example", "aud": "shop-api",
		"plan": plan, "org": map[string]string{"id": "org " + user}, "exp": time.Now().Add(time.Hour).Unix()})
	token.Header["kid"] = s.Name
	text, err := token.SignedString(s.Signer)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestExplainOfRulesReportedByCaddy tests that the rules which a running Caddy reports form a
// policy file that penstock explain and penstock validate can read.
func TestExplainOfRulesReportedByCaddy(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../examples/*addyfile")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			redis := redistest.Start(t)
			grantDocumentedRights(t, redis)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			e := &explainedCaddy{startCaddy(t, overRedis(string(text), redis), "REDIS_PASSWORD=secret"), t, redis,
				strings.Contains(string(text), "penstock @"), ""}
			var reported struct {
				Policies []struct {
					Name   string
					Policy json.RawMessage
				}
			}
			penstock(t, "rules", "--json", "--admin", e.admin).read(t, &reported)
			var policies []string
			for i, p := range reported.Policies {
				policies = append(policies, filepath.Join(t.TempDir(), fmt.Sprintf("%d.json", i)))
				if err := os.WriteFile(policies[i], p.Policy, 0o600); err != nil {
					t.Fatal(err)
				}
				penstock(t, "validate", policies[i]).mustSucceed(t)
			}
			keys := 0
			for _, r := range []request{
				{method: "GET", path: "/", host: "localhost", ip: "192.0.2.7"},
				{method: "GET", path: "/api/search", host: "localhost", ip: "192.0.2.7"},
				{method: "PUT", path: "/upload", host: "localhost", ip: "2001:db8::1", fields: []string{"X-Size", "large"}},
				{method: "GET", path: "/.git/config", host: "localhost", ip: "192.0.2.7"},
			} {
				keys += e.compare("", r, policies...)
			}
			if keys < 4 {
				t.Errorf("%d keys were compared", keys)
			}
		})
	}
}

// grantDocumentedRights creates the Redis user of the example, with exactly the rights that
// docs/guides/redis.md names.
func grantDocumentedRights(t *testing.T, redis *redistest.Server) {
	t.Helper()
	text, err := os.ReadFile("../docs/guides/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER limiter .*>PASSWORD .*$`).FindString(string(text))
	var words []any
	for _, word := range strings.Fields(strings.NewReplacer("limiter", "penstock", "PASSWORD", "secret").Replace(line)) {
		words = append(words, word)
	}
	if err := redis.Client().Do(context.Background(), words...).Err(); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// overRedis returns the Caddyfile of an example, changed to keep its counters in the given Redis
// and to use the test's port.
func overRedis(text string, redis *redistest.Server) string {
	text = strings.Replace(text, ":8080 {", ":SITE {", 1)
	switch {
	case strings.Contains(text, "redis://localhost:6379/0"):
		text = strings.Replace(text, "redis://localhost:6379/0", redis.URL(), 1)
		return strings.Replace(text, "{\n\tpenstock {", "{\n"+explainedHead+"\tpenstock {", 1)
	case strings.Contains(text, "\t\tname shop\n"):
		return strings.Replace(text, "{\n\tpenstock {\n", "{\n"+explainedHead+"\tpenstock {\n\t\tstore redis "+redis.URL()+"\n", 1)
	}
	return "{\n" + explainedHead + "\tpenstock {\n\t\tname examples\n\t\tstore redis " + redis.URL() + "\n\t}\n}\n" + text
}
