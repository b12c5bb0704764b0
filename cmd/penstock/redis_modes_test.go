// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestEveryModeIsLookedAt: with the flags and variables of the bridge, the commands find the
// counters of requests in a sentinel's master, a cluster and a ring. They change nothing.
func TestEveryModeIsLookedAt(t *testing.T) {
	for mode, start := range map[string]func(t *testing.T) redisstore.Options{
		redisstore.ModeSentinel: func(t *testing.T) redisstore.Options {
			s := redistest.StartSentinel(t)
			return redisstore.Options{Addrs: s.Addrs(), Master: s.Name}
		},
		redisstore.ModeCluster: func(t *testing.T) redisstore.Options {
			return redisstore.Options{Addrs: redistest.StartCluster(t).Addrs()}
		},
		redisstore.ModeRing: func(t *testing.T) redisstore.Options {
			return redisstore.Options{Addrs: []string{redistest.StartTCP(t).Addr, redistest.StartTCP(t).Addr, redistest.StartTCP(t).Addr}}
		},
	} {
		t.Run(mode, func(t *testing.T) {
			o := start(t)
			o.Mode = mode
			chargeIn(t, o, "/month", 2)
			chargeIn(t, o, "/search", 1)
			addrs := strings.Join(o.Addrs, ",")
			flags := []string{"--redis-mode", mode, "--redis-addrs", addrs}
			if o.Master != "" {
				flags = append(flags, "--redis-master", o.Master)
			}
			runReadCommands(t, flags)
			t.Setenv("REDIS_MODE", mode)
			t.Setenv("REDIS_ADDRS", addrs)
			t.Setenv("REDIS_MASTER", o.Master)
			runReadCommands(t, []string{"--redis-env"})
		})
	}
}

// runReadCommands runs every command that reads Redis after two requests of /month and one of
// /search.
func runReadCommands(t *testing.T, flags []string) {
	t.Helper()
	policy := file(t, "policy.yaml", lookedPolicy)
	for _, c := range []struct {
		words string
		want  []string
	}{
		{"explain --ip 192.0.2.7 --path /month --policy " + policy, []string{"7 of 9 left, reset in ", "nothing was charged"}},
		{"explain --ip 192.0.2.7 --path /search --policy " + policy, []string{"2 of 3 left, reset in ", "penalty   not in force"}},
		{"redis inspect --client ip:192.0.2.7 --policy " + policy, []string{"9/month: 7 of 9 left", "3/1h: 2 of 3 left"}},
		{"redis health", []string{"NODE"}},
		{"redis doctor --redis-timeout 10s", []string{"ok     script"}},
	} {
		out, said, err := run(t, "", append(strings.Fields(c.words), flags...)...)
		if err != nil {
			t.Errorf("%s %v: %v\n%s", c.words, flags, err, said)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s %v: nothing says %q in:\n%s", c.words, flags, want, out)
			}
		}
	}
}

// TestWordsOfModesThatMeanNothing: meaningless combinations are errors that name the remedy.
func TestWordsOfModesThatMeanNothing(t *testing.T) {
	c := redistest.StartCluster(t)
	single := redistest.StartTCP(t)
	policy := file(t, "policy.yaml", lookedPolicy)
	t.Setenv("REDIS_MODE", "cluster")
	for want, words := range map[string]string{
		"add --redis-mode cluster":                       "explain --path /search --ip 192.0.2.7 --policy " + policy + " --redis " + nodeWithout(c),
		"the mode is cluster, but " + single.Addr:        "redis health --redis-mode cluster --redis " + single.URL(),
		"REDIS_MODE is cluster, and REDIS_ADDRS is not":  "redis health --redis-env",
		"names servers too; keep one":                    "redis health --redis-env --redis redis://a",
		"write mode cluster, mode sentinel or mode ring": "redis health --redis-addrs a,b",
		"name all of them":                               "explain --redis-mode ring --redis redis://a --policy " + policy,
		"master is missing":                              "explain --redis-mode sentinel --redis redis://a --policy " + policy,
	} {
		if _, _, err := run(t, "", strings.Fields(words)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
	}
}

// nodeWithout returns a node of a cluster that does not have the counters of 192.0.2.7.
func nodeWithout(c *redistest.Cluster) string {
	home := c.Master(redisstore.Slot("{ip:192.0.2.7}"))
	for _, node := range c.Nodes[:3] {
		if node != home {
			return node.URL()
		}
	}
	return ""
}

// TestRingIsLookedAfter: redis health reports a fault of one of the ring's servers.
func TestRingIsLookedAfter(t *testing.T) {
	servers := []*redistest.Server{redistest.StartTCP(t), redistest.StartTCP(t), redistest.StartAlone(t)}
	flags := []string{"redis", "health", "--redis-mode", "ring", "--redis-addrs", servers[0].Addr + "," + servers[1].Addr}
	out, _, err := run(t, "", flags...)
	if err != nil || !strings.Contains(out, "a ring of 2 servers") {
		t.Errorf("%v\n%s", err, out)
	}
	chargeIn(t, redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{servers[1].Addr, servers[0].Addr}}, "/month", 1)
	both := func() bool {
		return servers[0].Client().Exists(t.Context(), redisstore.RingKey).Val()+servers[1].Client().Exists(t.Context(), redisstore.RingKey).Val() == 2
	}
	eventually.Until(t, 20*time.Second, "a node has left its names", func() bool {
		if !both() { // a key was removed before both servers had a key
			chargeIn(t, redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{servers[1].Addr, servers[0].Addr}}, "/month", 1)
		}
		return both()
	})
	flags[1] = "doctor"
	flags = append(flags, "--redis-timeout", "10s")
	if out, _, err = run(t, "", flags...); err != nil || !strings.Contains(out, "a ring of 2 servers") {
		t.Errorf("%v\n%s", err, out)
	}
	flags[5] += "," + servers[2].Addr
	if out, _, err = run(t, "", flags...); err == nil || !strings.Contains(out, "count apart") {
		t.Errorf("%v\n%s", err, out)
	}
	flags = flags[:6]
	flags[1] = "health"
	servers[1].Kill()
	out, _, err = run(t, "", flags...)
	if err == nil || !strings.Contains(out, "wrong: "+servers[1].Addr+" cannot be reached") || !strings.Contains(out, servers[2].Addr+" is a node of a cluster") {
		t.Errorf("%v\n%s", err, out)
	}
}
