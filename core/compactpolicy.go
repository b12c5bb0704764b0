// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/binary"
	"strings"
)

// The compact form of a policy is what a filter is sent: a head, the policy's version, the policy, and a checksum of all
// of it. Another build of Penstock reads it if it knows the head; a form with other fields has another head. A policy that
// has none of the newer fields is written in the older form, so that filters of the release before read it.
const (
	compactHead       = "penstock policy 4\n"
	compactHeadUnread = "penstock policy 5\n" // with CostAfter.Unread
)

// PolicyBytesMax is how long a compact policy may be: 100,000 rules of 160 bytes.
const PolicyBytesMax = 16 << 20

// AppendCompact appends the policy in its compact form and under a version. No secret is in it: of tokens and API keys it
// says where requests carry them, and [Identify.Verifier] stays behind. So does Timezone, which only those need who ask a
// store.
func (p *Policy) AppendCompact(dst []byte, version string) []byte {
	c := coder{unread: p.saysUnread()}
	if c.unread {
		c.data = append(dst, compactHeadUnread...)
	} else {
		c.data = append(dst, compactHead...)
	}
	c.text(&version)
	c.policy(p)
	return append(c.data, checksum(c.data[len(dst):])...)
}

// ReadCompact reads what [Policy.AppendCompact] wrote. The policy shares no memory with data. It is not verified: that is
// Compile's, once whoever reads it has set the verifiers.
func ReadCompact(data []byte) (p Policy, version string, err error) {
	body, ok := strings.CutPrefix(string(data), compactHead)
	unread := false
	if !ok {
		body, unread = strings.CutPrefix(string(data), compactHeadUnread)
	}
	if !ok && !unread || len(data) > PolicyBytesMax || len(body) < checksumBytes {
		return Policy{}, "", errCompact
	}
	end := len(data) - checksumBytes
	if string(checksum(data[:end])) != string(data[end:]) {
		return Policy{}, "", errCompact
	}
	c := coder{data: data[len(compactHead):end], reading: true, unread: unread}
	c.text(&version)
	c.policy(&p)
	if c.broken || len(c.data) > 0 {
		return Policy{}, "", errCompact
	}
	return p, version, nil
}

// checksumBytes are those of [checksum]. It finds what the way there has damaged, and proves nothing against people.
const checksumBytes = 8

func checksum(data []byte) []byte {
	return binary.BigEndian.AppendUint64(nil, fnv(data))
}

func (c *coder) policy(p *Policy) {
	c.text(&p.Name)
	c.flag(&p.Disabled)
	list(c, &p.Identify, (*coder).identify)
	list(c, &p.Rules, (*coder).rule)
	list(c, &p.Exempt, (*coder).listed)
	list(c, &p.Block, (*coder).listed)
	number(c, &p.Enforce)
	number(c, &p.OnError)
	number(c, &p.Headers)
	ranges(c, &p.TrustedProxies)
	number(c, &p.TrustedHops)
	list(c, &p.User, (*coder).source)
	list(c, &p.Tenant, (*coder).source)
	list(c, &p.Tier, (*coder).source)
	optional(c, &p.Penalty, (*coder).penalty)
	number(c, &p.Lease)
}

func (c *coder) identify(m *Identify) {
	number(c, &m.Kind)
	c.text(&m.Name)
	c.flag(&m.Unverified)
	number(c, &m.IPv4Prefix)
	number(c, &m.IPv6Prefix)
	list(c, &m.From, func(c *coder, f *CredentialSource) {
		number(c, &f.Kind)
		c.text(&f.Name)
	})
	c.flag(&m.DenyInvalid)
}

func (c *coder) source(s *Source) {
	number(c, &s.Kind)
	c.text(&s.Name)
	number(c, &s.Label)
	c.flag(&s.Unverified)
}

func (c *coder) listed(l *Listed) {
	ranges(c, &l.IP)
	words(c, &l.User)
	words(c, &l.APIKey)
	words(c, &l.Tier)
	words(c, &l.Tenant)
	reason := "" // is for those who run the service, and those who decide by this form tell nobody
	c.text(&reason)
	number(c, &l.Until)
}

