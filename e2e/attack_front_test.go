// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// The names of the fronts, for the table of attacks.
const (
	caddyMemory   = "Caddy in memory"
	caddyRedis    = "Caddy over Redis"
	envoyFilter   = "Envoy filter"
	envoyModule   = "Envoy native module"
	envoyRLS      = "Envoy rate limit service"
	bridgeJSON    = "bridge by JSON"
	bareCaddy     = "bare Caddy"
	bareEnvoy     = "bare Envoy"
	caddyHostile  = "Caddy over a hostile Redis"
	filterHostile = "Envoy filter over a hostile Redis"
)

// limiters lists the fronts against which an attack runs by default.
var limiters = []string{caddyMemory, caddyRedis, envoyFilter, envoyModule, envoyRLS, bridgeJSON}

// settling lists the limiters that see responses.
var settling = []string{caddyMemory, caddyRedis, envoyFilter, envoyModule}

// front is a proxy under attack, with the processes of which it consists.
type front struct {
	name    string
	address string // serves HTTP/1.1 and HTTP/2 without TLS
	strict  string // the address of a site under strictPolicy; "" if there is none
	quic    string // serves HTTP/3; "" if no address does
	bare    bool   // the proxy has no limiter; it shows how a proxy behaves under load without one
	parts   map[string]*server
	hostile *hostileRedis // the proxy in front of Redis; nil if there is none
}

// front.resident returns the resident memory of each process, in KB.
func (f *front) resident() map[string]int {
	all := map[string]int{}
	for name, s := range f.parts {
		all[name] = residentOf(s.command.Process.Pid)
	}
	return all
}

// endedProcesses returns the names of the processes that have ended.
func (f *front) endedProcesses() (names []string) {
	for name, s := range f.parts {
		select {
		case <-s.done:
			names = append(names, name)
		default:
		}
	}
	return names
}

// readLogs returns the logs of the processes in which Penstock runs. An Envoy with the filter is
// left out.
func (f *front) readLogs() string {
	var text strings.Builder
	for _, name := range []string{"Caddy", "bridge", moduleProcess} {
		if s := f.parts[name]; s != nil {
			text.WriteString(s.log.String())
		}
	}
	return text.String()
}

func growth(before, after map[string]int) map[string]int {
	grown := map[string]int{}
	for name, kb := range after {
		grown[name] = kb - before[name]
	}
	return grown
}

// attackPolicy is the policy of the fronts. Its windows are so long that none ends during the test.
// SETTLED is replaced by the rules that Envoy's rate limit protocol cannot enforce.
const attackPolicy = `name: attack
identify:
  - jwt: {jwks_file: "KEYSET", issuer: login, audience: shop}
  - api_key: {keys_file: "KEYS", header: X-API-Key}
  - ip
rules:
  - {name: beside, match: {path: /beside}, limit: 100000000/31d fixed_window}
  - {name: each, match: {path: /each}, limit: 5/31d fixed_window}
  - {name: admin, match: {path: /admin/*}, limit: 3/31d fixed_window}
  - {name: deep, match: {path: "/**/deep/**/end/**"}, limit: 3/31d fixed_window}
  - {name: host, match: {path: /host, host: [limited.example, "*.limited.example"]}, limit: 3/31d fixed_window}
  - {name: post, match: {path: /post, method: POST}, limit: 3/31d fixed_window}
  - {name: get, match: {path: /get, method: GET}, limit: 3/31d fixed_window}
  - {name: keyed, match: {path: /keyed}, per: ["header:X-Id"], unverified: true, limit: 3/31d fixed_window}
  - {name: agent, match: {path: /agent, header: {User-Agent: ["*"]}}, limit: 3/31d fixed_window}
  - {name: shut, match: {path: /shut/*}, action: block}
SETTLED`

const settledRules = `  - {name: refund, match: {path: /refund}, limit: 5/31d fixed_window, refund_on: {status: [4xx, 5xx]}}
  - {name: counted, match: {path: /count}, limit: 5/31d fixed_window, count_if: {status: [401, 403]}}
  - {name: cost, match: {path: /cost}, limit: 10000/31d fixed_window, cost_after: {json: usage.total_tokens, estimate: 100, default: 100, max: 5000}}
  - {name: odd, match: {path: /odd/*}, limit: 5/31d fixed_window, cost_after: {header: X-Cost, estimate: 1, max: 10}}
  - {name: expand, match: {path: /expand}, limit: 60/31d fixed_window, cost_after: {json: usage.total_tokens, estimate: 1, max: 1}}
`

// strictPolicy denies invalid tokens, and takes the client's address from the field that a trusted
// proxy in front adds.
const strictPolicy = `name: strict
trusted_hops: 1
identify:
  - jwt: {jwks_file: "KEYSET", issuer: login, audience: shop, on_invalid: deny}
  - ip
rules:
  - {name: each, match: {path: /each}, limit: 5/31d fixed_window}
`

