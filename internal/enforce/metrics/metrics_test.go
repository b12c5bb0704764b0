// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

func document(t *testing.T, text string) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("test", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCounts tests that outcomes are counted by policy and rule, that credentials are counted by
// their entry in the list "identify" (jwt, api_key, jwt-2), and that counting allocates nothing
// when the series exist. Outcomes of another policy in the same request are not counted.
func TestCounts(t *testing.T) {
	d := document(t, `
name: shop
identify: [{jwt: {secret: "0123456789abcdef0123456789abcdef"}}, {api_key: {keys_file: k.toml}}, {jwt: {secret: "0123456789abcdef0123456789abcdeg"}}]
rules: [{name: a, limit: 1/1m}, {name: b, limit: 1/1h}]
`)
	verifiers := []policy.Verifier{nobody{}, nobody{}, nobody{}}
	rs, err := d.CompileWith(verifiers)
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	rules, ways := m.Rules(d.Name, rs), m.CredentialsOf(d, rs)
	other := new(core.Ruleset)
	outcomes := []core.RuleOutcome{{Ruleset: rs, Index: 1, Outcome: core.OutcomeDenied}, {Ruleset: other, Index: 7, Outcome: core.OutcomeDenied},
		{Ruleset: rs, Index: -1, Outcome: core.OutcomeBlocked}, {Ruleset: rs, Index: -1, Outcome: core.OutcomeNone}}
	used := []core.CredentialUse{{Ruleset: rs, Method: 2, State: policy.CredentialExpired}, {Ruleset: other, Method: 7},
		{Ruleset: rs, Method: 1, State: policy.CredentialValid}}
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

// series returns each series as its label values, sorted by label name, and its value.
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
	for want, err := range map[string]error{"invalid": counter.ErrInvalid, "canceled": context.Canceled,
		"overloaded": fmt.Errorf("queued: %w", counter.ErrOverloaded), "timeout": context.DeadlineExceeded, "other": errors.New("?"), redisstore.KindScript.String(): &redisstore.Failure{Kind: redisstore.KindScript}} {
		if got := FailureKind(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

type nobody struct{}

func (nobody) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialUnknown
}

// TestKeyPanicsAreCollected: every front has the metric that counts panics while keys are loaded.
func TestKeyPanicsAreCollected(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New().Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "penstock_key_load_panics_total" {
			return
		}
	}
	t.Error("penstock_key_load_panics_total is not collected")
}

// TestEditsOfKeysAreCounted makes a valid and then an invalid edit of a keys file.
func TestEditsOfKeysAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New().Collectors()...)
	count := func(result string) float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "penstock_key_reloads_total" && m.GetLabel()[0].GetValue() == result {
					return m.GetCounter().GetValue()
				}
			}
		}
		t.Fatal("penstock_key_reloads_total is not collected for " + result)
		return 0
	}
	file := filepath.Join(t.TempDir(), "keys.yaml")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("keys: []")
	keys, err := credential.NewKeys(credential.KeysOptions{File: file})
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close() //nolint:errcheck // it only stops watching
	hash, err := credential.HashKey("pk_an_example_key_for_tests")
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []struct{ result, text string }{
		{"accepted", "keys: [{id: acme, hash: " + hash + "}]"}, {"refused", "keys: [{id: acme}]"},
	} {
		before := count(edit.result)
		put(edit.text)
		eventually.Until(t, 10*time.Second, "the edit is "+edit.result, func() bool { return count(edit.result) == before+1 })
	}
}
