// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/named"
)

// inquiry is what an operator asks about: a client, and which of its counters.
type inquiry struct {
	*named.Client
	policy string // only this one; "" for all
	rule   string // only this one; "" for all
}

// namedWords are the parameters that say which client and which counters are meant.
var namedWords = []string{"client", "policy", "rule", "host", "tier", "tenant", "user"}

// readNamed reads which client is meant: client=KIND:ID, and what else rules may count by.
func (a *App) readNamed(r *http.Request) (*inquiry, error) {
	query, err := readQuery(r, namedWords)
	if err != nil {
		return nil, err
	}
	client, err := named.Parse(named.Words{Client: query.Get("client"), User: query.Get("user"), Tier: query.Get("tier"),
		Tenant: query.Get("tenant"), Host: query.Get("host")})
	if err != nil {
		return nil, refusal(http.StatusBadRequest, err)
	}
	n := &inquiry{Client: client, policy: query.Get("policy"), rule: query.Get("rule")}
	return n, a.knows(n)
}

// readQuery reads the parameters of a question. What is misspelled would otherwise widen it: policy left out is all of
// them.
func readQuery(r *http.Request, words []string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusal(http.StatusBadRequest, fmt.Errorf("the query cannot be read: %w", err))
	}
	for word, values := range query {
		if !slices.Contains(words, word) {
			return nil, refusal(http.StatusBadRequest, fmt.Errorf("%q is no parameter of %s; there are: %q", word, r.URL.Path, words))
		}
		if len(values) > 1 {
			return nil, refusal(http.StatusBadRequest, fmt.Errorf("%q stands there twice; keep one", word))
		}
	}
	return query, nil
}

// knows returns an error if the policy or the rule is not there that is asked about.
func (a *App) knows(n *inquiry) error {
	var policies, rules []string
	for _, e := range a.inForce() {
		of := e.edition.current.Load().ruleset
		policies = append(policies, of.Name())
		if n.policy != "" && n.policy != of.Name() {
			continue
		}
		for i := range of.Len() {
			rules = append(rules, of.RuleName(i))
		}
	}
	switch {
	case n.policy != "" && !slices.Contains(policies, n.policy):
		return refusal(http.StatusNotFound, fmt.Errorf("no policy %q is in force; there are: %q", n.policy, slices.Compact(policies)))
	case n.rule == "" || slices.Contains(rules, n.rule):
		return nil
	case n.policy != "":
		return refusal(http.StatusNotFound, fmt.Errorf("the policy %q has no rule %q; /penstock/rules tells which it has", n.policy, n.rule))
	}
	return refusal(http.StatusNotFound, fmt.Errorf("no policy in force has a rule %q; /penstock/rules tells which there are", n.rule))
}

// counterTold is what the endpoint tells of a counter.
type counterTold struct {
	Policy    string `json:"policy"`
	Rule      string `json:"rule"`
	Limit     string `json:"limit"`
	ShardOf   string `json:"shard_of,omitempty"` // the whole limit, if this counter is one of several shards
	Whose     string `json:"whose"`
	Key       string `json:"key"`
	Remaining int64  `json:"remaining"`
	ResetMs   int64  `json:"reset_ms"`
	WaitMs    int64  `json:"wait_ms"` // until one more unit would pass; 0 if it would now
}

// penaltyTold is what the endpoint tells of a client's penalty.
type penaltyTold struct {
	Policy     string `json:"policy"`
	Key        string `json:"key"`
	Violations int64  `json:"violations"`
	InForce    bool   `json:"in_force"`
	WaitMs     int64  `json:"wait_ms"`
}

// clientTold is what the endpoint tells of a client.
type clientTold struct {
	Client    string        `json:"client"`
	Counters  []counterTold `json:"counters"`
	Penalties []penaltyTold `json:"penalties"`
}

