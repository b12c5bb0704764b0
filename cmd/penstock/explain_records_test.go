// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestExplainAppliesRecords tests that explain applies the records of clients and of API keys that
// are in Redis. Without a Redis, it reports that they were not read.
func TestExplainAppliesRecords(t *testing.T) {
	redis := redistest.Start(t)
	policy := file(t, "policy.yaml", "name: shop\ndirectory: true\nidentify: [{api_key: {keys: directory, on_invalid: deny}}, {header: {name: X-User, unverified: true}}, ip]\n"+
		"rules: [{name: api, limit: 2/1m, tiers: {gold: 10/1h}}]\n")
	must := func(args ...string) string {
		t.Helper()
		out, _, err := run(t, "", append(args, "--redis", redis.URL())...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	for _, edit := range [][]string{{"block", "header.x-user:bob"}, {"set-limit", "header.x-user:ann", "api", "7/1d"}, {"set-tier", "api_key:acme", "gold"},
		{"exempt", "ip:192.0.2.0/24"}} {
		must(append(append([]string{"client"}, edit...), "--reason", "a test")...)
	}
	made := must("key", "create", "--client", "api_key:acme", "--reason", "a test")
	_, key, _ := strings.Cut(strings.SplitN(made, "\n", 2)[0], ": ")
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"--client", "header.x-user:bob"}, []string{"denied with 403"}},
		{[]string{"--client", "header.x-user:ann"}, []string{"limit 7/1d of ", "decision  allowed\n"}},
		{[]string{"--client", "header.x-user:eve"}, []string{"limit 2/1m of the rule"}},
		{[]string{"--client", "api_key:acme"}, []string{"limit 10/1h of tier gold"}},
		{[]string{"--header", "X-API-Key: " + key}, []string{"client    api_key:acme (tier gold)", "limit 10/1h of tier gold"}},
		{[]string{"--header", "X-API-Key: pk_of_nobody_0123456789_0123456789_012345678"}, []string{"denied with 401"}},
		{[]string{"--client", "ip:192.0.2.7"}, []string{"api: exempt: by a record in the directory", "allowed: exempt"}},
	} {
		out := must(append([]string{"explain", "--policy", policy}, c.args...)...)
		for _, want := range c.wants {
			if !strings.Contains(out, want) || strings.Contains(out, "\nrecords ") {
				t.Errorf("%v: printed\n%swant %q", c.args, out, want)
			}
		}
	}
	_, note, err := run(t, "", "redis", "inspect", "--policy", policy, "--client", "header.x-user:ann", "--redis", redis.URL())
	if err != nil || !strings.Contains(note, "without the record of header.x-user:ann; penstock usage") {
		t.Errorf("inspect: %v %q", err, note)
	}
	if out, _, err := run(t, "", "explain", "--policy", policy, "--client", "header.x-user:bob"); err != nil || !strings.Contains(out, "\nrecords   not read: add --redis") {
		t.Errorf("without Redis: %v\n%s", err, out)
	}
}
