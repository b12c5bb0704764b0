// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a policy. They keep a policy that a program wrote, or a stranger, from taking the proxy's memory.
const (
	RulesMax      = 100_000 // rules of a policy: ten times what is measured, and compiled within seconds
	NameBytesMax  = 64      // a name stands in every key, metric and header field
	DimensionsMax = 8       // entries of a rule's per: with the bound of a value they bound a key
	IdentifyMax   = 16      // ways of identifying a client: each is tried at every request
	costsMax      = 64      // entries of a rule's cost list: each is tried at every request
)

// Ruleset is a compiled policy. It is immutable and safe for concurrent use.
type Ruleset struct {
	name     string
	disabled bool
	rules    []rule  // as the policy lists them, disabled ones included
	enabled  []int32 // the rule of each of the matcher's conditions
	matcher  *matcher
	finders  []finder
	prefixes prefixBits // what per: [ip] counts as one
	believes
	exempt  *listing
	block   *listing
	blocks  bool     // an enabled rule blocks
	penalty *Penalty // nil: none
	groups  int
	// replaces says that there are rules that replace others.
	replaces bool
	compares compares
	// standings say how the rules compete in their groups; requests need no more of it than rule.rank.
	standings []standing
	calendar  boundsFinder   // nil: no store is asked
	families  HeaderFamilies // never 0
	onError   OnError
}

// rule is a [Rule] made ready for requests.
type rule struct {
	name    string
	action  Action
	missing Missing
	onError OnError // OnErrorInherit: nothing is refused by it
	leases  bool    // units of its limits, as far as they can be
	hidden  bool    // its limits are not shown to clients
	quota   bool    // of several descriptors with it, one with room is enough
	group   int32   // -1: none
	rank    int32   // of the rules of a group that match, the lowest wins
	scope   string
	tag     string // the whole tag of a rule with one counter for everybody
	dims    []dimension
	limits  []ruleLimit
	tiers   map[string]limitSet // in place of limits; nil if there are none
	slot    uint32              // where Overrides look for the rule
	costs   []ruleCost
	sharded bool       // it has shards
	spread  spreader   // of a rule with shards; nil of others, and where no store is asked
	when    *condition // nil if the rule is disabled
	// replaces are the rules that are out of play where this one is in play.
	replaces []*rule
	after    ruleAfter
}

// Compile checks the whole policy and builds its index. The error is [Problems], with every problem found. The Ruleset
// shares no memory with p. A policy of 10,000 rules takes a fraction of a second.
func Compile(p Policy) (*Ruleset, error) {
	v := verifier{policy: &p}
	if v.verify(); len(v.problems) > 0 {
		return nil, v.problems
	}
	rs, err := Assemble(p)
	if err != nil {
		return nil, err
	}
	rs.calendar = newCalendar(p.Timezone)
	rs.spread(&p)
	if crowd := rs.findCrowd(&p); len(crowd) > 0 {
		return nil, crowd
	}
	return rs, nil
}

// errUnsound is all that Assemble says: whoever wrote the policy was told more by Compile.
var errUnsound = errors.New("not a policy that Compile takes")

// Assemble builds the index of a policy that Compile has taken elsewhere, such as one that was sent in its compact form: it
// decides as Compile's does, except that the checks of a plan have no Bounds and no shards, so that they are for no store. The Ruleset
// shares no memory with p. Of another policy it returns an error if requests could not be decided by it; what else may be
// wrong it does not look for. A program without Compile is smaller by everything that explains a policy to people.
func Assemble(p Policy) (*Ruleset, error) {
	rs := &Ruleset{name: p.Name, disabled: p.Disabled, families: cmp.Or(p.Headers, HeadersX|HeadersIETF),
		onError: p.OnError}
	if !p.sound() || !rs.compileIdentity(&p) {
		return nil, errUnsound
	}
	rs.penalty = compilePenalty(p.Penalty)
	conditions, rules := rs.compileRules(&p)
	var exempt, block bool
	rs.exempt, exempt = compileListed("exempt", p.Exempt)
	rs.block, block = compileListed("block", p.Block)
	if !rules || !exempt || !block {
		return nil, errUnsound
	}
	rs.matcher = newMatcher(conditions)
	return rs, nil
}

