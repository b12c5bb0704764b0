// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/events"
)

// Desk reads and changes the counters of a running process for an operator. The operator can look
// at a client's counters, reset them and lift a penalty. A Desk works for every front and is safe
// for concurrent use.
type Desk struct {
	// Store holds the counters.
	Store counter.Store
	// Policies returns the policies in force. Nil means that the policies are unknown: the desk
	// then serves only the directory.
	Policies func() []Policy
	// Directory has the clients' records. Nil means that there is no directory.
	Directory *directory.Directory
	// Denials returns the latest denials of a client, the newest first. Nil means that they are
	// unknown.
	Denials func(client string) []events.Event
}

// Selection restricts the counters of a client.
type Selection struct {
	Policy string // only this policy; "" for all
	Rule   string // only this rule; "" for all
}

// Counter is one counter of a client.
type Counter struct {
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	// Granted are the units that grants add to the limit until GrantedUntil, the end of its window.
	Granted      int64     `json:"granted,omitempty"`
	GrantedUntil time.Time `json:"granted_until,omitzero"`
	// ShardOf is the limit before sharding, if the counter is one of several shards.
	ShardOf string `json:"shard_of,omitempty"`
	Whose   string `json:"whose"`
	Key     string `json:"key"`
	// Shared is true if other clients use the counter, too.
	Shared bool `json:"shared,omitempty"`
	// Gossip is true if the regions tell each other what they count, so that Used includes the
	// units of all regions.
	Gossip bool `json:"gossip,omitempty"`
	// Used and Remaining are units; their sum is the limit. Used includes units that a process has
	// leased and not used yet.
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	// ResetMs is the time until the window ends, the oldest unit leaves the log, or the bucket is
	// full.
	ResetMs int64 `json:"reset_ms"`
	// WaitMs is the time until one more unit is admitted, or 0 if it would be admitted now.
	WaitMs int64 `json:"wait_ms"`
}

// Penalty is the penalty of a client under one policy.
type Penalty struct {
	Policy     string `json:"policy"`
	Key        string `json:"key"`
	Violations int64  `json:"violations"`
	InForce    bool   `json:"in_force"`
	WaitMs     int64  `json:"wait_ms"`
}

// Report contains the data that the store holds about a client.
type Report struct {
	Client string `json:"client"`
	// Profiles hold the client's known properties under each policy that can identify it.
	Profiles  []Profile `json:"profiles"`
	Counters  []Counter `json:"counters"`
	Penalties []Penalty `json:"penalties"`
	// Denials are the latest denials of the client in this process, the newest first.
	Denials []events.Event `json:"denials,omitempty"`
	// Record is the client's own record in the directory, or nil.
	Record *directory.Record `json:"record,omitempty"`
	// RecordError is the reason why the record has no force, or could not be read; usually "".
	RecordError string `json:"record_error,omitempty"`
}

// Errors that the methods of [Desk] wrap. Each front maps them to its own status codes.
var (
	// ErrUnknown means that the selection names a policy or rule that is not in force.
	ErrUnknown = errors.New("not in force")
	// ErrNobody means that no policy in force can identify the client.
	ErrNobody = errors.New("no such client")
	// ErrSelection means that the selection is invalid for the operation.
	ErrSelection = errors.New("invalid selection")
	// ErrStore means that the store did not answer.
	ErrStore = errors.New("asking the store")
)

// ReasonNobody is the reason in a front's answer for [ErrNobody]. Programs recognize the error by
// this reason.
const ReasonNobody = "no_such_client"

// Look returns the counters, penalties, last denials and record of the client without charging
// anything.
func (d *Desk) Look(ctx context.Context, c *Client, s Selection) (*Report, error) {
	found, err := d.visit(ctx, c, s, counter.OpLook, func(_ core.Counter, rule string) bool {
		return s.Rule == "" || s.Rule == rule
	})
	if err != nil {
		return found, err
	}
	if editor, err := d.editor(); err == nil {
		if _, found.Record, err = editor.Look(ctx, found.Client); err != nil {
			found.RecordError = err.Error()
		}
	}
	if d.Denials == nil {
		return found, nil
	}
	for _, e := range d.Denials(found.Client) {
		if (s.Policy == "" || s.Policy == e.Policy) && (s.Rule == "" || s.Rule == e.Rule) {
			found.Denials = append(found.Denials, e)
		}
	}
	return found, nil
}

// Reset deletes the counters of one rule, or all counters that belong to this client only. A
// counter that several clients share must be selected by its rule, because its reset gives all
// these clients a fresh allowance. If the client's tier cannot be known, Reset deletes the client's
// counters under every tier. Reset returns the counters as they are after the reset.
func (d *Desk) Reset(ctx context.Context, c *Client, s Selection) (*Report, error) {
	return d.visit(ctx, c, s, counter.OpReset, func(ctr core.Counter, rule string) bool {
		return ctr.Rule >= 0 && (s.Rule == rule || s.Rule == "" && ctr.Own)
	})
}