// attackFiles holds the policies of the fronts. They name key files and key sets in the test's
// folder.
type attackFiles struct{ policy, descriptors, strict string }

func writeAttackFiles(t testing.TB) (texts attackFiles) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	keys := map[string]string{} // one key for each ID that a row can have
	for n := range 2_000 {
		keys[fmt.Sprint("id-", n)] = ""
	}
	files := strings.NewReplacer("KEYSET", write("keyset.json", attackKeySet(t)), "KEYS", newKeysFile(t, keys).path)
	return attackFiles{policy: files.Replace(strings.Replace(attackPolicy, "SETTLED", settledRules, 1)),
		descriptors: files.Replace(strings.Replace(attackPolicy, "SETTLED", "", 1)), strict: files.Replace(strictPolicy)}
}

// attackCaddyfile is the configuration of a Caddy. STORE is replaced by the configuration of its
// store.
const attackCaddyfile = `{
	admin ADMIN
	skip_install_trust
	auto_https disable_redirects
	servers {
		protocols h1 h2 h2c h3
	}
	STORE
}
http://:SITE, https://localhost:SECURE, https://limited.example:SECURE {
	tls internal
	POLICY
	reverse_proxy UPSTREAM
}
:STRICT {
	STRICT_POLICY
	reverse_proxy UPSTREAM
}
`

