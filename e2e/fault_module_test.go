// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// modules returns a function that starts an Envoy with the native module for each node.
func modules(t testing.TB, _ int) func(g *nodeGroup, number int, policy string) {
	upstream := startUpstream(t, nil)
	return func(g *nodeGroup, _ int, policy string) {
		var running []*nativeNode
		for i, flags := range g.flags {
			file := newAlternatingFile(g.t, filepath.Join(g.t.TempDir(), "policy.yaml"))
			file.edit(policy)
			n := newNativeNode(g.t, upstream, "policy: "+file.path+"\nstore: {type: redis, "+storeWords(flags)+"}\n")
			n.library = module(g.t)
			if clock, env := g.program(i, machineClock); clock != "" {
				n.library, _ = g.program(i, machineModule)
				n.env = append(env, "LD_PRELOAD="+clock)
			}
			n.run()
			running, g.nodes, g.policies = append(running, n), append(g.nodes, n.site.address), append(g.policies, file)
			g.running = append(g.running, n.server)
		}
		g.crash = func(node int) {
			running[node].kill()
			running[node].run()
		}
	}
}

// nativeNode is an Envoy with the native module. It can be started again.
type nativeNode struct {
	*envoy
	t       testing.TB
	site    *site
	file    string
	library string
	env     []string
}

func newNativeNode(t testing.TB, upstream, settings string) *nativeNode {
	t.Helper()
	n := &nativeNode{envoy: &envoy{admin: freeport.Address(t)}, t: t, site: &site{filter: moduleFilter(settings)},
		file: filepath.Join(t.TempDir(), "envoy.yaml")}
	if err := os.WriteFile(n.file, []byte(n.configuration(t, "", upstream, []*site{n.site})), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

// nativeNode.run starts the process.
func (n *nativeNode) run() {
	n.t.Helper()
	command := envoyCommand(n.t, n.file)
	command.Env = append(os.Environ(), append(n.env, "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+filepath.Dir(n.library))...)
	n.server = startServer(n.t, command)
	n.awaitReady(n.t)
}

// storeWords converts a bridge's flags about Redis to the fields of the module's setting store.
func storeWords(flags []string) string {
	var fields []string
	for i := 0; i < len(flags); i += 2 {
		name, value := strings.TrimPrefix(strings.TrimPrefix(flags[i], "--redis"), "-"), flags[i+1]
		switch name {
		case "":
			fields = append(fields, `url: "`+value+`"`)
		case "addrs":
			fields = append(fields, `addrs: ["`+strings.ReplaceAll(value, ",", `", "`)+`"]`)
		default:
			fields = append(fields, name+`: "`+value+`"`)
		}
	}
	return strings.Join(fields, ", ")
}

// TestRedisFailsUnderLoadOfTheModule tests that the native module answers each request soon,
// whatever happens to Redis. During an outage, on_error decides, and afterwards limits are enforced
// again.
func TestRedisFailsUnderLoadOfTheModule(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *redistest.Server, wait func()){
		"killed": func(r *redistest.Server, wait func()) { r.Kill(); wait(); r.Restart() },
		"frozen": func(r *redistest.Server, wait func()) { r.Pause(); wait(); r.Resume() },
		"paused": func(r *redistest.Server, wait func()) {
			r.Client().Do(context.Background(), "CLIENT", "PAUSE", "700", "ALL")
			wait()
		},
		"flushed": func(r *redistest.Server, wait func()) { r.Client().FlushAll(context.Background()); wait() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, address := redistest.Start(t), freeport.Address(t)
			e, sites := startModule(t, module(t), nil, "name: shop\non_error: allow\nrules: [{name: all, limit: 100/31d}]\n"+adminAt(address)+
				"store: {type: redis, url: \""+redis.URL()+"\", remember_denials: false}\n")
			var got tally
			done := make(chan struct{})
			group := startLoadOn(sites[0].address, 16, &got, atLeastUntil(done, 400))
			eventually.Until(t, patience, "the limit is reached", func() bool { return got.refused.Load() > 100 })
			fail(redis, func() {
				<-time.After(700 * time.Millisecond)
				got.eachIsAnswered(t)
			})
			close(done)
			group.Wait()
			if got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
				t.Errorf("%d answers of 5xx and %d broken under on_error allow: %s", got.serverErrors.Load(), got.broken.Load(), got.summarizeOthers())
			}
			if slowest := time.Duration(got.slowest.Load()); slowest > answerWithin {
				t.Errorf("an answer took %v", slowest)
			}
			if name != "flushed" && !strings.Contains(scrapeAt(address), "penstock_store_errors_total{kind=") {
				t.Error("the metrics do not show the outage")
			}
			eventually.Until(t, patience, "the limit holds again", func() bool { return sites[0].get(t, "/").status == http.StatusTooManyRequests })
			e.mustRun()
			t.Logf("%d admitted, %d refused, slowest %v", got.admitted.Load(), got.refused.Load(), time.Duration(got.slowest.Load()))
		})
	}
}

// TestModuleDecidesRedirectsAgain tests requests that Envoy redirects internally. For the module,
// the redirected request is a new request, which it decides and charges by the new path. The first
// stream ends without a response, so under cost_after it is charged the cost for unread responses.
func TestModuleDecidesRedirectsAgain(t *testing.T) {
	t.Parallel()
	_, sites := startModule(t, module(t), http.HandlerFunc(serveRedirects), strings.Replace(threeADay, "3/31d", "100/31d", 1),
		"name: priced\nstatus_path: /limits\nrules: [{name: all, limit: 100/31d, cost_after: {header: X-Cost, estimate: 2, default: 3, max: 10}}]\n")
	remaining := func(path string) string {
		a := sites[0].get(t, path)
		if a.status != http.StatusOK || a.body != "ok" {
			t.Fatalf("%s: status %d, %v, %q", path, a.status, a.header, a.body)
		}
		return a.header.Get("X-RateLimit-Remaining")
	}
	for _, step := range []struct{ path, firstRemaining string }{{"/", "99"}, {"/redirected/1", "97"}, {"/redirected/2", "94"}, {"/", "93"}} {
		if got := remaining(step.path); got != step.firstRemaining {
			t.Errorf("after %s %s remain, want %s", step.path, got, step.firstRemaining)
		}
	}
	sites[1].get(t, "/redirected/1")
	var own ownLimits
	eventually.Until(t, patience, "the first stream costs unread, and the second one the default", func() bool {
		own = ownLimits{}
		return json.Unmarshal([]byte(sites[1].get(t, "/limits").body), &own) == nil && len(own.Limits) == 1 && own.Limits[0].Remaining == 100-10-3
	})
}
