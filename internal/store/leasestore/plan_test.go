// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// visit is a request as a front sees it.
type visit struct{ peer string }

func (v visit) Path() string                 { return "/api/search" }
func (v visit) Method() string               { return "GET" }
func (v visit) Host() string                 { return "shop.example.com" }
func (v visit) Header(string) (string, bool) { return "", false }
func (v visit) Peer() netip.Addr             { return netip.MustParseAddr(v.peer) }
func (v visit) Query() string                { return "" }
func (v visit) Remote() netip.Addr           { return v.Peer() }
func (v visit) Now() counter.Micros          { return noon }
func (v visit) Attr(string) (string, bool)   { return "", false }

// answerParts holds everything that the client and the metrics receive.
type answerParts struct {
	Decision core.Decision
	Fields   response.Fields
	Outcomes []core.Outcome
}

func (p *rig) visit(rs *core.Ruleset, v visit) (a answerParts) {
	p.Helper()
	var plan core.Plan
	plan.Add(rs, v)
	if err := p.Take(context.Background(), plan.Checks(), plan.Results()); err != nil {
		p.Fatal(err)
	}
	a.Decision = plan.Decide()
	a.Fields = new(response.Writer).Headers(&plan, &a.Decision)
	for _, o := range plan.Outcomes() {
		a.Outcomes = append(a.Outcomes, o.Outcome)
	}
	return a
}

// TestTheCacheChangesNoAnswer sends the same random traffic to two stores, of which only one
// remembers denials: their answers must be equal.
func TestTheCacheChangesNoAnswer(t *testing.T) {
	random := seed.Random(t)
	for name, limits := range map[string][]string{
		"windows":         {"5/1s", "20/10s fixed_window", "60/1m sliding_log"},
		"buckets":         {"10/1s burst 7", "100/1m burst 30"},
		"one fixed":       {"3/1s fixed_window"},
		"one of log only": {"3/500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			source := policy.Policy{Name: "shop"}
			for i, text := range limits {
				source.Rules = append(source.Rules, policy.Rule{Name: string(rune('a' + i)), Limits: []counter.Limit{*limittest.New(t, text)}})
			}
			source.Rules[0].RetryJitter = 3 * counter.Second
			if name == "one of log only" {
				watched := source.Rules[0]
				watched.Name, watched.Action, watched.RetryJitter = "watched", policy.ActionLogOnly, 0
				source.Rules = append(source.Rules, watched)
			}
			rs, err := core.Compile(source)
			if err != nil {
				t.Fatal(err)
			}
			remembering, exact := open(t, Options{}), open(t, Options{DenialsMax: -1})
			at, refused, steps := counter.Micros(0), 0, racescale.Fewer(4_000)
			for range steps {
				at += counter.Micros(random.IntN(60_000))
				v := visit{[]string{"192.0.2.1", "192.0.2.2"}[random.IntN(2)]}
				remembering.setClocks(at)
				exact.setClocks(at)
				got, want := remembering.visit(rs, v), exact.visit(rs, v)
				if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(core.Decision{}, counter.Limit{}, policy.Identity{})); diff != "" {
					t.Fatalf("at %v, other than the store alone (-):\n%s", at, diff)
				}
				if want.Decision.Denied() {
					refused++
				}
			}
			if saved := int(remembering.Stats().Denials); refused < steps/40 || saved < refused*2/3 && name != "one of log only" {
				t.Errorf("%d of %d denials were from memory", saved, refused)
			}
		})
	}
}
