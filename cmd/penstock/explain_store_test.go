// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

const lookedPolicy = `name: shop
penalty: {threshold: 1}
rules:
  - {name: search, match: {path: /search}, limit: 3/1h}
  - {name: quiet, match: {path: /search}, limit: 1/1h, action: log_only}
  - {name: export, match: {path: /export}, limit: 1/1h burst 1, action: throttle, throttle: {max_delay: 1m}}
  - {name: patient, match: {path: /wait}, limit: 2/1m burst 1, action: throttle, throttle: {max_delay: 1m}}
  - {name: month, match: {path: /month}, limit: 9/month}
  - {name: dear, match: {path: /dear}, limit: 9/1h, cost_after: {json: n, estimate: 2}}
`

// charge executes the checks of requests from 192.0.2.7, as a proxy would.
func charge(t *testing.T, server *redistest.Server, path string, times int) {
	t.Helper()
	chargeIn(t, redisstore.Options{URL: server.URL()}, path, times)
}

// explained is the type of an explanation, for tests whose variables hide the name of the package.
type explained = explain.Explanation

func chargeIn(t *testing.T, options redisstore.Options, path string, times int) {
	t.Helper()
	chargeUnder(t, lookedPolicy, options, path, times)
}

func chargeUnder(t *testing.T, policy string, options redisstore.Options, path string, times int) {
	t.Helper()
	document, err := readPolicy("-", strings.NewReader(policy))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := document.Compile()
	if err != nil {
		t.Fatal(err)
	}
	options.Timeout = redisstore.TimeoutMax
	store, err := redisstore.New(options)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for range times {
		var plan core.Plan
		plan.Add(rules, &explain.Request{Description: explain.Description{Method: "GET", Path: path,
			Peer: netip.MustParseAddr("192.0.2.7"), Now: counter.Micros(time.Now().UnixMicro())}})
		if err := store.Take(t.Context(), plan.Checks(), plan.Results()); err != nil {
			t.Fatal(err)
		}
	}
}

// contents returns every key of the Redis server, with its value as DUMP returns it.
func contents(t *testing.T, server *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{}
	keys, err := server.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if all[key], err = server.Client().Dump(t.Context(), key).Result(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestExplainLooksAtCountersAndChargesNothing(t *testing.T) {
	server := redistest.Start(t)
	policy := file(t, "policy.yaml", lookedPolicy)
	explain := func(path string, more ...string) string {
		t.Helper()
		out, said, err := run(t, "", append([]string{"explain", "--policy", policy, "--ip", "192.0.2.7", "--path", path,
			"--redis", server.URL()}, more...)...)
		if err != nil || said != "" {
			t.Fatalf("%v\n%s", err, said)
		}
		return out
	}
	for _, step := range []struct {
		charge string
		times  int
		look   string
		want   []string
	}{
		{"/search", 0, "/search", []string{"3 of 3 left\n", "penalty   not in force, no violations", "decision  allowed\n"}},
		{"/search", 1, "/search", []string{"2 of 3 left, reset in ", "rule      quiet (log_only): applies", "0 of 1 left: passes in ",
			"decision  allowed\n"}},
		{"/export", 1, "/export", []string{"0 of 1 left: passes in ", "decision  denied with 429 by export, retry after "}},
		{"/wait", 1, "/wait", []string{"rule      patient (throttle): applies", "decision  waits ", " for patient, unless too many wait already\n"}},
		{"/month", 2, "/month", []string{"7 of 9 left, reset in ", ":month:fw"}},
		{"/dear", 1, "/dear", []string{"limit 9/1h of the rule, cost 2", "7 of 9 left"}},
		{"/search", 2, "/search", []string{"0 of 3 left: passes in ", "decision  denied with 429 by search, retry after "}},
		{"/search", 1, "/search", []string{"penalty   in force for ", "1 violation\n", "decision  denied with 429 for a penalty, retry after "}},
	} {
		charge(t, server, step.charge, step.times)
		before := contents(t, server)
		out := explain(step.look)
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("after %d of %s: want %q in\n%s", step.times, step.charge, want, out)
			}
		}
		if diff := cmp.Diff(before, contents(t, server)); diff != "" {
			t.Errorf("looking changed counters (-before +after):\n%s", diff)
		}
	}
	var told explained
	if err := json.Unmarshal([]byte(explain("/search", "--json")), &told); err != nil {
		t.Fatal(err)
	}
	if p := told.Penalty; p == nil || !p.InForce || p.Violations != 1 || *p.WaitMillis < 1 || told.Decision.Status != 429 ||
		told.Decision.Outcome != "penalized" || told.Rules[0].Checks[0].Remaining != 0 || told.Client.ID != "192.0.2.7" {
		t.Errorf("%+v", told)
	}
}

