// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
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
	exempt   []listed
	block    []listed
	blocks   bool     // an enabled rule blocks
	penalty  *Penalty // nil: none
	groups   int
	families HeaderFamilies // never 0
}

// rule is a [Rule] made ready for requests.
type rule struct {
	name    string
	action  Action
	missing Missing
	refuses bool  // when the store cannot answer
	hidden  bool  // its limits are not shown to clients
	group   int32 // -1: none
	rank    int32 // of the rules of a group that match, the lowest wins
	scope   string
	tag     string // the whole tag of a rule with one counter for everybody
	dims    []dimension
	limits  []ruleLimit
	costs   []ruleCost
	when    *condition // nil if the rule is disabled
	after   ruleAfter
}

// ruleLimit is a limit of a rule with the texts that stand in keys and header fields.
type ruleLimit struct {
	limit  Limit
	tail   string // of its keys: ":60s:sw"
	policy string // its policy name
	item   string // its list item in RateLimit-Policy
	quota  string // X-RateLimit-Limit
}

// Compile checks the whole policy and builds its index. The error is [Problems], with every problem found. The Ruleset
// shares no memory with p. A policy of 10,000 rules takes a fraction of a second.
func Compile(p Policy) (*Ruleset, error) {
	rs := &Ruleset{name: p.Name, disabled: p.Disabled, families: p.Headers}
	if rs.families == 0 {
		rs.families = HeadersX | HeadersIETF
	}
	v := verifier{policy: &p}
	v.verify()
	if len(p.Rules) > RulesMax {
		return nil, v.problems
	}
	rs.compileIdentity(p.Identify)
	conditions := rs.compileRules(&p, &v)
	rs.exempt, rs.block = compileListed("exempt", p.Exempt, &v), compileListed("block", p.Block, &v)
	if len(v.problems) > 0 {
		return nil, v.problems
	}
	rs.matcher = newMatcher(conditions)
	if crowd := rs.findCrowd(&p); len(crowd) > 0 {
		return nil, crowd
	}
	return rs, nil
}

// Name returns the policy's namespace.
func (rs *Ruleset) Name() string { return rs.name }

// Len returns the number of rules, disabled ones included; RuleName(i) is for i below it.
func (rs *Ruleset) Len() int { return len(rs.rules) }

// RuleName returns the name of the i-th rule of the policy.
func (rs *Ruleset) RuleName(i int) string { return rs.rules[i].name }

// compileRules fills in the rules and returns the conditions of those that are enabled.
func (rs *Ruleset) compileRules(p *Policy, v *verifier) []condition {
	rs.rules = make([]rule, len(p.Rules))
	conditions := make([]condition, 0, len(p.Rules))
	specific := make([]bool, len(p.Rules))
	groups := map[string]int32{}
	for i := range p.Rules {
		source, r := &p.Rules[i], &rs.rules[i]
		at := ruleAt(i)
		when, problems := compileMatch(at+".match", source.Match)
		v.problems = append(v.problems, problems...)
		r.compile(p, source)
		r.costs = compileCosts(at, source.Cost, v)
		r.group = groupOf(p, source, groups)
		if len(problems) > 0 || source.Disabled {
			continue
		}
		specific[i] = when.endpointSpecific()
		// A path that servers read in two ways is excused only if the rule is for both.
		when.everyReading = source.Action == ActionAllow
		rs.blocks = rs.blocks || source.Action == ActionBlock
		rs.enabled = append(rs.enabled, int32(i))
		conditions = append(conditions, when) // never grows: the rules point into it
		r.when = &conditions[len(conditions)-1]
	}
	rs.groups = len(groups)
	rs.rank(p, specific)
	return conditions
}

// rank orders the rules as they compete in their groups: lower priority, then endpoint-specific, then as written.
func (rs *Ruleset) rank(p *Policy, specific []bool) {
	order := make([]int, len(rs.rules))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if c := cmp.Compare(p.Rules[i].Priority, p.Rules[j].Priority); c != 0 || specific[i] == specific[j] {
			return c
		}
		if specific[i] {
			return -1
		}
		return 1
	})
	for rank, i := range order {
		rs.rules[i].rank = int32(rank)
	}
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
		onError = p.OnError
	}
	r.refuses = onError == OnErrorDeny && source.Action == ActionReject
	r.hidden = hiddenByDefault(source) && !source.Expose
	r.scope = keyScope(p.Name, source.Name)
	if source.PerNone {
		r.tag = "{" + string(appendEscaped(nil, source.Name)) + "}"
	} else {
		r.dims = compileDimensions(source.Per)
	}
	r.limits = compileLimits(source)
	r.compileAfter(source)
}

func hiddenByDefault(source *Rule) bool { return source.PerNone || source.Action == ActionLogOnly }

func compileLimits(source *Rule) []ruleLimit {
	limits := make([]ruleLimit, len(source.Limits))
	for i := range source.Limits {
		l := &limits[i]
		l.limit = source.Limits[i]
		if l.limit.algorithm == 0 { // reported by the verifier
			continue
		}
		l.tail = ":" + l.limit.WindowLabel() + ":" + l.limit.algorithm.Label()
		l.policy = policyName(source, i)
		l.item = policyItem(l.policy, &l.limit)
		l.quota = strconv.FormatInt(l.limit.Capacity(), 10)
	}
	return limits
}

// policyName returns what clients know the rule's i-th limit by: the rule's name, with the window if the rule has
// several limits, and with the algorithm's label if several of them have that window.
func policyName(source *Rule, i int) string {
	if len(source.Limits) == 1 {
		return source.Name
	}
	window, same := source.Limits[i].windowName(), 0
	for j := range source.Limits {
		if source.Limits[j].windowName() == window {
			same++
		}
	}
	name := source.Name + "-" + window
	if same > 1 {
		name += "-" + source.Limits[i].algorithm.Label()
	}
	return name
}

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
	slices.SortStableFunc(dims, func(a, b dimension) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.label, b.label))
	})
	return dims
}
