// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestRedisHealth(t *testing.T) {
	c := redistest.StartCluster(t)
	out, _, err := run(t, "", "redis", "health", "--redis", c.Nodes[0].URL())
	if err != nil || !strings.Contains(out, "16384 of 16384 slots are served") || strings.Count(out, "\n") != 8 {
		t.Errorf("%v\n%s", err, out)
	}
	c.Nodes[5].Kill()
	out, _, err = run(t, "", "redis", "health", "--redis", c.Nodes[0].URL())
	if !errors.Is(err, errSaid) || !strings.Contains(out, "wrong: "+c.Nodes[5].Addr+" cannot be reached") {
		t.Errorf("a node is gone: %v\n%s", err, out)
	}
}

func TestRedisCommandsRejectMeaninglessArguments(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "heal"; see penstock redis --help`: {"redis", "heal"},
		"--redis is missing; write --redis redis://":        {"redis", "health"},
		`redis health takes no "x"`:                         {"redis", "health", "x"},
		`environment variable "PENSTOCK_NONE" is not set`:   {"redis", "health", "--redis", "redis://a:{env.PENSTOCK_NONE}@localhost"},
		"inspect takes one KEY, in quotes":                  {"redis", "inspect", "--redis", "redis://localhost"},
		"--policy without --client":                         {"redis", "inspect", "--redis", "redis://localhost", "--policy", "p.yaml"},
		"leave them out, or the key":                        {"redis", "inspect", "k", "--redis", "redis://localhost", "--client", "user:a"},
		"goes with sentinels":                               {"redis", "health", "--master", "m", "--redis", redistest.Start(t).URL()},
	} {
		if _, _, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestRedisDoctor(t *testing.T) {
	s := redistest.Start(t)
	// The timeout is long, because the machine may be busy.
	out, _, err := run(t, "", "redis", "doctor", "--redis", s.URL(), "--redis-timeout", "10s")
	if err != nil || !strings.Contains(out, "ok     script") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(t, "", "redis", "doctor", "--redis", s.URL(), "--redis-timeout", "1ns")
	if !errors.Is(err, errSaid) || !strings.Contains(out, "wrong  script") {
		t.Errorf("a script slower than the timeout: %v\n%s", err, out)
	}
}

// TestRedisInspect: inspect can show every key that requests leave behind, and changes nothing.
func TestRedisInspect(t *testing.T) {
	s := redistest.Start(t)
	charge(t, s, "/export", 1)
	charge(t, s, "/month", 2)
	charge(t, s, "/search", 5) // which imposes a penalty
	before := contents(t, s)
	if len(before) < 6 {
		t.Fatalf("requests left only %v", before)
	}
	for key := range before {
		out, _, err := run(t, "", "redis", "inspect", key, "--redis", s.URL())
		if err != nil || !strings.Contains(out, "policy     shop\n") || !strings.Contains(out, "ip 192.0.2.7\n") {
			t.Errorf("%s: %v\n%s", key, err, out)
		}
	}
	if diff := cmp.Diff(before, contents(t, s)); diff != "" {
		t.Errorf("looking changed something: %s", diff)
	}
	policy := file(t, "policy.yaml", lookedPolicy)
	out, _, err := run(t, "", "redis", "inspect", "--policy", policy, "--client", "ip:192.0.2.7", "--redis", s.URL())
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"3/1h: 0 of 3 left, the next in ", "1/1h token_bucket: 0 of 1 left", "9/month: 7 of 9 left", "in force until", "from 1 violation in"} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing says %q in:\n%s", want, out)
		}
	}
	out, _, err = run(t, "", "redis", "inspect", "--policy", policy, "--client", "ip:192.0.2.7", "--rule", "month", "--redis", s.URL())
	if err != nil || strings.Count(out, "key ") != 1 || !strings.Contains(out, ":month:fw") {
		t.Errorf("one rule: %v\n%s", err, out)
	}
	for want, args := range map[string][]string{"has no kind or no id": {"--client", "ann"}, `no rule "mouth"; there are: ["search"`: {"--client", "ip:192.0.2.7", "--rule", "mouth"},
		`--name "x" is not the name "shop"`: {"--client", "user:a", "--name", "x"}} {
		if _, _, err := run(t, "", append([]string{"redis", "inspect", "--policy", policy, "--redis", s.URL()}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if diff := cmp.Diff(before, contents(t, s)); diff != "" {
		t.Errorf("looking changed something: %s", diff)
	}
	const key = "rl1:shop:search:{ip:192.0.2.7}:3600s:sw"
	if err := s.Client().Set(t.Context(), key, "one", 0).Err(); err != nil {
		t.Fatal(err)
	}
	out, _, err = run(t, "", "redis", "inspect", key, "--redis", s.URL())
	if !errors.Is(err, errSaid) || !strings.Contains(out, "wrong      it must be three or four decimals") {
		t.Errorf("a counter that cannot be read: %v\n%s", err, out)
	}
}

// TestRedisInspectOfAVerifiedClient: the counters of clients that tokens and API keys identify are
// found by the clients' names, with the tier in the keys file, and without the token's secret.
func TestRedisInspectOfAVerifiedClient(t *testing.T) {
	s := redistest.Start(t)
	keys := file(t, "keys.toml", "[[keys]]\nid = \"acme\"\ntier = \"gold\"\nhash = \"sha256:"+strings.Repeat("0a", 32)+"\"\n")
	policy := file(t, "policy.yaml", "name: shop\nidentify: [{jwt: {secret: '{env.NOT_SET_HERE}', tier_claim: plan}}, {api_key: {keys_file: "+keys+
		"}}, ip]\nrules: [{name: api, limit: 2/1m, tiers: {gold: 10/1h}}]\n")
	for client, want := range map[string][]string{
		"api_key:acme": {"key        rl1:shop:api:{api_key:acme}:3600s:sw\n", "10/1h: 10 of 10 left"},
		"user:ann":     {"key        rl1:shop:api:{user:ann}:60s:sw\n", "2/1m: 2 of 2 left"},
	} {
		out, diagnostics, err := run(t, "", "redis", "inspect", "--policy", policy, "--client", client, "--redis", s.URL())
		if err != nil {
			t.Errorf("%s: %v", client, err)
		}
		for _, want := range want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: nothing says %q in:\n%s", client, want, out)
			}
		}
		if warned := strings.Contains(diagnostics, `the tier of user:ann cannot be known: it is the claim "plan"`); warned != (client == "user:ann") {
			t.Errorf("%s: %q", client, diagnostics)
		}
	}
	_, _, err := run(t, "", "redis", "inspect", "--policy", policy, "--client", "api_key:acne", "--redis", s.URL())
	if err == nil || exitStatus(err) != 3 || !strings.Contains(err.Error(), "no key of that name in keys.toml") {
		t.Errorf("a key that is not there: %v", err)
	}
}

// TestRedisInspectShards: inspect shows all shards of a client, each with its units.
func TestRedisInspectShards(t *testing.T) {
	s := redistest.Start(t)
	policy := file(t, "policy.yaml", "{name: shop, rules: [{name: api, limit: 12/1h, shards: 4}]}")
	out, _, err := run(t, "", "redis", "inspect", "--policy", policy, "--client", "ip:192.0.2.7", "--redis", s.URL())
	if err != nil || strings.Count(out, "key ") != 4 || strings.Count(out, "3/1h: 3 of 3 left; all shards together have 12/1h\n") != 4 ||
		!strings.Contains(out, "rl1:shop:api:{~3:ip:192.0.2.7}:3600s:sw\n") || !strings.Contains(out, "shard      3, counted from 0") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(t, "", "explain", "--policy", policy, "--ip", "192.0.2.7", "--path", "/")
	if err != nil || !strings.Contains(out, "limit 12/1h of the rule, cost 1\n    key rl1:shop:api:{~") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSetupCluster(t *testing.T) {
	_, port, _ := net.SplitHostPort(freeport.WithBuses(t, 6))
	dir := t.TempDir()
	var stop string
	for _, want := range []string{"it was started now", "it ran already"} {
		out, _, err := run(t, "", "redis", "setup-cluster", "--dir", dir, "--port", port)
		if err != nil || !strings.Contains(out, "a Redis cluster is at 127.0.0.1:"+port) || !strings.Contains(out, want) {
			t.Fatalf("want %q: %v\n%s", want, err, out)
		}
		for line := range strings.Lines(out) {
			if command, ok := strings.CutPrefix(line, "stop it"); ok && stop == "" {
				stop = strings.TrimSpace(command)
				t.Cleanup(func() {
					if out, err := exec.Command("sh", "-c", stop).CombinedOutput(); err != nil {
						t.Errorf("%s: %v %s", stop, err, out)
					}
					// A server that ends may still write its files.
					eventually.Until(t, time.Minute, "the servers have ended", func() bool { return os.RemoveAll(dir) == nil })
				})
			}
			if command, ok := strings.CutPrefix(line, "look at it   penstock "); ok {
				if out, _, err := run(t, "", strings.Fields(command)...); err != nil || !strings.Contains(out, "16384 of 16384") {
					t.Errorf("%s: %v\n%s", command, err, out)
				}
			}
		}
	}
	if _, _, err := run(t, "", "redis", "setup-cluster", "--dir", t.TempDir(), "--port", port); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("ports of another cluster: %v", err)
	}
}
