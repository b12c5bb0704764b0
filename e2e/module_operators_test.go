// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// adminAt returns the line of a configuration that makes the module serve operators at an address.
func adminAt(address string) string { return "admin: {listen: \"" + address + "\"}\n" }

// scrapeAt returns the metrics at an address, or "" if no process listens there.
func scrapeAt(address string) string {
	a, err := ask(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+address+"/metrics")
	if err != nil {
		return ""
	}
	return a.body
}

// TestModuleServesOperatorsOnce tests that several configurations of the filter in one Envoy share
// one address for operators, which serves the metrics of all of them. If another Envoy process
// checks the same configuration, the running Envoy keeps the address.
func TestModuleServesOperatorsOnce(t *testing.T) {
	t.Parallel()
	address := freeport.Address(t)
	other := strings.Replace(threeADay, "shop", "other", 1)
	e, sites := startModule(t, module(t), nil, threeADay+adminAt(address), other+adminAt(address), strings.Replace(threeADay, "shop", "third", 1))
	for range 5 {
		for _, s := range sites {
			s.get(t, "/")
		}
	}
	metrics := scrapeAt(address)
	for _, policy := range []string{"shop", "other", "third"} {
		for _, want := range []string{
			`penstock_requests_total{outcome="allowed",policy="` + policy + `",rule="all"} 3`,
			`penstock_requests_total{outcome="denied",policy="` + policy + `",rule="all"} 2`,
			`penstock_limit_units{policy="` + policy + `",rule="all",tier="",window="2678400s"} 3`,
		} {
			if !strings.Contains(metrics, want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
	}
	if !strings.Contains(metrics, `penstock_node_info{front="module"`) || strings.Contains(metrics, "127.0.0.1") {
		t.Errorf("the metrics do not name the front, or name a client:\n%s", metrics)
	}
	var told rulesReport
	if penstock(t, "rules", "--json", "--bridge", "http://"+address).read(t, &told); len(told.Policies) != 3 {
		t.Errorf("operators see the policies %+v", told)
	}
	if out := penstock(t, "top", "--bridge", "http://"+address).mustSucceed(t); !strings.Contains(out, "ip:127.0.0.1") {
		t.Errorf("top: %s", out)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit((&envoy{admin: "127.0.0.1:0"}).configuration(t, "", "127.0.0.1:1",
		[]*site{{filter: moduleFilter(threeADay + adminAt(address))}}))
	checked := envoyCommand(t, file, "--mode", "validate")
	checked.Env = append(checked.Environ(), "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+filepath.Dir(module(t)))
	if out, err := checked.CombinedOutput(); err != nil || strings.Contains(string(out), "has the address") {
		t.Errorf("checking the configuration beside the running Envoy: %v\n%s", err, out)
	}
	if scrapeAt(address) == "" {
		t.Error("checking a configuration has ended the listener")
	}
	e.mustRun()
}

// TestModuleAdminAddressInUse tests an Envoy whose address for operators is in use by another
// process. Envoy starts and decides requests, and its log names the address. Operators are served
// as soon as the address is free.
func TestModuleAdminAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	e, sites := startModule(t, module(t), nil, threeADay+adminAt(address))
	if a := sites[0].get(t, "/"); a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
		t.Errorf("a request: %d %v", a.status, a.header)
	}
	if said := e.log.String(); !strings.Contains(said, "another process has the address of admin") || !strings.Contains(said, address) {
		t.Errorf("the log does not name the address:\n%s", e.tail())
	}
	taken.Close()
	eventually.Until(t, patience, "operators are served", func() bool { return strings.Contains(scrapeAt(address), "penstock_requests_total") })
}

// TestModuleAdminFollowsUpdates tests updates of the filter's configuration. Operators are always
// served at the address and with the token of the latest configuration. They are not served if that
// configuration has no admin section.
func TestModuleAdminFollowsUpdates(t *testing.T) {
	t.Parallel()
	redis, one, two := redistest.Start(t), freeport.Address(t), freeport.Address(t)
	guarded := func(token string) string { return fmt.Sprintf("admin: {listen: %q, token: %q}\n", one, token) }
	d := newDiscovered(t, "penstock", threeADay+adminAt(one)+inRedis(redis))
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, d.site)
	get := func(address, token string) int {
		r, err := http.NewRequest(http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
		if err != nil {
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	if status := get(one, ""); status != http.StatusOK {
		t.Errorf("the first configuration: %d", status)
	}
	const first, second = "a-token-of-the-test-1", "a-token-of-the-test-2"
	for _, step := range []struct {
		settings       string
		is             string
		atOne, atTwo   int
		token, another string
	}{
		{guarded(first), "a token", 200, 0, first, second},
		{guarded(second), "another token", 200, 0, second, first},
		{adminAt(two), "another address", 0, 200, "", ""},
		{"", "no address", 0, 0, "", ""},
		{adminAt(one), "an address again", 200, 0, "", ""},
	} {
		before := d.countLoaded()
		d.write(t, threeADay+step.settings+inRedis(redis))
		eventually.Until(t, patience, "Envoy has the update", func() bool { return d.countLoaded() > before })
		eventually.Until(t, patience, "operators are served as with "+step.is, func() bool {
			return get(one, step.token) == step.atOne && get(two, step.token) == step.atTwo
		})
		if step.another != "" && get(one, step.another) != http.StatusUnauthorized {
			t.Errorf("%s: the token of another version is accepted", step.is)
		}
	}
	var told nodesReport
	if penstock(t, "nodes", "--json", "--bridge", "http://"+one).read(t, &told); len(told.Nodes) != 1 {
		t.Errorf("after the updates the nodes are %+v", told.Nodes)
	}
	e.mustRun()
}

// TestModuleReportsDenials tests that the module writes an event for every denial, and that it
// decides requests even if it cannot write the events.
func TestModuleReportsDenials(t *testing.T) {
	t.Parallel()
	const limit, denials = 5, 150
	const policy = "name: shop\nevents: {}\nrules: [{name: api, match: {path: /api/*}, limit: 5/31d}, {name: closed, match: {path: /closed}, action: block}]\n"
	redis, file, address := redistest.Start(t), filepath.Join(t.TempDir(), "events.ndjson"), freeport.Address(t)
	_, sites := startModule(t, module(t), nil, policy+"events_to: "+file+"\n"+inRedis(redis))
	_, full := startModule(t, module(t), nil, strings.Replace(policy, "shop", "full", 1)+"events_to: /dev/full\n"+adminAt(address)+inRedis(redis))
	for i, s := range append(sites, full...) {
		for n := range limit + denials {
			want := http.StatusOK
			if n >= limit {
				want = http.StatusTooManyRequests
			}
			if a := s.get(t, "/api/x?secret"); a.status != want {
				t.Fatalf("site %d, request %d: status %d, want %d", i, n+1, a.status, want)
			}
		}
		for range denials {
			s.get(t, "/closed")
		}
	}
	awaitDenials(t, file, "ip:127.0.0.1", 2*denials)
	counts := map[string]int{}
	for _, one := range readEvents(t, file) {
		counts[fmt.Sprint(one.Rule, " ", one.Decision, " ", one.Limit, " ", one.Path, " ", one.Client, " ", one.Method)] += one.Count
	}
	want := map[string]int{"api denied 5/31d /api/* ip:127.0.0.1 GET": denials, "closed blocked  /closed ip:127.0.0.1 GET": denials}
	if !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
	eventually.Until(t, patience, "the metric counts what could not be written", func() bool {
		return strings.Contains(scrapeAt(address), fmt.Sprintf(`penstock_events_dropped_total{reason="sink"} %d`, 2*denials))
	})
}

// TestModuleTellsAControlPlane tests that the control plane has the exact numbers of requests that
// the module admitted and denied, and of the units that responses cost.
func TestModuleTellsAControlPlane(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.Database(t), redistest.Start(t)
	control := startControl(t, database, redis.URL(), "")
	upstream := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "3") })
	_, sites := startModule(t, module(t), upstream, "name: shop\nevents: {}\nidentify: [{header: {name: X-User, unverified: true}}]\nrules:\n"+
		"  - {name: api, match: {path: /api}, limit: 5/31d}\n  - {name: priced, match: {path: /priced}, limit: 1000/31d, cost_after: {header: X-Cost, estimate: 10, default: 10}}\n"+
		"control: {url: \"http://"+control.address+"\", token_file: "+control.nodeToken()+", spool: "+filepath.Join(t.TempDir(), "spool")+"}\n"+inRedis(redis))
	const requests = 40
	admitted := 0
	for range requests {
		if sites[0].get(t, "/api", "X-User", "ann").status == http.StatusOK {
			admitted++
		}
	}
	for range 4 {
		sites[0].get(t, "/priced", "X-User", "carl")
	}
	if admitted != 5 {
		t.Fatalf("%d requests were admitted", admitted)
	}
	control.awaitUsage("api", usedRow{Admitted: admitted, Denied: requests - admitted, Units: admitted})
	eventually.Until(t, controlPatience, "what responses cost is in the usage", func() bool {
		rows := control.usage("rule=priced")
		return len(rows) == 1 && rows[0] == usedRow{"header.x-user:carl", "shop", "priced", "", 4, 0, 12}
	})
}

// TestModuleClientsSeeTheirLimits tests that a client can read the limits that its next request
// will meet, and is not charged for that. This holds for every kind of identity.
func TestModuleClientsSeeTheirLimits(t *testing.T) {
	t.Parallel()
	const key = "pk_of_the_test_of_own_limits"
	hash, err := credential.HashKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, fmt.Appendf(nil, "[[keys]]\nid = \"acme\"\ntier = \"gold\"\nhash = %q\n", hash), 0o600); err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	_, sites := startModule(t, module(t), nil, "status_path: /limits\n"+strings.ReplaceAll(statusPolicy, "KEYS", keys)+inRedis(redis))
	s := sites[0]
	for _, c := range []struct {
		client string // identity:client, tier
		limit  int
		fields []string
	}{
		{"api_key:acme gold", 20, []string{"X-API-Key", key}},
		{"header.x-user:ann ", 10, []string{"X-User", "ann"}},
		{"ip:127.0.0.1 ", 10, nil},
		{"ip:203.0.113.5 ", 10, []string{"X-Forwarded-For", "198.51.100.1, 203.0.113.5"}},
		{"ip:2001:db8::/64 ", 10, []string{"X-Forwarded-For", "2001:db8::1"}},
	} {
		s.checkReadLimits(t, c.client, c.limit, c.fields)
	}
	eventually.Until(t, patience, "too many requests for limits are denied", func() bool {
		return s.get(t, "/limits").status == http.StatusTooManyRequests
	})
	redis.Kill()
	eventually.Until(t, patience, "limits cannot be read without Redis", func() bool { return s.get(t, "/limits").status == http.StatusServiceUnavailable })
}

