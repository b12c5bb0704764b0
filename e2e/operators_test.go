// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// operatorsToken is the token of operators for the bridge and the native module.
const operatorsToken = "0123456789abcdef0123"

// allFronts is a Caddy, an Envoy with its bridge, and an Envoy with the native module. All count in
// one Redis.
type allFronts struct {
	t      *testing.T
	caddy  *process
	file   *policyFile // of Caddy
	site   *site
	bridge *bridge
	native *site
	redis  *redistest.Server
	// targets holds the flags that make Caddy, the bridge, the module or Redis the target of a
	// command.
	targets map[string][]string
}

func startAllFronts(t *testing.T, policy string) *allFronts {
	t.Helper()
	f := &allFronts{t: t, redis: redistest.Start(t), site: &site{set: longDeadline}}
	f.file = newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	f.file.edit(policy)
	f.caddy = startCaddy(t, directed, "PENSTOCK_REDIS="+f.redis.URL(), "POLICY="+f.file.path)
	useEnvoy(t, nil, f.site)
	admin, token := freeport.Address(t), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(operatorsToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.bridge = f.site.startBridge(t, policy, "--redis", f.redis.URL(), "--redis-timeout", "5s", "--admin-listen", admin, "--admin-token-file", token)
	own, ofModule := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml")), freeport.Address(t)
	own.edit(policy)
	_, natives := startModule(t, module(t), nil, "policy: "+own.path+"\ndirectory: {}\nadmin: {listen: \""+ofModule+"\", token_file: "+token+"}\n"+inRedis(f.redis))
	f.native = natives[0]
	f.targets = map[string][]string{
		"Caddy":  {"--admin", f.caddy.admin},
		"bridge": {"--bridge", "http://" + admin, "--bridge-token-file", token},
		"module": {"--bridge", "http://" + ofModule, "--bridge-token-file", token},
		"Redis":  {"--redis", f.redis.URL(), "--policy-file", f.file.path},
	}
	return f
}

// allFronts.ask runs a command against a target.
func (f *allFronts) ask(target string, args ...string) commandResult {
	f.t.Helper()
	return penstock(f.t, append(args, f.targets[target]...)...)
}

// runOnAll runs a command against every target. It fails the test unless the answers are equal,
// apart from times.
func (f *allFronts) runOnAll(args ...string) (answer map[string]any) {
	f.t.Helper()
	var of string
	for target := range f.targets {
		var one map[string]any
		f.ask(target, args...).read(f.t, &one)
		dropTimes(one)
		if answer != nil && !reflect.DeepEqual(one, answer) {
			a, _ := json.Marshal(answer)
			b, _ := json.Marshal(one)
			f.t.Errorf("%v: %s answers\n%s\nand %s\n%s", args, of, a, target, b)
		}
		answer, of = one, target
	}
	return answer
}

// dropTimes removes the values that change as time passes.
func dropTimes(value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range []string{"reset_ms", "wait_ms"} {
			delete(value, name)
		}
		for _, inner := range value {
			dropTimes(inner)
		}
	case []any:
		for _, inner := range value {
			dropTimes(inner)
		}
	}
}

// firstRemaining returns the remaining units of the first counter in a report.
func firstRemaining(report map[string]any) any {
	counters, _ := report["counters"].([]any)
	if len(counters) == 0 {
		return nil
	}
	return counters[0].(map[string]any)["remaining"]
}