func (c *coder) penalty(p *Penalty) {
	number(c, &p.Window)
	number(c, &p.Threshold)
	list(c, &p.Multipliers, number[int64])
	number(c, &p.Max)
}

func (c *coder) rule(r *Rule) {
	c.text(&r.Name)
	c.match(&r.Match)
	list(c, &r.Per, func(c *coder, d *Dimension) {
		number(c, &d.Kind)
		c.text(&d.Name)
	})
	c.flag(&r.PerNone)
	list(c, &r.Limits, (*coder).limit)
	words(c, &r.Replaces)
	c.text(&r.Group)
	number(c, &r.Priority)
	c.flag(&r.Disabled)
	number(c, &r.Missing)
	c.flag(&r.Unverified)
	list(c, &r.Cost, (*coder).cost)
	number(c, &r.Action)
	number(c, &r.OnError)
	number(c, &r.Lease)
	number(c, &r.Shards)
	c.flag(&r.Expose)
	c.tiers(&r.Tiers)
	optional(c, &r.CostAfter, (*coder).costAfter)
	list(c, &r.CountIf, (*coder).statuses)
	list(c, &r.RefundOn, (*coder).statuses)
	optional(c, &r.Throttle, func(c *coder, t *Throttle) {
		number(c, &t.MaxDelay)
		number(c, &t.MaxWaiting)
	})
	optional(c, &r.Response, (*coder).response)
	// Quota is for requests with descriptors, and those who decide by this form have none.
	number(c, &r.RetryAfter)
	number(c, &r.RetryJitter)
}

func (c *coder) match(m *Match) {
	words(c, &m.Path)
	words(c, &m.Method)
	words(c, &m.Host)
	list(c, &m.Header, func(c *coder, h *HeaderMatch) {
		c.text(&h.Name)
		words(c, &h.Values)
	})
	ranges(c, &m.IP)
	c.flag(&m.CaseSensitive)
	c.flag(&m.StrictSlash)
	words(c, &m.Tier)
	words(c, &m.User)
	words(c, &m.APIKey)
	words(c, &m.Tenant)
	list(c, &m.Attr, func(c *coder, a *AttrMatch) {
		c.text(&a.Name)
		words(c, &a.Values)
	})
}

func (c *coder) cost(k *Cost) {
	c.match(&k.Match)
	number(c, &k.N)
	c.text(&k.Header)
	ranges(c, &k.Trusted)
	number(c, &k.Max)
}

func (c *coder) costAfter(a *CostAfter) {
	c.text(&a.Header)
	c.text(&a.JSON)
	number(c, &a.Estimate)
	number(c, &a.Default)
	number(c, &a.Max)
	if c.unread {
		number(c, &a.Unread)
	}
}

// saysUnread reports whether a rule says what an unread cost is.
func (p *Policy) saysUnread() bool {
	for i := range p.Rules {
		if c := p.Rules[i].CostAfter; c != nil && c.Unread != 0 {
			return true
		}
	}
	return false
}

func (c *coder) statuses(s *Statuses) {
	number(c, &s.From)
	number(c, &s.To)
}

func (c *coder) response(r *Response) {
	number(c, &r.Status)
	c.text(&r.Message)
	c.text(&r.Body)
	c.text(&r.ContentType)
	list(c, &r.Headers, func(c *coder, f *Field) {
		c.text(&f.Name)
		c.text(&f.Value)
	})
}

// tiers codes a map in the order of its names, so that one policy has one compact form.
func (c *coder) tiers(tiers *map[string]LimitSet) {
	type tier struct {
		name string
		set  LimitSet
	}
	var all []tier
	for _, name := range sortedKeys(*tiers) {
		all = append(all, tier{name, (*tiers)[name]})
	}
	list(c, &all, func(c *coder, t *tier) {
		c.text(&t.name)
		list(c, &t.set.Limits, (*coder).limit)
		c.flag(&t.set.Unlimited)
	})
	if !c.reading || len(all) == 0 {
		return
	}
	*tiers = make(map[string]LimitSet, len(all))
	for _, t := range all {
		(*tiers)[t.name] = t.set
	}
}