// Lift lifts the penalties of the client and forgets its violations.
func (d *Desk) Lift(ctx context.Context, c *Client, s Selection) (*Report, error) {
	if d.Policies == nil {
		return nil, errNoPolicies
	}
	if err := s.check(d.Policies()); err != nil {
		return nil, err
	}
	if s.Rule != "" {
		return nil, &selectionError{kind: ErrSelection,
			text: "rule has no effect here: a penalty belongs to a client and a policy; leave it out"}
	}
	return d.visit(ctx, c, s, counter.OpReset, func(ctr core.Counter, _ string) bool { return ctr.Rule < 0 })
}

// errNoPolicies is the error of an operation that needs the policies, at a desk without policies.
var errNoPolicies error = &selectionError{kind: ErrSelection,
	text: "the counters of a client follow from the policies, which are not known here; name the policy file with --policy-file"}

// selectionError is an error with its own text that wraps a kind.
type selectionError struct {
	kind error
	text string
}

func (e *selectionError) Error() string { return e.text }
func (e *selectionError) Unwrap() error { return e.kind }

// Selection.check returns an error if the selection names a policy or rule that is not in force.
func (s *Selection) check(inForce []Policy) error {
	var policies, rules []string
	for _, p := range withCandidates(inForce) {
		rs := p.Ruleset
		policies = append(policies, rs.Name())
		if s.Policy != "" && s.Policy != rs.Name() {
			continue
		}
		for i := range rs.Len() {
			rules = append(rules, rs.RuleName(i))
		}
	}
	text := ""
	switch {
	case s.Policy != "" && !slices.Contains(policies, s.Policy):
		text = fmt.Sprintf("no policy %q is in force; there are: %q", s.Policy, slices.Compact(policies))
	case s.Rule == "" || slices.Contains(rules, s.Rule):
		return nil
	case s.Policy != "":
		text = fmt.Sprintf("the policy %q has no rule %q; /penstock/rules lists its rules", s.Policy, s.Rule)
	default:
		text = fmt.Sprintf("no policy in force has a rule %q; /penstock/rules lists all rules", s.Rule)
	}
	return &selectionError{kind: ErrUnknown, text: text}
}

// visit is one operation of a desk on the counters of a client.
type visit struct {
	desk  *Desk
	op    counter.Op
	wants func(ctr core.Counter, rule string) bool
	seen  map[string]bool // the keys of the counters that were visited
	found *Report
}

// Desk.visit applies the operation op to every counter ctr of the client for which wants(ctr, rule)
// is true.
func (d *Desk) visit(ctx context.Context, c *Client, s Selection, op counter.Op, wants func(core.Counter, string) bool,
) (*Report, error) {
	if d.Policies == nil {
		return nil, errNoPolicies
	}
	policies := d.Policies()
	if err := s.check(policies); err != nil {
		return nil, err
	}
	if s.Policy != "" {
		policies = slices.DeleteFunc(slices.Clone(policies), func(p Policy) bool { return p.Ruleset.Name() != s.Policy })
	}
	if err := checkTier(c.who.Tier, policies); err != nil {
		return nil, err
	}
	c = d.WithKey(ctx, c, policies)
	v := &visit{desk: d, op: op, wants: wants, seen: map[string]bool{},
		found: &Report{Client: c.String(), Profiles: []Profile{}, Counters: []Counter{}, Penalties: []Penalty{}}}
	var strange error
	var deciding []*Policy
	for i := range policies {
		deciding = append(deciding, policies[i].deciding(c, op)...)
	}
	for _, p := range deciding {
		f, err := c.In(p)
		switch {
		case errors.Is(err, ErrNobody):
			strange = cmp.Or(strange, err)
			f = &Profile{identity: c.who}
		case err != nil:
			return nil, err
		default:
			v.found.Profiles = append(v.found.Profiles, *f)
		}
		if err := v.policy(ctx, p, c, f, err != nil); err != nil {
			return nil, err
		}
	}
	if len(v.found.Profiles) == 0 && strange != nil {
		return nil, strange
	}
	return v.found, nil
}

// visit.policy visits the counters of the client under one policy. If stranger is true, the policy
// cannot identify the client, and only the counters that clients share are visited.
func (v *visit) policy(ctx context.Context, p *Policy, c *Client, f *Profile, stranger bool) error {
	var plan core.Plan
	for _, who := range v.variants(p, f) {
		counters := plan.AllCountersOf(p.Ruleset, who, c)
		v.desk.Directory.Prepare(ctx, &plan, counters)
		for range counters {
			wants := func(ctr core.Counter, rule string) bool {
				switch {
				case stranger && (ctr.Own || ctr.Rule < 0), ctr.Rule >= 0 && !p.canCharge(ctr.Rule, &who, c.addr.IsValid()):
					return false
				}
				return v.wants(ctr, rule)
			}
			if err := v.ask(ctx, &plan, p.Ruleset, wants); err != nil {
				return err
			}
		}
	}
	return nil
}

