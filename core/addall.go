// SPDX-License-Identifier: Apache-2.0

package core

// AddAll looks at every counter that a client has under a policy, instead of asking what one request asks: whether the
// rule matches, or another of its group would win, does not matter, and nothing is charged. It identifies the client as
// Add does. See AddAllOf.
//
// A client whose credential is refused is nobody: nothing is looked at then.
func (p *Plan) AddAll(rs *Ruleset, a Attributes, from int) (next int) {
	p.request.read(a)
	if rs.disabled || p.identify(rs) {
		return 0
	}
	return p.addAll(rs, from)
}

// AddAllOf is AddAll for a client that is known: who. The request stands for everything else that rules count by, its
// host for example.
//
// The checks are looks at what 1 unit would do: of the client's penalty first, if the policy has penalties, then of the
// rules that limit, as the policy lists them, of every shard. Rules that count by something that the request lacks and
// nothing stands in for are left out. At most [ChecksMax] checks are added to a plan that was reset: from is 0 for the first
// of them, then the next that was returned before, which is 0 when there is no more, and no multiple of ShardsMax where it
// begins with the rest of a rule's shards. Counter says what a check is of. The plan is not for Decide.
func (p *Plan) AddAllOf(rs *Ruleset, who Identity, a Attributes, from int) (next int) {
	p.request.read(a)
	if rs.disabled {
		return 0
	}
	p.identify(rs) // for the address; the request's own credentials are not what counts here
	p.asking = who
	return p.addAll(rs, from)
}

func (p *Plan) addAll(rs *Ruleset, from int) (next int) {
	if p.client.Kind == "" {
		p.client = p.asking
	}
	p.clientPart = p.identityPart(&p.asking)
	p.matched = p.matched[:0]
	first, shard := from/ShardsMax, uint64(from%ShardsMax)
	for _, index := range rs.enabled {
		if int(index)+1 >= first && len(rs.rules[index].limits) > 0 {
			p.matched = append(p.matched, index)
		}
	}
	if from == 0 {
		if guard := p.guard(rs); guard != 0 {
			p.checks[guard-1].Op = OpLook
		}
	}
	for _, index := range p.matched {
		if int(index)+1 > first {
			shard = 0
		}
		if rest, ok := p.lookAt(rs, index, shard); !ok {
			return (int(index)+1)*ShardsMax + int(rest)
		}
	}
	return 0
}

// lookAt appends looks at the client's counters of a rule, of all shards from the given one on; ok is false if there is no
// room for those from rest on.
func (p *Plan) lookAt(rs *Ruleset, index int32, shard uint64) (rest uint64, ok bool) {
	r := &rs.rules[index]
	if r.missing == MissingSkip && !p.has(r) || p.elsewhere(r) {
		return 0, true
	}
	set, of := p.limitsOf(r)
	shards := shardsOf(set.limits)
	for ; shard < max(1, shards); shard++ {
		first, start := len(p.checks), len(p.text)
		if first+len(set.limits) > ChecksMax {
			return shard, false
		}
		one := use{ruleset: rs, rule: r, whose: of, unlimited: set.unlimited, shards: shards, turn: shard}
		if !p.appendCounter(rs, &one) {
			p.text = p.text[:start]
			return 0, true
		}
		u := p.use(rs, index)
		one.checks = u.checks
		*u = one
		p.askFor(u, set.limits, start, 0)
		for i := first; i < len(p.checks); i++ {
			p.checks[i].Op, p.checks[i].Cost = OpLook, 1
		}
	}
	return 0, true
}

// elsewhere reports whether the rule counts by which of its paths matched, and none matches: what would stand in for it is
// no counter that any request has.
func (p *Plan) elsewhere(r *rule) bool {
	for i := range r.dims {
		if d := &r.dims[i]; d.kind == PerEndpoint && p.value(r, d) == "" {
			return true
		}
	}
	return false
}

// Counter says what the counter of a check is of.
type Counter struct {
	Ruleset *Ruleset
	Rule    int    // the rule's index; -1 for the client's penalty, of which there is nothing else to say
	Policy  string // what clients know the limit by
	Whose   string // whose limit it is: "the rule", "tier premium", "this client's own"
	Hidden  bool   // clients are not told about it
	Own     bool   // nobody but the client is counted by it
	// Limit is the limit as clients know it, nil of a penalty. Shards is over how many counters it is spread, 0 for none; then
	// the check is of one of them, and of its part of the limit. The shards of a limit follow each other, but for those of
	// other limits of the rule, and those beyond ChecksMax are of the next plan.
	Limit  *Limit
	Shards int
}

// Counter says what the counter of the plan's i-th check is of. Whose allocates for a tier.
func (p *Plan) Counter(check int) Counter {
	use := p.asked[check].use
	c := Counter{Ruleset: p.outcomes[use].Ruleset, Rule: p.outcomes[use].Index, Hidden: true}
	if l := p.asked[check].limit; l != nil {
		u := &p.uses[use]
		c.Policy, c.Whose, c.Hidden = l.policy, p.explainWhose(u.whose), u.rule.hidden
		c.Limit, c.Shards = l.told(), int(u.shards)
		c.Own = p.countsClient(u.rule) || u.rule.missing == MissingClient && p.clientPart != "" && !p.has(u.rule)
	}
	return c
}
