// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Ruleset is a compiled policy. A Ruleset is immutable and safe for concurrent use.
type Ruleset struct {
	name     string
	disabled bool
	rules    []rule  // in the order of the policy, including disabled ones
	enabled  []int32 // the index of the rule for each condition of the matcher
	matcher  *match.Matcher
	who      identify.Rules
	exempt   *identify.List
	block    *identify.List
	blocks   bool // whether an enabled rule has the action block
	// dependsOnClient reports whether decisions depend on properties of a client other than the one
	// by which it is counted.
	dependsOnClient bool
	penalty         *counter.Penalty // nil: none
	groups          int
	// whether some rules replace others
	replaces bool
	compares comparedParts
	// precedences hold the properties by which rules compete in their groups. Decisions use only
	// rule.rank, which is computed from them.
	precedences []groupOrder
	calendar    boundsFinder          // nil if the program calls no store
	granting    granting              // nil if the program calls no store
	families    policy.HeaderFamilies // never 0
	onError     counter.OnError
}

// rule is a compiled [policy.Rule].
type rule struct {
	name    string
	action  policy.Action
	missing policy.Missing
	onError counter.OnError // OnErrorInherit means that the rule denies nothing
	leases  bool            // lease units of its limits where possible
	hidden  bool            // its limits are not shown to clients
	quota   bool            // if several descriptors have a quota, one with room is enough
	group   int32           // -1: none
	rank    int32           // of the matching rules of a group, the one with the lowest rank wins
	scope   string
	tag     string // the whole tag, if the rule has one counter for all clients
	dims    []dimension
	limits  []ruleLimit
	tiers   map[string]limitSet // the limits of clients of a tier, in place of the field limits; nil if there are none
	slot    uint32              // the slot of ownLimits at which the search for the rule begins
	costs   []ruleCost
	sharded bool             // whether the rule has shards
	spread  sharding         // nil without shards, and in a program that calls no store
	region  ruleRegion       // nil without regions
	when    *match.Condition // nil if the rule is disabled
	// replaces are the rules that do not apply to requests that this rule applies to.
	replaces []*rule
	after    ruleAfter
}

// errMalformed is the only error of Assemble. Compile reports the details to the author of the
// policy.
var errMalformed = errors.New("not a policy that Compile accepts")

// Assemble builds the index of a policy that another process has compiled, for example one that was
// received in compact form. The ruleset decides like one that Compile returns, but its checks have
// no Bounds and no shards, so they must not be sent to a store. The Ruleset shares no memory with
// p. Assemble returns an error if the policy cannot be used to decide requests, but it does not
// detect other mistakes. A program that calls only Assemble does not link the code that describes
// problems.
func Assemble(p policy.Policy) (*Ruleset, error) {
	rs := &Ruleset{name: p.Name, disabled: p.Disabled, families: cmp.Or(p.Headers, policy.HeadersX|policy.HeadersIETF),
		onError: p.OnError, dependsOnClient: dependsOnClient(&p)}
	if !wellFormed(&p) || !rs.who.Compile(&p) {
		return nil, errMalformed
	}
	rs.penalty = compilePenalty(p.Penalty)
	conditions, rules := rs.compileRules(&p)
	var exempt, block bool
	rs.exempt, exempt = identify.CompileList("exempt", p.Exempt)
	rs.block, block = identify.CompileList("block", p.Block)
	if !rules || !exempt || !block {
		return nil, errMalformed
	}
	rs.matcher = match.NewMatcher(conditions)
	return rs, nil
}

// Name returns the policy's namespace.
func (rs *Ruleset) Name() string { return rs.name }

// OnError returns the policy's action for requests that the store does not answer.
func (rs *Ruleset) OnError() counter.OnError { return rs.onError }

// Families returns the families of header fields that the policy sets, never the zero set.
func (rs *Ruleset) Families() policy.HeaderFamilies { return rs.families }

// Len returns the number of rules, including disabled ones.
func (rs *Ruleset) Len() int { return len(rs.rules) }