// TestModuleTriesAPolicyOut tests that a candidate policy changes no answer, and that its decisions
// are counted. The candidate is stricter than the policy in force for one path and looser for
// another. It also reads a header that the policy in force does not read, and charges a cost that
// responses report.
func TestModuleTriesAPolicyOut(t *testing.T) {
	t.Parallel()
	const policy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: tight, match: {path: /tight}, limit: 6/31d fixed_window}
  - {name: loose, match: {path: /loose}, limit: 2/31d fixed_window}
  - {name: priced, match: {path: /priced}, limit: 100/31d fixed_window}
`
	candidate, address, redis := newRenamedFile(t, filepath.Join(t.TempDir(), "candidate.yaml")), freeport.Address(t), redistest.Start(t)
	candidate.edit(strings.NewReplacer("name: shop\n", "", "6/31d", "4/31d", "2/31d", "1000/31d",
		"limit: 100/31d fixed_window", "limit: 100/31d fixed_window, cost_after: {header: X-Cost, estimate: 1, default: 1}",
		"path: /tight", "path: /tight, header: {X-Plan: free}").Replace(policy))
	upstream := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "40") })
	_, sites := startModule(t, module(t), upstream, policy+"shadow_policy: "+candidate.path+"\n"+adminAt(address)+inRedis(redis))
	statuses := func(n int, path string) (got string) {
		for range n {
			got += fmt.Sprintf(" %d", sites[0].get(t, path, "x-user", "ann", "x-plan", "free").status)
		}
		return got
	}
	told := func(present, decided string) (n int) {
		series := fmt.Sprintf("\npenstock_shadow_decisions_total{candidate=%q,policy=\"shop.shadow\",present=%q} ", decided, present)
		if _, rest, ok := strings.Cut(scrapeAt(address), series); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
		return n
	}
	if got := statuses(6, "/tight"); got != strings.Repeat(" 200", 6) {
		t.Errorf("/tight:%s, want the policy in force", got)
	}
	if got := statuses(3, "/loose"); got != " 200 200 429" {
		t.Errorf("/loose:%s, want the policy in force", got)
	}
	eventually.Until(t, patience, "the candidate has decided", func() bool {
		return told("admitted", "refused") == 2 && told("refused", "admitted") == 1
	})
	// The candidate charges 40 units for each request, so it admits three requests under a limit of
	// 100.
	for n := range 5 {
		if got := statuses(1, "/priced"); got != " 200" {
			t.Errorf("/priced:%s, want the policy in force", got)
		}
		eventually.Until(t, patience, "the request is tried", func() bool {
			return told("admitted", "refused")+told("admitted", "admitted") == 8+n+1
		})
	}
	if n := told("admitted", "refused"); n != 4 {
		t.Errorf("the candidate has denied %d requests that the policy in force admitted, want 2 of /tight and 2 of /priced", n)
	}
}

// TestModuleCountsInEnvoy tests that Envoy's own statistics count the decisions of the module.
// While Redis is down, "on_error: allow" admits no more requests than the limit.
func TestModuleCountsInEnvoy(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	e, sites := startModule(t, module(t), nil, threeADay, strings.NewReplacer("shop", "open", "deny", "allow").Replace(threeADay)+
		"store: {type: redis, url: \""+redis.URL()+"\", timeout: 100ms}\n", strings.Replace(threeADay, "shop", "closed", 1)+
		"store: {type: redis, url: \""+redis.URL()+"\", timeout: 100ms}\n")
	redis.Kill()
	for range 5 {
		for _, s := range sites {
			s.get(t, "/")
		}
	}
	for name, want := range map[string]int{"allowed": 3, "denied": 4, "degraded": 3, "unavailable": 5, "panic": 0, "invalid_target": 0} {
		if got := e.stat("dynamicmodulescustom.penstock." + name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// TestModuleLearnsOfClients tests that the module soon denies a client that an operator has blocked
// through Redis, and soon admits it again after it was unblocked.
func TestModuleLearnsOfClients(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	_, sites := startModule(t, module(t), nil, "directory: {}\n"+strings.Replace(threeADay, "3/31d", "100000/31d", 1)+inRedis(redis))
	var longest time.Duration
	for _, want := range []int{http.StatusForbidden, http.StatusOK, http.StatusForbidden, http.StatusOK} {
		sites[0].get(t, "/")
		action := map[int]string{http.StatusForbidden: "block", http.StatusOK: "unblock"}[want]
		penstock(t, "client", action, "ip:127.0.0.1", "--reason", "a test", "--redis", redis.URL()).mustSucceed(t)
		changed := time.Now()
		eventually.Until(t, patience, "the change holds", func() bool { return sites[0].get(t, "/").status == want })
		longest = max(longest, time.Since(changed))
	}
	t.Logf("a change held after at most %v", longest)
	if longest > answerWithin {
		t.Errorf("a change held only after %v", longest)
	}
}