// visit asks the store about every counter of the client in every policy; op is what to ask of each that is wanted.
func (a *App) visit(r *http.Request, n *inquiry, wants func(core.Counter, string) bool, op core.Op) (*clientTold, error) {
	told := &clientTold{Client: n.String(), Counters: []counterTold{}, Penalties: []penaltyTold{}}
	var plan core.Plan
	for _, e := range a.inForce() {
		now := e.edition.current.Load()
		if n.policy != "" && n.policy != now.ruleset.Name() {
			continue
		}
		who := n.In(now.ruleset)
		for from, more := 0, true; more; more = from != 0 {
			plan.Reset()
			from = plan.AddAllOf(now.ruleset, who, n, from)
			if err := a.ask(r, &plan, told, now, wants, op); err != nil {
				return nil, err
			}
		}
	}
	return told, nil
}

// ask puts the plan's checks that are wanted to the store and adds what it says.
func (a *App) ask(r *http.Request, plan *core.Plan, told *clientTold, now *edition, wants func(core.Counter, string) bool,
	op core.Op,
) error {
	var checks []core.Check
	var counters []core.Counter
	for i, check := range plan.Checks() {
		counter := plan.Counter(i)
		rule := ""
		if counter.Rule >= 0 {
			rule = now.ruleset.RuleName(counter.Rule)
		}
		if wants(counter, rule) {
			check.Op, check.Guard = op, 0
			checks, counters = append(checks, check), append(counters, counter)
		}
	}
	if len(checks) == 0 {
		return nil
	}
	results := make([]core.Result, len(checks))
	if err := a.store.Take(r.Context(), checks, results); err != nil {
		return refusal(http.StatusServiceUnavailable, fmt.Errorf("asking the store: %w", err))
	}
	for i := range checks {
		told.add(&checks[i], &results[i], counters[i], now)
	}
	return nil
}

func (t *clientTold) add(check *core.Check, result *core.Result, counter core.Counter, now *edition) {
	name, key := now.ruleset.Name(), string(check.Key)
	if counter.Rule < 0 {
		t.Penalties = append(t.Penalties, penaltyTold{Policy: name, Key: key, Violations: result.Violations,
			InForce: result.Refused, WaitMs: ceilMillis(result.Wait)})
		return
	}
	one := counterTold{Policy: name, Rule: now.ruleset.RuleName(counter.Rule),
		Limit: check.Limit.String(), Whose: counter.Whose, Key: key, Remaining: result.Remaining,
		ResetMs: ceilMillis(result.Reset), WaitMs: ceilMillis(result.Wait)}
	if counter.Shards > 0 {
		one.ShardOf = counter.Limit.String()
	}
	t.Counters = append(t.Counters, one)
}

func ceilMillis(span core.Micros) int64 {
	return int64((span + core.Millisecond - 1) / core.Millisecond)
}

func (a *App) tellClient(r *http.Request) (any, error) {
	n, err := a.readNamed(r)
	if err != nil {
		return nil, err
	}
	return a.visit(r, n, func(_ core.Counter, rule string) bool { return n.rule == "" || n.rule == rule }, core.OpLook)
}

// resetClient forgets the client's counters: of one rule, or of all whose counters are the client's own. A counter that
// others share would give them a fresh allowance, so it is forgotten only by name.
func (a *App) resetClient(r *http.Request) (any, error) {
	n, err := a.readNamed(r)
	if err != nil {
		return nil, err
	}
	return a.visit(r, n, func(c core.Counter, rule string) bool {
		return c.Rule >= 0 && (n.rule == rule || n.rule == "" && c.Own)
	}, core.OpReset)
}

// liftPenalty lifts the client's penalty and forgets its violations.
func (a *App) liftPenalty(r *http.Request) (any, error) {
	n, err := a.readNamed(r)
	if err != nil {
		return nil, err
	}
	if n.rule != "" {
		return nil, refusal(http.StatusBadRequest, errors.New("rule means nothing here: a penalty is a client's under a policy; "+
			"leave it out"))
	}
	return a.visit(r, n, func(c core.Counter, _ string) bool { return c.Rule < 0 }, core.OpReset)
}