// TestExplainLooksAtAllShards: explain reads all shards, of a cluster or of one server, whichever
// shards earlier requests used.
func TestExplainLooksAtAllShards(t *testing.T) {
	const text = "name: shop\nrules:\n  - {name: all, per: [], limit: 12/30d fixed_window, shards: 4}\n" +
		"  - {name: many, match: {path: /many}, limit: [640/1h, 6400/1d], shards: 64}\n"
	policy, single, cluster := file(t, "policy.yaml", text), redistest.Start(t), redistest.StartCluster(t)
	for _, redis := range []redisstore.Options{{URL: single.URL()}, {Mode: redisstore.ModeCluster, Addrs: []string{cluster.Nodes[0].Addr}}} {
		flags := []string{"explain", "--policy", policy, "--ip", "192.0.2.7", "--redis", redis.URL}
		if redis.Mode != "" {
			flags = append(flags[:5], "--redis-mode", redis.Mode, "--redis-addrs", redis.Addrs[0])
		}
		for _, step := range []struct {
			times int
			want  []string
		}{
			{0, []string{"  4 shards, used in rotation: the key is that of one, the numbers are those of all\n", "12 of 12 left, 0 used\n", "decision  allowed\n"}},
			{5, []string{"7 of 12 left, 5 used, reset in "}},
			// Another process also begins with the first shard, so that shard's part is used up
			// first.
			{4, []string{"3 of 12 left, 9 used, reset in ", ", 1 of them without room: ", "~1:all}",
				"decision  allowed; denied if the chosen shard has no room\n"}},
			{6, []string{"0 of 12 left, 12 used: passes in ", ", all without room: ", "decision  denied with 429 by all, retry after "}},
		} {
			chargeUnder(t, text, redis, "/", step.times)
			out, said, err := run(t, "", flags...)
			if err != nil || said != "" {
				t.Fatalf("%v\n%s", err, said)
			}
			for _, want := range step.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s, after %d more: want %q in\n%s", redis.Mode, step.times, want, out)
				}
			}
		}
		out, _, err := run(t, "", append(flags, "--path", "/many", "--json")...)
		var told explained
		if err = errors.Join(err, json.Unmarshal([]byte(out), &told)); err != nil {
			t.Fatal(err)
		}
		if all, many := told.Rules[0], told.Rules[1]; all.Shards != 4 || all.Denying != 4 || all.Checks[0].Used != 12 ||
			many.Shards != 64 || many.Denying != 0 || many.Checks[1].Used != 0 || many.Checks[1].Remaining != 6400 {
			t.Errorf("%s: %+v", redis.Mode, told.Rules)
		}
	}
}