// visit.variants returns the identities whose counters are visited: one, unless counters are reset
// and the tier cannot be known.
func (v *visit) variants(p *Policy, f *Profile) []policy.Identity {
	all := []policy.Identity{f.identity}
	if v.op == counter.OpReset && f.isUnknown("tier") {
		for _, tier := range p.tiers() {
			who := f.identity
			who.Tier = tier
			all = append(all, who)
		}
	}
	return all
}

// checkTier returns an error if none of the policies mentions the stated tier.
func checkTier(tier string, policies []Policy) error {
	if policies = withCandidates(policies); tier == "" || slices.ContainsFunc(policies, func(p Policy) bool { return p.mentions(tier) }) {
		return nil
	}
	var known []string
	for i := range policies {
		known = append(known, policies[i].tiers()...)
	}
	slices.Sort(known)
	return &selectionError{kind: ErrUnknown, text: fmt.Sprintf("no policy in force has a tier %q; there are: %q", tier,
		slices.Compact(known))}
}

// visit.ask applies the operation to each counter of the plan for which wants(ctr, rule) is true
// and which was not visited before. It adds the results to the report.
func (v *visit) ask(ctx context.Context, plan *core.Plan, rs *core.Ruleset, wants func(core.Counter, string) bool) error {
	var checks []counter.Check
	var counters []core.Counter
	for i, check := range plan.Checks() {
		ctr := plan.Counter(i)
		rule := ""
		if ctr.Rule >= 0 {
			rule = rs.RuleName(ctr.Rule)
		}
		if !v.seen[string(check.Key)] && wants(ctr, rule) {
			v.seen[string(check.Key)] = true
			check.Op, check.Guard = v.op, 0
			checks, counters = append(checks, check), append(counters, ctr)
		}
	}
	if len(checks) == 0 {
		return nil
	}
	results := make([]counter.Result, len(checks))
	if err := v.desk.Store.Take(ctx, checks, results); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	for i := range checks {
		v.found.include(rs, &checks[i], &results[i], counters[i])
	}
	return nil
}

// Report.include adds the result of one check to the report.
func (r *Report) include(rs *core.Ruleset, check *counter.Check, result *counter.Result, ctr core.Counter) {
	name, key := rs.Name(), string(check.Key)
	if ctr.Rule < 0 {
		r.Penalties = append(r.Penalties, Penalty{Policy: name, Key: key, Violations: result.Violations,
			InForce: result.Denied, WaitMs: ceilMillis(result.Wait)})
		return
	}
	one := Counter{Gossip: check.Gossip, Policy: name, Rule: rs.RuleName(ctr.Rule), Limit: check.Limit.String(),
		Whose: ctr.Whose, Key: key, Shared: !ctr.Own, Used: max(check.Limit.Capacity()-result.Remaining, 0), Remaining: result.Remaining,
		ResetMs: ceilMillis(result.Reset), WaitMs: ceilMillis(result.Wait)}
	if ctr.Shards > 0 {
		one.ShardOf = ctr.Limit.String()
	}
	if ctr.Granted > 0 {
		if before, err := check.Limit.Resized(check.Limit.Count()-ctr.Granted, 0); err == nil {
			one.Limit, one.Granted = before.String(), ctr.Granted
			one.GrantedUntil = time.UnixMicro(int64(result.At + result.Reset)).UTC()
		}
	}
	r.Counters = append(r.Counters, one)
}

func ceilMillis(span counter.Micros) int64 {
	return int64((span + counter.Millisecond - 1) / counter.Millisecond)
}

// Checks returns the client's profile under a policy, and checks that read the client's counters
// and penalty. If a rule is named, only checks of that rule are returned.
func (c *Client) Checks(p *Policy, rule string) ([]counter.Check, *Profile, error) {
	asked := new(recorder)
	d := &Desk{Store: asked, Policies: func() []Policy { return []Policy{*p} }}
	r, err := d.Look(context.Background(), c, Selection{Rule: rule})
	if err != nil {
		return nil, nil, err
	}
	return asked.checks, &r.Profiles[0], nil
}

// recorder is a store that records its checks and returns no results.
type recorder struct{ checks []counter.Check }

// Take implements [counter.Store].
func (r *recorder) Take(_ context.Context, checks []counter.Check, _ []counter.Result) error {
	for _, check := range checks {
		check.Key = slices.Clone(check.Key)
		r.checks = append(r.checks, check)
	}
	return nil
}