// Name returns the policy's namespace.
func (rs *Ruleset) Name() string { return rs.name }

// OnError returns what the policy says of requests that the store does not answer.
func (rs *Ruleset) OnError() OnError { return rs.onError }

// Families returns which header fields the policy tells clients of; never the zero set.
func (rs *Ruleset) Families() HeaderFamilies { return rs.families }

// Len returns the number of rules, disabled ones included; RuleName(i) is for i below it.
func (rs *Ruleset) Len() int { return len(rs.rules) }

// RuleName returns the name of the i-th rule of the policy.
func (rs *Ruleset) RuleName(i int) string { return rs.rules[i].name }

// compileRules fills in the rules and returns the conditions of those that are enabled. ok is false if a rule cannot be.
func (rs *Ruleset) compileRules(p *Policy) (conditions []condition, ok bool) {
	rs.rules, rs.standings = make([]rule, len(p.Rules)), make([]standing, len(p.Rules))
	conditions = make([]condition, 0, len(p.Rules))
	groups := map[string]int32{}
	for i := range p.Rules {
		source, r := &p.Rules[i], &rs.rules[i]
		when, matches := compileMatch(&source.Match)
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
		rs.standings[i] = standing{priority: source.Priority, specific: specificityOf(&when, source)}
		// A path that servers read in two ways is excused only if the rule is for both.
		when.everyReading = source.Action == ActionAllow
		rs.blocks = rs.blocks || source.Action == ActionBlock
		rs.compares.add(source, &when, costs)
		rs.enabled = append(rs.enabled, int32(i))
		conditions = append(conditions, when) // never grows: the rules point into it
		r.when = &conditions[len(conditions)-1]
	}
	rs.groups = len(groups)
	rs.linkReplaced(p)
	rs.rank()
	return conditions, true
}

func groupOf(p *Policy, source *Rule, groups map[string]int32) int32 {
	if source.Group == "" && p.Enforce != EnforceFirst {
		return -1
	}
	if group, known := groups[source.Group]; known {
		return group
	}
	group := int32(len(groups))
	groups[source.Group] = group
	return group
}

func (r *rule) compile(p *Policy, source *Rule) {
	r.name = source.Name
	r.action = source.Action
	r.missing = source.Missing
	onError := source.OnError
	if onError == OnErrorInherit {
		if onError = p.OnError; onError == OnErrorInherit {
			onError = OnErrorAllow // the default: whoever stands in for a store must see it
		}
	}
	if source.Action == ActionReject || source.Action == ActionThrottle {
		r.onError = onError
	}
	r.leases = leases(p, source)
	r.hidden = hiddenByDefault(source) && !source.Expose
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

// compilePenalty returns a copy with its defaults filled in; nil for none.
func compilePenalty(source *Penalty) *Penalty {
	if source == nil {
		return nil
	}
	penalty := *source
	penalty.Multipliers = slices.Clone(source.Multipliers)
	penalty.Max = cmp.Or(source.Max, source.Window)
	return &penalty
}

func hiddenByDefault(source *Rule) bool { return source.PerNone || source.Action == ActionLogOnly }

// certain reports whether a condition that holds does so however the path is read.
func (c *condition) certain(req *request) bool {
	if len(req.readings) <= 1 {
		return true
	}
	every := *c
	every.everyReading = true
	return every.holds(req)
}

func ruleAt(i int) string { return "rules[" + strconv.Itoa(i) + "]" }

// compileDimensions returns the dimensions in the one order in which they stand in keys, whatever the order in per.
func compileDimensions(per []Dimension) []dimension {
	if len(per) == 0 {
		per = []Dimension{{Kind: PerClient}}
	}
	dims := make([]dimension, len(per))
	for i, d := range per {
		dims[i] = newDimension(d)
	}
	return sorted(dims, func(a, b *dimension) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.label, b.label))
	})
}
