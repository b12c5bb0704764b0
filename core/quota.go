// SPDX-License-Identifier: Apache-2.0

package core

// A rule with quota is one of several ways for a request to go on. Of the descriptors of a request that have such a limit,
// one with room is enough: the others are charged nothing and refuse nothing. With none left the request is refused, and
// what its other limits have charged by then goes back (see [Plan.Reports]). A single one refuses like any other limit,
// and is charged with the others or not at all.

// offer makes the limits with quota refuse nothing by themselves if several descriptors have one.
func (p *Plan) offer(ds []Descriptor) {
	offers := 0
	for i := range ds {
		if p.offers(&ds[i]) {
			offers++
		}
	}
	if offers < 2 {
		return
	}
	for i := range p.checks {
		c := &p.checks[i]
		c.Refundable = c.Penalty == nil
		c.Shadow = c.Shadow || p.ruleOf(i).quota
	}
}

// offers reports whether a descriptor has a limit with quota.
func (p *Plan) offers(d *Descriptor) bool {
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		if p.ruleOf(int(part.check)).quota {
			return true
		}
	}
	return false
}

// overQuota reports whether a limit with quota of the descriptor refuses. One that is log_only as well never does.
func (p *Plan) overQuota(d *Descriptor) bool {
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		if r := p.ruleOf(int(part.check)); r.quota && r.action != ActionLogOnly && p.results[part.check].Refused {
			return true
		}
	}
	return false
}

// DecideDescriptors is Decide for a plan of AddDescriptors.
func (p *Plan) DecideDescriptors(ds []Descriptor) Decision {
	if p.refusal != refusalNone || !p.exhausted(ds) {
		return p.Decide()
	}
	for i := range p.checks {
		if r := p.ruleOf(i); r.quota && r.action != ActionLogOnly {
			p.checks[i].Shadow = false
		}
		if p.comesBack(int32(i), ds) {
			p.results[i].Remaining += p.results[i].Granted
		}
	}
	return p.Decide()
}

// exhausted reports whether there are descriptors with quota, and all of them are over it.
func (p *Plan) exhausted(ds []Descriptor) bool {
	offers := 0
	for i := range ds {
		if !p.offers(&ds[i]) {
			continue
		}
		offers++
		if !p.overQuota(&ds[i]) {
			return false
		}
	}
	return offers > 0
}

// comesBack reports whether what the check has charged goes back: the request is refused all the same, and none of the
// descriptors reports hits to that counter that have happened.
func (p *Plan) comesBack(check int32, ds []Descriptor) bool {
	if p.results[check].Granted == 0 {
		return false
	}
	for i := range ds {
		if !ds[i].Reported {
			continue
		}
		for _, part := range p.parts[ds[i].parts[0]:ds[i].parts[1]] {
			if part.check == check {
				return false
			}
		}
	}
	return true
}