// startAttackedCaddy starts a Caddy with the given store. If store is "", the Caddy counts in
// memory.
func startAttackedCaddy(t testing.TB, name, store string, files attackFiles, up *countingUpstream) *front {
	t.Helper()
	f := &front{name: name, strict: freeport.Address(t), quic: freeport.Address(t)}
	dir := t.TempDir()
	policies := map[string]string{}
	for word, text := range map[string]string{"POLICY": files.policy, "STRICT_POLICY": files.strict} {
		file := filepath.Join(dir, word+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		policies[word] = "penstock {\n\t\tpolicy " + file + "\n\t}"
	}
	if store != "" {
		store = "penstock {\n\t\tstore redis " + store + "\n\t}"
	}
	if f.bare = name == bareCaddy; f.bare {
		policies = map[string]string{}
	}
	p := startCaddy(t, strings.NewReplacer("STRICT_POLICY", policies["STRICT_POLICY"], "STRICT", portOf(f.strict), "SECURE", portOf(f.quic), "STORE", store,
		"POLICY", policies["POLICY"], "UPSTREAM", up.address).Replace(attackCaddyfile))
	f.address, f.parts = p.address, map[string]*server{"Caddy": p.server}
	p.awaitListening(f.quic)
	p.awaitListening(f.strict)
	return f
}

// rlsTimeout is how long Envoy's own filter waits for the rate limit service. It is the value that
// docs/guides/envoy.md recommends. Envoy's default is 20 ms.
const rlsTimeout = "1s"

// descriptorFilter configures Envoy's own rate limit filter.
const descriptorFilter = `{name: envoy.filters.http.ratelimit, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: attack, timeout: ` + rlsTimeout + `, failure_mode_deny: true, status_on_error: {code: ServiceUnavailable},
  rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: RPC_CLUSTER}}}}}`

// descriptorRoutes forward every request. The rate limit service gets a descriptor with the fields
// that the policy matches.
const descriptorRoutes = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [{actions: [{remote_address: {}},
  {request_headers: {header_name: ":path", descriptor_key: path}}, {request_headers: {header_name: ":method", descriptor_key: method}},
  {request_headers: {header_name: ":authority", descriptor_key: host}},
  {request_headers: {header_name: user-agent, descriptor_key: user-agent, skip_if_absent: true}},
  {request_headers: {header_name: x-id, descriptor_key: x-id, skip_if_absent: true}},
  {request_headers: {header_name: x-api-key, descriptor_key: x-api-key, skip_if_absent: true}},
  {request_headers: {header_name: authorization, descriptor_key: authorization, skip_if_absent: true}}]}]}},`

// idleFilter is a filter that does nothing.
const idleFilter = `{name: envoy.filters.http.cors, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}`

// startAttackedEnvoys starts one Envoy that has a site for each of several fronts, and the bridges
// of these fronts.
func startAttackedEnvoys(t testing.TB, redis *redistest.Server, hostile *hostileRedis, files attackFiles, up *countingUpstream) []*front {
	t.Helper()
	plain, strict, hostileSite := &site{set: relaxedDeadline}, &site{set: relaxedDeadline}, &site{}
	service, bare := &site{filter: descriptorFilter, routes: descriptorRoutes}, &site{filter: idleFilter}
	quic := freeport.Address(t)
	e := startEnvoyWithQUIC(t, quic, up, plain, strict, hostileSite, service, bare)
	both := plain.startBridge(t, files.policy, "--redis", redis.URL())
	strict.startBridge(t, files.strict, "--redis", redis.URL())
	overHostile := hostileSite.startBridge(t, files.policy, "--redis", hostile.url())
	b := newBridge(t, files.descriptors, "--redis", redis.URL(), "--rls-listen", "unix:"+service.grpc)
	b.listen = service.bridge
	b.run(t)
	fronts := []*front{
		{name: envoyFilter, address: plain.address, strict: strict.address, quic: quic, parts: map[string]*server{"Envoy": e.server, "bridge": both.server}},
		{name: envoyRLS, address: service.address, parts: map[string]*server{"Envoy": e.server, "bridge": b.server}},
		{name: bridgeJSON, address: serveByJSON(t, both, up), parts: map[string]*server{"bridge": both.server}},
		{name: filterHostile, address: hostileSite.address, parts: map[string]*server{"Envoy": e.server, "bridge": overHostile.server}, hostile: hostile},
	}
	if *allAttacks {
		fronts = append(fronts, &front{name: bareEnvoy, address: bare.address, bare: true, parts: map[string]*server{"Envoy": e.server}})
	}
	for _, f := range fronts {
		eventually.Until(t, patience, f.name+" decides", func() bool {
			a, err := ask(http.DefaultClient, "http://"+f.address+otherClientPath, otherClientHeader, "1")
			return f.bare || err == nil && a.header.Get("X-RateLimit-Limit") != ""
		})
	}
	return fronts
}

// moduleProcess is the name of the process of Envoy with the native module.
const moduleProcess = "Envoy with the module"

// startAttackedModule starts an Envoy with the native module, which has the default timeouts.
func startAttackedModule(t testing.TB, redis *redistest.Server, files attackFiles, up *countingUpstream) *front {
	t.Helper()
	store := "store: {type: redis, url: \"" + redis.URL() + "\"}\n"
	plain, strict := &site{filter: moduleFilter(files.policy + store)}, &site{filter: moduleFilter(files.strict + store)}
	quic := freeport.Address(t)
	e := startEnvoyWithQUIC(t, quic, up, plain, strict)
	return &front{name: envoyModule, address: plain.address, strict: strict.address, quic: quic, parts: map[string]*server{moduleProcess: e.server}}
}

// startFronts starts every front that an attack may name.
func startFronts(t testing.TB, up *countingUpstream) (fronts []*front) {
	t.Helper()
	files, redis := writeAttackFiles(t), redistest.Start(t)
	hostile := startHostileRedis(t)
	fronts = append(fronts, startAttackedCaddy(t, caddyMemory, "", files, up),
		startAttackedCaddy(t, caddyRedis, redis.URL(), files, up))
	over := startAttackedCaddy(t, caddyHostile, hostile.url(), files, up)
	over.hostile = hostile
	fronts = append(fronts, over)
	if *allAttacks {
		fronts = append(fronts, startAttackedCaddy(t, bareCaddy, "", files, up))
	}
	fronts = append(fronts, startAttackedModule(t, redis, files, up))
	return append(fronts, startAttackedEnvoys(t, redis, hostile, files, up)...)
}

// serveByJSON starts a proxy that calls the bridge with JSON for each request. Users might write
// such a proxy.
func serveByJSON(t testing.TB, b *bridge, up *countingUpstream) (address string) {
	t.Helper()
	caller := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", b.listen)
	}}}
	t.Cleanup(caller.CloseIdleConnections)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: up.address})
	forward.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	return serveAt(t, "tcp", "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, header, err := askByJSON(caller, r)
		for name, value := range header {
			w.Header().Set(name, value)
		}
		if err != nil {
			status = http.StatusServiceUnavailable
		}
		if status != 0 {
			w.WriteHeader(status)
			return
		}
		forward.ServeHTTP(w, r)
	}))
}

// askByJSON asks the bridge about a request, and returns the status of the denial, or 0 if the
// request is allowed. If the bridge cannot read the request, askByJSON returns an error, and the
// proxy does not serve the request.
func askByJSON(caller *http.Client, r *http.Request) (status int, header map[string]string, err error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return 0, nil, err
	}
	question := struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Host    string            `json:"host"`
		IP      netip.Addr        `json:"ip"`
		Headers map[string]string `json:"headers,omitempty"`
	}{r.Method, r.URL.RequestURI(), r.Host, from.Addr(), map[string]string{}}
	for name, values := range r.Header {
		question.Headers[name] = strings.Join(values, ", ")
	}
	body, err := json.Marshal(question)
	if err != nil {
		return 0, nil, err
	}
	response, err := caller.Post("http://bridge/v1/check", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, nil, fmt.Errorf("the bridge answers %d: %s", response.StatusCode, text)
	}
	var reported struct {
		Outcome string            `json:"outcome"`
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
	}
	if err := json.NewDecoder(response.Body).Decode(&reported); err != nil {
		return 0, nil, err
	}
	return reported.Status, reported.Headers, nil
}