// TestCommandsAnswerAlikeEverywhere tests that commands print the same about a client whether they
// ask a Caddy, a bridge, the native module or Redis. A reset through each of these targets takes
// effect in Envoy.
func TestCommandsAnswerAlikeEverywhere(t *testing.T) {
	t.Parallel()
	f := startAllFronts(t, "directory: true\n"+strings.ReplaceAll(operatedPolicy, "/1h fixed_window", "/31d fixed_window"))
	const ann = "header.x-user:ann"
	through := func() int { return f.site.get(t, "/api", "X-User", "ann").status }
	through()
	if f.caddy.statuses("ann", 1); firstRemaining(f.runOnAll("client", "--json", "--client", ann)) != 1.0 {
		t.Error("one request through Envoy and one through Caddy left another number than 1")
	}
	through()
	if status := through(); status != http.StatusTooManyRequests {
		t.Fatalf("the fourth request: %d", status)
	}
	report := f.runOnAll("client", "--json", "--client", ann)
	if penalties := report["penalties"].([]any); len(penalties) != 1 || penalties[0].(map[string]any)["in_force"] != true {
		t.Errorf("the penalty is missing: %v", report)
	}
	f.usageIsTheSame()
	for _, target := range []string{"bridge", "Caddy", "module", "Redis"} {
		f.ask(target, "reset", "--client", ann).mustSucceed(t)
		f.ask(target, "lift", "--client", ann).mustSucceed(t)
		if left := firstRemaining(f.runOnAll("client", "--json", "--client", ann, "--rule", "api")); left != 3.0 {
			t.Errorf("after a reset through %s, %v are left", target, left)
		}
		// Within a second, Envoy's filter forgets that the client was denied.
		eventually.Until(t, 20*time.Second, "Envoy admits the client again after a reset through "+target, func() bool { return through() == 200 })
		eventually.Until(t, 20*time.Second, "and denies it beyond the limit", func() bool { return through() == 429 })
	}
	for target := range f.targets {
		var told rulesReport
		if f.ask(target, "rules", "--json").read(t, &told); len(told.Policies) != 1 || told.Policies[0].Name != "shop" || told.Policies[0].File == "" {
			t.Errorf("%s: the rules are %+v", target, told)
		}
		f.ask(target, "client", "--client", "api_key:acme").endsWith(t, 3, "identifies clients by")
		f.ask(target, "client", "--client", ann, "--rule", "apy").mustFail(t, `has a rule "apy"`)
	}
	if line := f.ask("bridge", "reload").mustSucceed(t); !strings.Contains(line, `(policy "shop", version `+f.bridge.version(t)+")") {
		t.Errorf("reload prints %q", line)
	}
	if line := f.ask("module", "reload").mustSucceed(t); !strings.Contains(line, `(policy "shop", version `) {
		t.Errorf("reload prints %q", line)
	}
	f.ask("Redis", "reload").mustFail(t, "ask a running Caddy or bridge")
	for _, target := range []string{"bridge", "module"} {
		penstock(t, append([]string{"rules"}, f.targets[target][:2]...)...).mustFail(t, "the bridge", "401", "token of operators")
	}
	f.recordsAreTheSame()
}

// usageIsTheSame checks that every target reports the units that ann has used, as JSON and as a
// table.
func (f *allFronts) usageIsTheSame() {
	f.t.Helper()
	if counter := f.runOnAll("usage", "header.x-user:ann", "--json", "--rule", "api")["counters"].([]any)[0].(map[string]any); counter["used"] != 3.0 {
		f.t.Errorf("after 3 requests, the usage is %v", counter)
	}
	for target := range f.targets {
		table := strings.Join(strings.Fields(f.ask(target, "usage", "header.x-user:ann").mustSucceed(f.t)), " ")
		for _, line := range []string{"shop api 3/31d fixed_window the rule 3 0 20", "shop everyone (shared) 1000/31d fixed_window the rule ",
			"policy shop: a penalty denies every request for "} {
			if !strings.Contains(table, line) {
				f.t.Errorf("%s: the table of usage lacks %q: %s", target, line, table)
			}
		}
		f.ask(target, "usage", "api_key:acme").endsWith(f.t, 3, "identifies clients by")
	}
}

