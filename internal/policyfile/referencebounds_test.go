// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// documents returns the joined text of the documents that match a pattern, such as
// docs/reference/*.md.
func documents(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no document is called %s: %v", pattern, err)
	}
	var text strings.Builder
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(data)
	}
	return text.String()
}

// repeatFormat returns n entries separated by commas, each formatted with its number.
func repeatFormat(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ", ")
}

// TestReferenceBounds: every bound in the reference equals the bound in the code, so that a policy
// at the bound is accepted, and one just beyond it is rejected.
func TestReferenceBounds(t *testing.T) {
	text := documents(t, "docs/reference/*.md")
	rule := func(words string) string { return "rules: [{name: a, limit: 10/1m, " + words + "}]" }
	plain := func(words string) string { return words + "\nrules: [{name: a, limit: 10/1m, per: client}]" }
	keys := "identify: [{api_key: {keys_file: k.toml}}]\n"
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct{ reports, within, beyond string }{
		{"word `ip` is short for `ip: {}`. There are at most 16 entries.",
			plain("identify: [" + repeatFormat(16, "{attr: a%d}") + "]"), plain("identify: [" + repeatFormat(17, "{attr: a%d}") + "]")},
		{"each counter of the rule is spread, 2 to 64", "rules: [{name: a, limit: 64/1m, shards: 64}]", "rules: [{name: a, limit: 65/1m, shards: 65}]"},
		{"each counter of the rule is spread, 2 to 64", "rules: [{name: a, limit: 64/1m, shards: 2}]", "rules: [{name: a, limit: 64/1m, shards: 1}]"},
		{"between the clocks of issuer and proxy, at most 5m", plain("identify: [{jwt: {jwks_file: k, leeway: 5m}}]"),
			plain("identify: [{jwt: {jwks_file: k, leeway: 301s}}]")},
		{"counted from the left and from 1 (to 127)", plain("tenant: {host_label: 127}"), plain("tenant: {host_label: 128}")},
		{"N places to the left of the peer, with N from 1 to 64", plain("trusted_hops: 64"), plain("trusted_hops: 65")},
		{"such as `30s`: 1s to 366d", rule("retry_after: 366d"), rule("retry_after: 367d")},
		{"do not return together: 1s to 1d", rule("retry_jitter: 1d"), rule("retry_jitter: 25h")},
		{"If no entry matches, the cost is 1. At most 64 entries", rule("cost: [" + repeatFormat(64, "{match: {path: /%d}, n: 2}") + "]"),
			rule("cost: [" + repeatFormat(65, "{match: {path: /%d}, n: 2}") + "]")},
		{"a rule has at most 256", keys + rule("tiers: {"+repeatFormat(256, "t%d: 1/1m")+"}"), keys + rule("tiers: {"+repeatFormat(257, "t%d: 1/1m")+"}")},
		{"the path has up to 16 parts", rule("cost_after: {estimate: 1, json: " + strings.Repeat("a.", 15) + "a}"),
			rule("cost_after: {estimate: 1, json: " + strings.Repeat("a.", 16) + "a}")},
		{"have up to 64 statuses each", rule("count_if: {status: [" + repeatFormat(64, "4%02d") + "]}"),
			rule("count_if: {status: [" + repeatFormat(65, "4%02d") + "]}")},
		{"How long a request may wait, 1ms to 1m", rule("action: throttle, throttle: {max_delay: 1m}"),
			rule("action: throttle, throttle: {max_delay: 61s}")},
		{"may wait for one limit of a counter on one proxy, 1 to 100000", rule("action: throttle, throttle: {max_delay: 1s, max_waiting: 100000}"),
			rule("action: throttle, throttle: {max_delay: 1s, max_waiting: 100001}")},
		{"The sentence in the problem document, at most 1,024 bytes", rule("response: {message: " + x(1024) + "}"), rule("response: {message: " + x(1025) + "}")},
		{"The whole body, at most 64 KiB", rule("response: {body: " + x(64<<10) + "}"), rule("response: {body: " + x(64<<10+1) + "}")},
		{"header fields, at most 32", rule("response: {headers: {" + repeatFormat(32, "X-%d: a") + "}}"), rule("response: {headers: {" + repeatFormat(33, "X-%d: a") + "}}")},
		{"values of at most 4,096 bytes", rule("response: {headers: {A: " + x(4096) + "}}"), rule("response: {headers: {A: " + x(4097) + "}}")},
		{"violation is remembered: 1s to 366d", plain("penalty: {window: 366d}"), plain("penalty: {window: 500ms}")},
		{"that starts a penalty: 1 to 1,000.", plain("penalty: {threshold: 1000}"), plain("penalty: {threshold: 1001}")},
		{"At most 64, of 1 to 1,000,000.", plain("penalty: {multipliers: [" + repeatFormat(64, "1%02d") + "]}"), plain("penalty: {multipliers: [" + repeatFormat(65, "1%02d") + "]}")},
		{"At most 64, of 1 to 1,000,000.", plain("penalty: {multipliers: [1000000]}"), plain("penalty: {multipliers: [1000001]}")},
		{"logs and explanations, at most 256 bytes", plain("exempt: {ip: 192.0.2.1, reason: " + x(256) + "}"), plain("exempt: {ip: 192.0.2.1, reason: " + x(257) + "}")},
	} {
		if !strings.Contains(text, c.reports) {
			t.Errorf("docs/reference does not say %q", c.reports)
		}
		for document, want := range map[string]bool{c.within: true, c.beyond: false} {
			d, err := policyfile.Decode("bounds", policyfile.YAML, []byte(document))
			if err == nil {
				err = d.Check()
			}
			if (err == nil) != want {
				t.Errorf("%q: accepted %t, want %t: %v\n%.200s", c.reports, err == nil, want, err, document)
			}
		}
	}
}
