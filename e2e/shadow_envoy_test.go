// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestShadowBehindEnvoy tests a candidate policy with the filter and with the rate limit service.
// The candidate is stricter than the policy in force for one path and looser for another. It
// changes no answer, and the bridge counts its decisions.
func TestShadowBehindEnvoy(t *testing.T) {
	t.Parallel()
	const policy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: api, match: {path: /api}, limit: 100/31d fixed_window}
  - {name: tight, match: {path: /tight}, limit: 6/31d fixed_window}
  - {name: loose, match: {path: /loose}, limit: 2/31d fixed_window}
`
	candidate := newRenamedFile(t, t.TempDir()+"/candidate.yaml")
	candidate.edit(strings.NewReplacer("name: shop\n", "", "6/31d", "4/31d", "2/31d", "1000/31d").Replace(policy))
	filter := &site{set: relaxedDeadline}
	service := &site{filter: builtInFilter, routes: strings.ReplaceAll(headerRoute, "FIELD", "x-user")}
	useEnvoy(t, nil, filter, service)
	for _, s := range []*site{filter, service} {
		args := []string{"--redis", redistest.Start(t).URL(), "--redis-timeout", "5s", "--shadow-policy", candidate.path}
		if s == service {
			args = append(args, "--rls-listen", "unix:"+s.grpc)
		}
		b := newBridge(t, policy, args...)
		b.listen = s.bridge
		b.run(t)
		eventually.Until(t, patience, "the bridge decides", func() bool {
			return s.get(t, "/api", "x-user", "first").header.Get("X-RateLimit-Limit") != ""
		})
		statuses := func(n int, path string) (got string) {
			for range n {
				got += fmt.Sprintf(" %d", s.get(t, path, "x-user", "ann").status)
			}
			return got
		}
		if got := statuses(6, "/tight"); got != strings.Repeat(" 200", 6) {
			t.Errorf("/tight:%s, want the policy in force", got)
		}
		if got := statuses(3, "/loose"); got != " 200 200 429" {
			t.Errorf("/loose:%s, want the policy in force", got)
		}
		client := &http.Client{Transport: b.transport()}
		told := func(present, decided string) (n int) {
			a, err := ask(client, "http://bridge/metrics")
			if err != nil {
				t.Fatal(err)
			}
			series := fmt.Sprintf("\npenstock_shadow_decisions_total{candidate=%q,policy=\"shop.shadow\",present=%q} ", decided, present)
			if _, rest, ok := strings.Cut(a.body, series); ok {
				_, _ = fmt.Sscan(rest, &n)
			}
			return n
		}
		eventually.Until(t, patience, "the candidate has decided", func() bool {
			return told("admitted", "refused") == 2 && told("refused", "admitted") == 1
		})
	}
}
