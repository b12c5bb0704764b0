// SPDX-License-Identifier: Apache-2.0

package tally

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/redisstore"
)

func document(t *testing.T, text string) *policy.Document {
	t.Helper()
	d, err := policy.Decode("test", policy.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCounts: outcomes by policy and rule, credentials by the way they came, each looked up once. What belongs to another
// policy of the same request is that one's to count.
func TestCounts(t *testing.T) {
	d := document(t, `
name: shop
identify: [{jwt: {secret: "0123456789abcdef0123456789abcdef"}}, {api_key: {keys_file: k.toml}}, {jwt: {secret: "0123456789abcdef0123456789abcdeg"}}]
rules: [{name: a, limit: 1/1m}, {name: b, limit: 1/1h}]
`)
	verifiers := []core.Verifier{nobody{}, nobody{}, nobody{}}
	rs, err := d.CompileWith(verifiers)
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	rules, ways := m.Rules(d.Name, rs), m.CredentialsOf(d, rs)
	other := new(core.Ruleset)
	outcomes := []core.RuleOutcome{{Ruleset: rs, Index: 1, Outcome: core.OutcomeDenied}, {Ruleset: other, Index: 7, Outcome: core.OutcomeDenied},
		{Ruleset: rs, Index: -1, Outcome: core.OutcomeBlocked}, {Ruleset: rs, Index: -1, Outcome: core.OutcomeNone}}
	used := []core.CredentialUse{{Ruleset: rs, Method: 2, State: core.CredentialExpired}, {Ruleset: other, Method: 7},
		{Ruleset: rs, Method: 1, State: core.CredentialValid}}
	for range 2 {
		rules.Count(outcomes)
		ways.Count(used)
	}
	got := series(t, m.Requests, m.Credentials)
	want := []string{"api_key shop valid 2", "blocked shop  2", "denied shop b 2", "jwt-2 shop expired 2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { rules.Count(outcomes); ways.Count(used) }); n != 0 {
		t.Errorf("counting allocates %v times", n)
	}
}

// series returns the values of labels, sorted by their names, and the count of each series.
func series(t *testing.T, metrics ...prometheus.Collector) (all []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			line := ""
			for _, label := range m.GetLabel() {
				line += label.GetValue() + " "
			}
			all = append(all, line+fmt.Sprint(m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	slices.Sort(all)
	return all
}

func TestFailureKind(t *testing.T) {
	for want, err := range map[string]error{"invalid": core.ErrInvalid, "canceled": context.Canceled,
		"timeout": context.DeadlineExceeded, "other": errors.New("?"), redisstore.KindScript.String(): &redisstore.Failure{Kind: redisstore.KindScript}} {
		if got := FailureKind(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

type nobody struct{}

func (nobody) Verify(string) (*core.Identity, core.CredentialState) {
	return nil, core.CredentialUnknown
}