// recordsAreTheSame changes a client's record through each target, and checks that all targets show
// the change.
func (f *allFronts) recordsAreTheSame() {
	f.t.Helper()
	for target, user := range map[string]string{"Caddy": "header.x-user:cid", "Redis": "header.x-user:dan", "bridge": "header.x-user:eve", "module": "header.x-user:fay"} {
		f.ask(target, "client", "block", user, "--reason", "a test", "--actor", "ops").mustSucceed(f.t)
		shown := f.runOnAll("client", "show", user, "--json")
		if record, _ := shown["record"].(map[string]any); record["block"] == nil {
			f.t.Errorf("a block through %s shows as %v", target, shown)
		}
		f.ask(target, "client", "set-limit", user, "apy", "5/1m", "--reason", "x").mustFail(f.t, `has a rule "apy"`)
		f.ask(target, "client", "set-tier", user, "golden", "--reason", "x").mustFail(f.t, `tier "golden"`)
	}
	eventually.Until(f.t, 20*time.Second, "Envoy denies who was blocked through its bridge", func() bool {
		return f.site.get(f.t, "/api", "X-User", "eve").status == http.StatusForbidden
	})
	eventually.Until(f.t, 20*time.Second, "the module denies who was blocked through it and through the bridge", func() bool {
		return f.native.get(f.t, "/api", "X-User", "eve").status == http.StatusForbidden &&
			f.native.get(f.t, "/api", "X-User", "fay").status == http.StatusForbidden
	})
	f.ask("bridge", "client", "note", "ip:192.0.2.0/24", "an office", "--reason", "x").mustSucceed(f.t)
	if all := f.runOnAll("client", "list", "--json")["clients"].([]any); len(all) != 5 {
		f.t.Errorf("the list is %v", all)
	}
	if blocked := f.runOnAll("client", "list", "--blocked", "--json", "-n", "1000")["clients"].([]any); len(blocked) != 4 {
		f.t.Errorf("the blocked are %v", blocked)
	}
	if networks := f.runOnAll("client", "list", "--kind", "ip", "--json", "-n", "1")["clients"].([]any); len(networks) != 1 {
		f.t.Errorf("the networks are %v", networks)
	}
	if table := f.ask("bridge", "client", "list").mustSucceed(f.t); !strings.HasPrefix(table, "CLIENT ") || strings.Count(table, "\n") != 6 {
		f.t.Errorf("the table is %q", table)
	}
	f.ask("bridge", "client", "list", "--after", "scan:7@elsewhere").mustFail(f.t, "no place in the list", "begin anew")
	f.keysAreTheSame()
}

// keysAreTheSame makes an API key through each target, and checks that all targets show it. The
// commands for keys take no policy file.
func (f *allFronts) keysAreTheSame() {
	f.t.Helper()
	f.targets["Redis"] = []string{"--redis", f.redis.URL()}
	f.ask("Redis", "key", "create", "--client", "user:u_42", "--reason", "x").mustSucceed(f.t)
	f.ask("Redis", "key", "create", "--client", "user:u_43", "--reason", "x").mustSucceed(f.t)
	for target := range f.targets {
		if out := f.ask(target, "key", "list", "--client", "user:u_43").mustSucceed(f.t); strings.Contains(out, "u_42") || !strings.Contains(out, "user:u_43") {
			f.t.Errorf("%s lists the keys of user:u_43 as %q", target, out)
		}
	}
	for target := range f.targets {
		name := "of-" + strings.ToLower(target)
		f.ask(target, "key", "create", "--client", "user:"+name, "--reason", "x").mustSucceed(f.t)
		if keys := f.runOnAll("key", "show", name, "--json")["keys"].([]any); len(keys) != 1 {
			f.t.Errorf("the keys made through %s are %v", target, keys)
		}
	}
}

// TestABridgeWithoutADirectory tests that a command about records names the setting that the bridge
// lacks.
func TestABridgeWithoutADirectory(t *testing.T) {
	t.Parallel()
	operators := socket(t)
	newBridge(t, operatedPolicy, "--admin-listen", "unix:"+operators).run(t)
	for _, command := range []string{"client block user:ann --reason x", "client set-tier user:ann gold --reason x", "client show user:ann",
		"client list", "key create --client user:ann --reason x", "key list"} {
		penstock(t, append(strings.Fields(command), "--bridge", "unix:"+operators)...).mustFail(t, "this bridge has no directory of clients",
			"write directory: true in its policy", "--redis")
	}
}

// bridge.version returns the version of the bridge's policy.
func (b *bridge) version(t testing.TB) string {
	t.Helper()
	response, err := (&http.Client{Transport: b.transport()}).Get("http://bridge/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var ready struct {
		Version string `json:"policy_version"`
	}
	if err := json.NewDecoder(response.Body).Decode(&ready); err != nil {
		t.Fatal(err)
	}
	return ready.Version
}

// nodesReport is the part of a report of the nodes that the tests read.
type nodesReport struct {
	Nodes []struct {
		ID, Front, State string
		Policies         []struct{ Name, Version string }
		Problems         []string
	}
}

// topReport is the part of a report of top that the tests read.
type topReport struct {
	Nodes   int
	Rules   []topRule
	Clients []struct {
		Client  string
		Refused int
	}
}

type topRule struct {
	Rule             string
	Admitted, Denied int
}

