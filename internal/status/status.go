// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// Answer is the JSON that a client gets. The zero Answer covers no policy.
type Answer struct {
	Client    string  `json:"client"`
	Identity  string  `json:"identity"`
	User      string  `json:"user,omitempty"`
	Tenant    string  `json:"tenant,omitempty"`
	Tier      string  `json:"tier,omitempty"`
	Penalized int64   `json:"penalized,omitempty"`
	Limits    []Limit `json:"limits"`

	denied bool // a credential is not valid
}

// Limit is the state of one limit.
type Limit struct {
	Policy     string `json:"policy"`
	Limit      int64  `json:"limit"`
	Window     string `json:"window"`
	Remaining  int64  `json:"remaining"`
	Reset      int64  `json:"reset"`
	RetryAfter int64  `json:"retry_after,omitempty"`

	rule int // the index of the rule; Policy does not identify it
}

// Denied reports whether a credential was rejected and nothing else identifies the client.
func (a *Answer) Denied() bool { return a.denied && a.Identity == "" }

// JSON returns the answer in JSON, with a line end.
func (a *Answer) JSON() ([]byte, error) {
	if a.Limits == nil {
		a.Limits = []Limit{}
	}
	text, err := json.Marshal(a)
	return append(text, '\n'), err
}

// Write writes the answer.
func (a *Answer) Write(w http.ResponseWriter) error {
	text, err := a.JSON()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text) // a failed write is not an error
	return nil
}

// Challenge is the WWW-Authenticate field for a client whose credential was rejected.
const Challenge = `Bearer error="invalid_token"`

// Looker reads the state of limits. Plan is working memory, which the caller may reuse.
type Looker struct {
	Store     counter.Store
	Directory *directory.Directory // nil without one
	Plan      *core.Plan
}

// Choose resets the plan and calls the function named choose with it. That function returns the
// policy by which the client's requests are decided. If the plan then needs an API key that has not
// been read yet, Choose reads the key and calls the function again.
func (l *Looker) Choose(choose func(*core.Plan) *core.Ruleset) (rs *core.Ruleset) {
	p := l.Plan
	p.Reset()
	if l.Directory != nil {
		p.UseDirectory(l.Directory)
	}
	if rs = choose(p); len(p.Unresolved()) > 0 {
		l.Directory.Resolve(context.Background(), p, func() { rs = choose(p) })
	}
	p.Reset()
	return rs
}

// Add adds the client's remaining allowance under one policy: one page of counters, and further
// pages if the last rule of that page has more shards.
func (a *Answer) Add(l *Looker, rs *core.Ruleset, attrs policy.Attributes) error {
	p, before := l.Plan, len(a.Limits)
	counters := p.AllCounters(rs, attrs)
	l.Directory.Prepare(context.Background(), p, counters)
	first, last := true, 0
	for checks := range counters {
		if first {
			a.setClient(p)
		}
		if len(checks) == 0 || !first && p.Counter(0).Rule != last {
			return nil
		}
		first, last = false, p.Counter(len(checks)-1).Rule
		if err := l.Store.Take(context.Background(), checks, p.Results()); err != nil {
			return err
		}
		a.addPage(p, before)
	}
	return nil
}

// addPage adds the results of one page under one policy. The argument named before is the index at
// which the policy's limits start.
func (a *Answer) addPage(p *core.Plan, before int) {
	for i := range p.Checks() {
		counter, result := p.Counter(i), &p.Results()[i]
		switch {
		case counter.Rule < 0 && result.Denied:
			a.Penalized = max(a.Penalized, ceilSeconds(result.Wait))
		case counter.Rule < 0 || counter.Hidden:
		default:
			one := limitOf(counter.Policy, counter.Limit, result)
			one.rule = counter.Rule
			at := slices.IndexFunc(a.Limits[before:], func(l Limit) bool {
				return l.rule == counter.Rule && l.Policy == counter.Policy
			})
			if at < 0 {
				a.Limits = append(a.Limits, one)
				continue
			}
			a.Limits[before+at].include(&one)
		}
	}
}

// Limit.include adds the result of another shard of the same limit.
func (l *Limit) include(other *Limit) {
	l.Remaining += other.Remaining
	l.Reset, l.RetryAfter = max(l.Reset, other.Reset), min(l.RetryAfter, other.RetryAfter)
}

// setClient records the client as identified by the first policy that identifies one.
func (a *Answer) setClient(p *core.Plan) {
	for _, c := range p.Credentials() {
		a.denied = a.denied || c.State != policy.CredentialValid
	}
	client := p.Identity()
	if a.Identity != "" || client.Kind == "" {
		return
	}
	a.Identity, a.Client = client.Kind, strings.Clone(client.ID)
	a.User, a.Tenant, a.Tier = strings.Clone(client.User), strings.Clone(client.Tenant), strings.Clone(client.Tier)
}

func limitOf(policy string, limit *counter.Limit, result *counter.Result) Limit {
	l := Limit{Policy: policy, Limit: limit.Capacity(), Window: limit.WindowLabel(), Remaining: result.Remaining,
		Reset: ceilSeconds(result.At + max(result.Reset, counter.Second))}
	if result.Denied {
		l.RetryAfter = max(1, ceilSeconds(result.Wait))
	}
	return l
}

// ceilSeconds converts to whole seconds, rounded up.
func ceilSeconds(m counter.Micros) int64 { return int64((m + counter.Second - 1) / counter.Second) }
