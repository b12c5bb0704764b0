// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policy"
)

// many returns n entries, each made by the format with its number, with commas between them.
func many(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ", ")
}

// Every bound that the reference states is that of the code: one policy is just within it and the other just beyond.
func TestReferenceBounds(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	rule := func(words string) string { return "rules: [{name: a, limit: 10/1m, " + words + "}]" }
	plain := func(words string) string { return words + "\nrules: [{name: a, limit: 10/1m, per: client}]" }
	keys := "identify: [{api_key: {keys_file: k.toml}}]\n"
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct{ said, within, beyond string }{
		{"exactly one of these words; the plain word `ip` is short for `ip: {}`. At most 16.",
			plain("identify: [" + many(16, "{attr: a%d}") + "]"), plain("identify: [" + many(17, "{attr: a%d}") + "]")},
		{"counters each of the rule's is spread, 2 to 64", "rules: [{name: a, limit: 64/1m, shards: 64}]", "rules: [{name: a, limit: 65/1m, shards: 65}]"},
		{"counters each of the rule's is spread, 2 to 64", "rules: [{name: a, limit: 64/1m, shards: 2}]", "rules: [{name: a, limit: 64/1m, shards: 1}]"},
		{"clocks of issuer and proxy may be apart, at most 5m", plain("identify: [{jwt: {jwks_file: k, leeway: 5m}}]"),
			plain("identify: [{jwt: {jwks_file: k, leeway: 301s}}]")},
		{"counted from the left and from 1 (to 127)", plain("tenant: {host_label: 127}"), plain("tenant: {host_label: 128}")},
		{"the one left of that, up to 64", plain("trusted_hops: 64"), plain("trusted_hops: 65")},
		{"such as `30s`: 1s to 366d", rule("retry_after: 366d"), rule("retry_after: 367d")},
		{"do not come back together: 1s to 1d", rule("retry_jitter: 1d"), rule("retry_jitter: 25h")},
		{"counts. If none matches, it is 1. At most 64 entries", rule("cost: [" + many(64, "{match: {path: /%d}, n: 2}") + "]"),
			rule("cost: [" + many(65, "{match: {path: /%d}, n: 2}") + "]")},
		{"a rule has at most 256", keys + rule("tiers: {"+many(256, "t%d: 1/1m")+"}"), keys + rule("tiers: {"+many(257, "t%d: 1/1m")+"}")},
		{"the path has up to 16 parts", rule("cost_after: {estimate: 1, json: " + strings.Repeat("a.", 15) + "a}"),
			rule("cost_after: {estimate: 1, json: " + strings.Repeat("a.", 16) + "a}")},
		{"have up to 64 statuses each", rule("count_if: {status: [" + many(64, "4%02d") + "]}"),
			rule("count_if: {status: [" + many(65, "4%02d") + "]}")},
		{"How long a request may wait, 1ms to 1m", rule("action: throttle, throttle: {max_delay: 1m}"),
			rule("action: throttle, throttle: {max_delay: 61s}")},
		{"may wait for one counter on one proxy, 1 to 100000", rule("action: throttle, throttle: {max_delay: 1s, max_waiting: 100000}"),
			rule("action: throttle, throttle: {max_delay: 1s, max_waiting: 100001}")},
		{"instead of its own sentence, at most 1,024 bytes", rule("response: {message: " + x(1024) + "}"), rule("response: {message: " + x(1025) + "}")},
		{"The whole body, at most 64 KiB", rule("response: {body: " + x(64<<10) + "}"), rule("response: {body: " + x(64<<10+1) + "}")},
		{"header fields, at most 32", rule("response: {headers: {" + many(32, "X-%d: a") + "}}"), rule("response: {headers: {" + many(33, "X-%d: a") + "}}")},
		{"values of at most 4,096 bytes", rule("response: {headers: {A: " + x(4096) + "}}"), rule("response: {headers: {A: " + x(4097) + "}}")},
		{"violation is remembered: 1s to 366d", plain("penalty: {window: 366d}"), plain("penalty: {window: 500ms}")},
		{"there is a penalty: 1 to 1,000.", plain("penalty: {threshold: 1000}"), plain("penalty: {threshold: 1001}")},
		{"At most 64, of 1 to 1,000,000.", plain("penalty: {multipliers: [" + many(64, "1%02d") + "]}"), plain("penalty: {multipliers: [" + many(65, "1%02d") + "]}")},
		{"At most 64, of 1 to 1,000,000.", plain("penalty: {multipliers: [1000000]}"), plain("penalty: {multipliers: [1000001]}")},
		{"logs and explanations, at most 256 bytes", plain("exempt: {ip: 192.0.2.1, reason: " + x(256) + "}"), plain("exempt: {ip: 192.0.2.1, reason: " + x(257) + "}")},
	} {
		if !strings.Contains(string(text), c.said) {
			t.Errorf("docs/policy.md does not say %q", c.said)
		}
		for document, want := range map[string]bool{c.within: true, c.beyond: false} {
			d, err := policy.Decode("bounds", policy.YAML, []byte(document))
			if err == nil {
				err = d.Check()
			}
			if (err == nil) != want {
				t.Errorf("%q: accepted %t, want %t: %v\n%.200s", c.said, err == nil, want, err, document)
			}
		}
	}
}