// RuleName returns the name of the i-th rule of the policy, for i from 0 to Len()-1.
func (rs *Ruleset) RuleName(i int) string { return rs.rules[i].name }

// compileRules fills in the rules and returns the conditions of the enabled ones. The result ok is
// false if a rule cannot be compiled.
func (rs *Ruleset) compileRules(p *policy.Policy) (conditions []match.Condition, ok bool) {
	rs.rules, rs.precedences = make([]rule, len(p.Rules)), make([]groupOrder, len(p.Rules))
	conditions = make([]match.Condition, 0, len(p.Rules))
	groups := map[string]int32{}
	for i := range p.Rules {
		source, r := &p.Rules[i], &rs.rules[i]
		when, matches := match.CompileMatch(&source.Match)
		costs, costly := compileCosts(source.Cost)
		if !matches || !costly {
			return nil, false
		}
		r.compile(p, source)
		r.costs = costs
		r.group = groupOf(p, source, groups)
		if source.Disabled {
			continue
		}
		rs.precedences[i] = groupOrder{priority: source.Priority, specific: specificityOf(&when, source)}
		// An allow rule must match every reading of the path and every element of its headers.
		when.EveryReading = source.Action == policy.ActionAllow
		rs.blocks = rs.blocks || source.Action == policy.ActionBlock
		rs.compares.addRule(source, &when, costs)
		rs.enabled = append(rs.enabled, int32(i))
		// the capacity suffices, so the rules can point into the slice
		conditions = append(conditions, when)
		r.when = &conditions[len(conditions)-1]
	}
	rs.groups = len(groups)
	rs.linkReplaced(p)
	rs.rank()
	return conditions, true
}

func groupOf(p *policy.Policy, source *policy.Rule, groups map[string]int32) int32 {
	if source.Group == "" && p.Enforce != policy.EnforceFirst {
		return -1
	}
	if group, known := groups[source.Group]; known {
		return group
	}
	group := int32(len(groups))
	groups[source.Group] = group
	return group
}

func (r *rule) compile(p *policy.Policy, source *policy.Rule) {
	r.name = source.Name
	r.action = source.Action
	r.missing = source.Missing
	onError := source.OnError
	if onError == counter.OnErrorInherit {
		if onError = p.OnError; onError == counter.OnErrorInherit {
			// the default, set explicitly for the code that answers in place of a store
			onError = counter.OnErrorAllow
		}
	}
	if source.Action == policy.ActionReject || source.Action == policy.ActionThrottle {
		r.onError = onError
	}
	r.leases = mayLease(p, source)
	r.hidden = policy.HiddenByDefault(source) && !source.Expose
	r.quota = source.Quota
	r.scope = keyScope(p.Name, source.Name)
	if source.PerNone {
		r.tag = "{" + string(appendEscaped(nil, source.Name)) + "}"
	} else {
		r.dims = compileDimensions(source.Per)
	}
	r.sharded = source.Shards > 0
	r.limits, r.tiers = compileLimits(source.Name, source.Limits), compileTiers(source)
	r.slot = overrideSlot(source.Name)
	r.compileAfter(source)
}

// compilePenalty returns a copy of the penalty with its defaults filled in; nil for nil.
func compilePenalty(source *counter.Penalty) *counter.Penalty {
	if source == nil {
		return nil
	}
	penalty := *source
	penalty.Multipliers = slices.Clone(source.Multipliers)
	penalty.Max = cmp.Or(source.Max, source.Window)
	return &penalty
}

// compileDimensions returns the dimensions in the order in which keys list them, which does not
// depend on their order in the policy.
func compileDimensions(per []policy.Dimension) []dimension {
	if len(per) == 0 {
		per = []policy.Dimension{{Kind: policy.PerClient}}
	}
	dims := make([]dimension, len(per))
	for i, d := range per {
		dims[i] = newDimension(d)
	}
	return slim.Sorted(dims, func(a, b *dimension) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.label, b.label))
	})
}