// allFronts.state returns the state and the problems of a front's node, as a target reports them.
// The state is "" if the node is not listed.
func (f *allFronts) state(target, front string) (state string, problems []string) {
	var told nodesReport
	f.ask(target, "nodes", "--json").read(f.t, &told)
	for _, n := range told.Nodes {
		if n.Front == front {
			return n.State, n.Problems
		}
	}
	return "", nil
}

// TestTheFleetIsSeen tests that every target lists the Caddy, the bridge and the native module that
// share one Redis, with their policies and problems. The command top adds up the requests of all of
// them.
func TestTheFleetIsSeen(t *testing.T) {
	t.Parallel()
	f := startAllFronts(t, strings.ReplaceAll(operatedPolicy, "/1h fixed_window", "/31d fixed_window"))
	for range 4 {
		f.site.get(t, "/api", "X-User", "ann")
	}
	f.caddy.statuses("ann", 2)
	for range 2 {
		f.native.get(t, "/api", "X-User", "ann")
	}
	last := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("top was last ", last)
		}
	})
	for target := range f.targets {
		eventually.Until(t, patience, "all nodes are listed through "+target, func() bool {
			caddy, _ := f.state(target, "caddy")
			bridge, _ := f.state(target, "bridge")
			native, _ := f.state(target, "module")
			return caddy == "ok" && bridge == "ok" && native == "ok"
		})
		eventually.Until(t, patience, "top adds up through "+target, func() bool {
			var top topReport
			f.ask(target, "top", "--json").read(t, &top)
			api := slices.IndexFunc(top.Rules, func(r topRule) bool { return r.Rule == "api" })
			last = fmt.Sprintf("%+v", top)
			return top.Nodes == 3 && api >= 0 && top.Rules[api].Admitted == 3 && top.Rules[api].Denied >= 1 && len(top.Clients) == 1 &&
				top.Clients[0].Client == "header.x-user:ann" && top.Clients[0].Refused == 5
		})
	}
	var alone nodesReport
	if f.ask("bridge", "nodes", "--json", "--this-node").read(t, &alone); len(alone.Nodes) != 1 || alone.Nodes[0].Front != "bridge" {
		t.Errorf("this node alone: %+v", alone)
	}
	if f.ask("module", "nodes", "--json", "--this-node").read(t, &alone); len(alone.Nodes) != 1 || alone.Nodes[0].Front != "module" ||
		len(alone.Nodes[0].Policies) != 1 || alone.Nodes[0].Policies[0].Name != "shop" {
		t.Errorf("this node alone: %+v", alone)
	}
	f.ask("Redis", "top", "--this-node").mustFail(t, "is for a running process")
	if table := f.ask("Redis", "nodes").mustSucceed(t); strings.Count(table, "\n") != 4 || !strings.HasPrefix(table, "NODE") {
		t.Errorf("the table is %q", table)
	}
	f.file.edit("name: shop\nrules: nonsense\n")
	f.targets["Redis"] = []string{"--redis", f.redis.URL()} // the policy file is wrong now
	for _, target := range []string{"Caddy", "Redis"} {
		eventually.Until(t, patience, "a rejected edit is a problem, through "+target, func() bool {
			state, problems := f.state(target, "caddy")
			return state == "degraded" && strings.Contains(strings.Join(problems, ""), "the last edit of the policy \"shop\" is rejected")
		})
	}
	f.bridge.signal(syscall.SIGTERM)
	eventually.Until(t, patience, "a bridge that has ended is no longer listed", func() bool {
		state, _ := f.state("Redis", "bridge")
		return state == ""
	})
}

// TestOneProcessIsSeenWithoutRedis tests that a bridge that counts in memory lists itself.
func TestOneProcessIsSeenWithoutRedis(t *testing.T) {
	t.Parallel()
	operators := socket(t)
	b := newBridge(t, operatedPolicy, "--admin-listen", "unix:"+operators)
	b.run(t)
	var told nodesReport
	if penstock(t, "nodes", "--json", "--bridge", "unix:"+operators).read(t, &told); len(told.Nodes) != 1 || told.Nodes[0].State != "ok" ||
		len(told.Nodes[0].Policies) != 1 || told.Nodes[0].Policies[0].Version != b.version(t) {
		t.Errorf("the nodes are %+v", told)
	}
	if table := penstock(t, "top", "--bridge", "unix:"+operators).mustSucceed(t); table != "no client was denied\n" {
		t.Errorf("top: %q", table)
	}
}
