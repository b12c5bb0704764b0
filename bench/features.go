// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tokenSecret signs the token of featureCost.
const tokenSecret = "a shared secret of 32 characters"

// feature is a site that is measured in a Caddy.
type feature struct {
	name   string
	caddy  string
	site   string
	header string // a header that every request has
}

// featureCost compares the CPU time of a request under three rules in memory with the same rules
// and further features of a policy. The baseline sends the same answers without a decision.
func featureCost(o options, out *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	features, err := allFeatures(o, b.dir)
	if err != nil {
		return err
	}
	systems := make([]*system, len(features))
	for i, f := range features {
		p, url, err := b.caddyNode(caddySetting{program: f.caddy, site: f.site})
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		systems[i] = &system{name: f.name, url: url, processes: []*process{p}, traffic: traffic{header: f.header}}
	}
	if err := interleaved(o, systems, callers); err != nil {
		return err
	}
	out.table("", "CPU µs/request", "above the baseline", "ratio")
	base := of(systems[0].seen, totalCPU)
	for _, s := range systems {
		m := of(s.seen, totalCPU)
		out.row(s.name, fmt.Sprintf("%.1f", m), fmt.Sprintf("%+.1f", m-base), fmt.Sprintf("%.2f", m/base))
	}
	return nil
}

// allFeatures returns the sites to measure, the baseline first. Every answer has the same body. The
// feature cost_after reads the request's cost from it.
func allFeatures(o options, dir string) ([]feature, error) {
	answer := "\theader Content-Type application/json\n\trespond `{\"usage\":{\"total_tokens\":3},\"text\":\"" + strings.Repeat("word ", 40) + "\"}`"
	three := strings.Replace(fmt.Sprintf(threeRules, "1000000000"), "\trespond \"ok\"", answer, 1)
	with := func(words string) string { return strings.Replace(three, "penstock {", "penstock {\n"+words, 1) }
	onOne := func(words string) string { return strings.Replace(three, "token_bucket", "token_bucket\n"+words, 1) }
	candidate := filepath.Join(dir, "candidate.yaml")
	rules := "name: bench\nrules:\n  - { name: one, limit: 1000000000/1m token_bucket }\n  - { name: two, limit: 1000000000/1h }\n" +
		"  - { name: three, match: { path: /* }, limit: 1000000000/1d fixed_window }\n"
	if err := os.WriteFile(candidate, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	features := []feature{
		{name: "headers only (baseline)", site: "\tbench_headers\n" + answer},
		{name: "penstock, 3 rules", site: three},
		{name: "with a remembered token of 700 bytes", header: "Authorization: Bearer " + token(),
			site: with("identify jwt {\n secret \"" + tokenSecret + "\"\n }")},
		{name: "with the token, which nobody looks at", header: "Authorization: Bearer " + token(), site: three},
		{name: "with cost_after json", site: onOne("cost_after json usage.total_tokens {\n estimate 10\n default 10\n }")},
		{name: "with count_if", site: onOne("count_if status 401 403")},
		{name: "with refund_on", site: onOne("refund_on status 5xx")},
		{name: "with a penalty", site: with("penalty {\n window 1h\n threshold 3\n multipliers 1 2 4\n }")},
		{name: "with shadow policy, 3 rules", site: with("name bench-site\n shadow policy " + candidate)},
	}
	for i := range features {
		features[i].caddy = o.caddy
	}
	if o.before != "" {
		features = append(features, feature{name: "before: headers only", caddy: o.before, site: features[0].site},
			feature{name: "before: penstock, 3 rules", caddy: o.before, site: three})
	}
	return features, nil
}

// token returns a token of about 700 bytes that is valid for a day.
func token() string {
	encode := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":"u_42","exp":%d,"scope":%q}`, time.Now().Add(24*time.Hour).Unix(), strings.Repeat("r", 435))
	text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(claims))
	mac := hmac.New(sha256.New, []byte(tokenSecret))
	mac.Write([]byte(text))
	return text + "." + encode(mac.Sum(nil))
}