// TestExplainReachesRedisWithoutSecretsInArguments tests that explain reads a user and a password,
// of any characters, from the environment or a file, and never prints them.
func TestExplainReachesRedisWithoutSecretsInArguments(t *testing.T) {
	const password = "p@ss/{w}:?"
	server := redistest.Start(t)
	if err := server.Client().Do(context.Background(), "ACL", "SETUSER", "limiter", "on", ">"+password, "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_TEST_PASSWORD", password)
	policy := file(t, "policy.yaml", lookedPolicy)
	secret := file(t, "secret", password+"\n")
	for _, args := range [][]string{
		{"--redis", "unix://limiter:{env.PENSTOCK_TEST_PASSWORD}@" + server.Addr},
		{"--redis", "unix://limiter@" + server.Addr, "--redis-password-file", secret},
	} {
		out, said, err := run(t, "", append([]string{"explain", "--policy", policy, "--path", "/search"}, args...)...)
		if err != nil || strings.Contains(out+said, "p@ss") || !strings.Contains(out, "store     unix://"+server.Addr) {
			t.Errorf("%v: %v\n%s%s", args, err, out, said)
		}
	}
	server.Stop()
	_, _, err := run(t, "", "explain", "--policy", policy, "--path", "/search", "--redis", "unix://limiter:geheim@"+server.Addr)
	if err == nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "no working connection to redis") {
		t.Errorf("a Redis that is not there: %v", err)
	}
}

func TestExplainRejectsStoresItCannotAsk(t *testing.T) {
	named := file(t, "policy.yaml", lookedPolicy)
	nameless := file(t, "policy.yaml", strings.Replace(lookedPolicy, "name: shop\n", "", 1))
	const nowhere = "redis://127.0.0.1:1"
	for _, c := range []struct {
		want string
		args []string
	}{
		{"add --name", []string{"--policy", nameless, "--redis", nowhere}},
		{"leave it out", []string{"--policy", named, "--name", "other"}},
		{"need --redis", []string{"--policy", named, "--redis-ca", "ca.pem"}},
		{"--now does not go with --redis", []string{"--policy", named, "--redis", nowhere, "--now", "2026-12-01T00:00:00Z"}},
		{`"PENSTOCK_TEST_NONE" is not set`, []string{"--policy", named, "--redis", "redis://a:{env.PENSTOCK_TEST_NONE}@127.0.0.1:1"}},
		{"must be redis, rediss or unix", []string{"--policy", named, "--redis", "http://127.0.0.1:1"}},
		{"rediss://", []string{"--policy", named, "--redis", nowhere, "--redis-server-name", "a"}},
	} {
		if _, _, err := run(t, "", append([]string{"explain"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	out, _, err := run(t, "", "explain", "--policy", nameless, "--name", "other", "--path", "/month", "--ip", "192.0.2.7",
		"--now", "2026-02-28T23:59:59Z")
	if err != nil || !strings.Contains(out, "key rl1:other:month:{ip:192.0.2.7}:month:fw") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestExplainAsJSON: every field is present for every request, so that programs can rely on it.
func TestExplainAsJSON(t *testing.T) {
	policy := file(t, "policy.yaml", "name: n\nrules:\n  - {name: a, match: {path: /a}, limit: 5/1h, cost: 5}\n"+
		"  - {name: w, match: {path: /w}, limit: 1/1h}\nblock: [{ip: 203.0.113.0/24, reason: scraper}]\n")
	for args, want := range map[string]string{
		"--path /a --ip 192.0.2.7":   `"outcome":"allowed"`,
		"--path /%61 --ip 192.0.2.7": `"rule":"a"`,
		"--path /b --ip 192.0.2.7":   `"rules":[]`,
		"--path /a --ip 203.0.113.9": `"status":403,"why":"blocked by block[0]"`,
		"--path /a":                  `"client":null`,
	} {
		out, _, err := run(t, "", append([]string{"explain", "--json", "--policy", policy}, strings.Fields(args)...)...)
		if err != nil {
			t.Fatal(err)
		}
		var told map[string]any
		if err := json.Unmarshal([]byte(out), &told); err != nil {
			t.Fatal(err)
		}
		compact, err := json.Marshal(json.RawMessage(out))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(compact), want) {
			t.Errorf("%s: want %s in\n%s", args, want, compact)
		}
		for _, word := range []string{"policy", "client", "methods", "address", "rules", "decision"} {
			if _, ok := told[word]; !ok {
				t.Errorf("%s: no %q among %v", args, word, slices.Sorted(maps.Keys(told)))
			}
		}
	}
}
