// SPDX-License-Identifier: Apache-2.0

package compact

import (
	"encoding/binary"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/codec"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// The compact form of a policy is sent to filters. It consists of a head, the policy's version, the
// policy, and a checksum of all three. Another build of Penstock can read it if it supports the
// head. Every change to the set of fields changes the head. A policy without newer fields is
// written in the older form, so that filters of the previous release can read it.
const (
	compactHead       = "penstock policy 4\n"
	compactHeadUnread = "penstock policy 5\n" // for a policy that sets CostAfter.Unread
	// compactHeadDirected is compactHeadUnread for a policy with Directory. A filter that does not
	// know this head rejects it, and so never decides without records.
	compactHeadDirected = "penstock policy 6\n"
	// compactHeadTraced is for a policy with Traced, and records whether the policy has a
	// Directory. A filter that does not know this head, and would send no traces, rejects it.
	compactHeadTraced = "penstock policy 7\n"
)

// PolicyBytesMax is the greatest length of a compact policy, which suffices for 100,000 rules of
// 160 bytes each.
const PolicyBytesMax = 16 << 20

// AppendPolicy appends the policy and its version in compact form. The result contains no secret:
// for tokens and API keys it describes where requests carry them, and it omits
// [policy.Identify.Verifier]. AppendPolicy also omits Timezone, which only a process with a store
// needs.
func AppendPolicy(dst []byte, p *policy.Policy, version string) []byte {
	c := codec.Coder{Unread: p.Directory || p.Traced || setsUnread(p)}
	switch {
	case p.Traced:
		c.Data = append(dst, compactHeadTraced...)
	case p.Directory:
		c.Data = append(dst, compactHeadDirected...)
	case c.Unread:
		c.Data = append(dst, compactHeadUnread...)
	default:
		c.Data = append(dst, compactHead...)
	}
	c.Text(&version)
	codePolicy(&c, p)
	return append(c.Data, checksum(c.Data[len(dst):])...)
}

// ReadPolicy decodes the output of [AppendPolicy]. The policy shares no memory with data.
// ReadPolicy does not validate the policy: core.Compile does, after the caller has set the
// verifiers.
func ReadPolicy(data []byte) (p policy.Policy, version string, err error) {
	end := len(data) - checksumBytes
	if end < len(compactHead) || len(data) > PolicyBytesMax {
		return policy.Policy{}, "", codec.ErrMalformed
	}
	const digit = len(compactHead) - len("4\n") // the position of the version digit in every head
	form := data[digit]
	if string(data[:digit]) != compactHead[:digit] || form < compactHead[digit] || form > compactHeadTraced[digit] ||
		data[digit+1] != '\n' || string(checksum(data[:end])) != string(data[end:]) {
		return policy.Policy{}, "", codec.ErrMalformed
	}
	p.Directory, p.Traced = form == compactHeadDirected[digit], form == compactHeadTraced[digit]
	c := codec.Coder{Data: data[len(compactHead):end], Reading: true, Unread: form != compactHead[digit]}
	c.Text(&version)
	codePolicy(&c, &p)
	if c.Broken || len(c.Data) > 0 {
		return policy.Policy{}, "", codec.ErrMalformed
	}
	return p, version, nil
}

// checksumBytes is the length of a [checksum]. The checksum detects accidental damage, not
// deliberate changes.
const checksumBytes = 8

func checksum(data []byte) []byte {
	return binary.BigEndian.AppendUint64(nil, slim.FNV(data))
}

func codePolicy(c *codec.Coder, p *policy.Policy) {
	if p.Traced {
		c.Flag(&p.Directory)
	}
	c.Text(&p.Name)
	c.Flag(&p.Disabled)
	codec.List(c, &p.Identify, codeIdentify)
	codec.List(c, &p.Rules, codeRule)
	codec.List(c, &p.Exempt, codeListed)
	codec.List(c, &p.Block, codeListed)
	codec.Number(c, &p.Enforce)
	codec.Number(c, &p.OnError)
	codec.Number(c, &p.Headers)
	codec.Ranges(c, &p.TrustedProxies)
	codec.Number(c, &p.TrustedHops)
	codec.List(c, &p.User, codeSource)
	codec.List(c, &p.Tenant, codeSource)
	codec.List(c, &p.Tier, codeSource)
	codec.Optional(c, &p.Penalty, codePenalty)
	codec.Number(c, &p.Lease)
}

func codeIdentify(c *codec.Coder, m *policy.Identify) {
	codec.Number(c, &m.Kind)
	c.Text(&m.Name)
	c.Flag(&m.Unverified)
	codec.Number(c, &m.IPv4Prefix)
	codec.Number(c, &m.IPv6Prefix)
	codec.List(c, &m.From, func(c *codec.Coder, f *policy.CredentialSource) {
		codec.Number(c, &f.Kind)
		c.Text(&f.Name)
	})
	c.Flag(&m.DenyInvalid)
}

func codeSource(c *codec.Coder, s *policy.Source) {
	codec.Number(c, &s.Kind)
	c.Text(&s.Name)
	codec.Number(c, &s.Label)
	c.Flag(&s.Unverified)
}

func codeListed(c *codec.Coder, l *policy.Listed) {
	codec.Ranges(c, &l.IP)
	codec.Words(c, &l.User)
	codec.Words(c, &l.APIKey)
	codec.Words(c, &l.Tier)
	codec.Words(c, &l.Tenant)
	reason := "" // left out, because filters do not report it
	c.Text(&reason)
	codec.Number(c, &l.Until)
}

func codePenalty(c *codec.Coder, p *counter.Penalty) {
	codec.Number(c, &p.Window)
	codec.Number(c, &p.Threshold)
	codec.List(c, &p.Multipliers, codec.Number[int64])
	codec.Number(c, &p.Max)
}

func codeRule(c *codec.Coder, r *policy.Rule) {
	c.Text(&r.Name)
	codeMatch(c, &r.Match)
	codec.List(c, &r.Per, func(c *codec.Coder, d *policy.Dimension) {
		codec.Number(c, &d.Kind)
		c.Text(&d.Name)
	})
	c.Flag(&r.PerNone)
	codec.List(c, &r.Limits, (*codec.Coder).Limit)
	codec.Words(c, &r.Replaces)
	c.Text(&r.Group)
	codec.Number(c, &r.Priority)
	c.Flag(&r.Disabled)
	codec.Number(c, &r.Missing)
	c.Flag(&r.Unverified)
	codec.List(c, &r.Cost, codeCost)
	codec.Number(c, &r.Action)
	codec.Number(c, &r.OnError)
	codec.Number(c, &r.Lease)
	codec.Number(c, &r.Shards)
	c.Flag(&r.Expose)
	codeTiers(c, &r.Tiers)
	codec.Optional(c, &r.CostAfter, codeCostAfter)
	codec.List(c, &r.CountIf, codeStatuses)
	codec.List(c, &r.RefundOn, codeStatuses)
	codec.Optional(c, &r.Throttle, func(c *codec.Coder, t *policy.Throttle) {
		codec.Number(c, &t.MaxDelay)
		codec.Number(c, &t.MaxWaiting)
	})
	codec.Optional(c, &r.Response, codeResponse)
	// Quota is omitted: it applies only to requests with descriptors, which filters do not have.
	codec.Number(c, &r.RetryAfter)
	codec.Number(c, &r.RetryJitter)
}

func codeMatch(c *codec.Coder, m *policy.Match) {
	codec.Words(c, &m.Path)
	codec.Words(c, &m.Method)
	codec.Words(c, &m.Host)
	codec.List(c, &m.Header, func(c *codec.Coder, h *policy.HeaderMatch) {
		c.Text(&h.Name)
		codec.Words(c, &h.Values)
	})
	codec.Ranges(c, &m.IP)
	c.Flag(&m.CaseSensitive)
	c.Flag(&m.StrictSlash)
	codec.Words(c, &m.Tier)
	codec.Words(c, &m.User)
	codec.Words(c, &m.APIKey)
	codec.Words(c, &m.Tenant)
	codec.List(c, &m.Attr, func(c *codec.Coder, a *policy.AttrMatch) {
		c.Text(&a.Name)
		codec.Words(c, &a.Values)
	})
}

func codeCost(c *codec.Coder, k *policy.Cost) {
	codeMatch(c, &k.Match)
	codec.Number(c, &k.N)
	c.Text(&k.Header)
	codec.Ranges(c, &k.Trusted)
	codec.Number(c, &k.Max)
}

func codeCostAfter(c *codec.Coder, a *policy.CostAfter) {
	c.Text(&a.Header)
	c.Text(&a.JSON)
	codec.Number(c, &a.Estimate)
	codec.Number(c, &a.Default)
	codec.Number(c, &a.Max)
	if c.Unread {
		codec.Number(c, &a.Unread)
	}
}

// setsUnread reports whether a rule of the policy sets CostAfter.Unread.
func setsUnread(p *policy.Policy) bool {
	for i := range p.Rules {
		if c := p.Rules[i].CostAfter; c != nil && c.Unread != 0 {
			return true
		}
	}
	return false
}

func codeStatuses(c *codec.Coder, s *policy.Statuses) {
	codec.Number(c, &s.From)
	codec.Number(c, &s.To)
}

func codeResponse(c *codec.Coder, r *policy.Response) {
	codec.Number(c, &r.Status)
	c.Text(&r.Message)
	c.Text(&r.Body)
	c.Text(&r.ContentType)
	codec.List(c, &r.Headers, func(c *codec.Coder, f *policy.Field) {
		c.Text(&f.Name)
		c.Text(&f.Value)
	})
}

// codeTiers encodes or decodes a map, in the order of its keys, so that a policy has exactly one
// compact form.
func codeTiers(c *codec.Coder, tiers *map[string]policy.LimitSet) {
	type tier struct {
		name string
		set  policy.LimitSet
	}
	var all []tier
	for _, name := range slim.SortedKeys(*tiers) {
		all = append(all, tier{name, (*tiers)[name]})
	}
	codec.List(c, &all, func(c *codec.Coder, t *tier) {
		c.Text(&t.name)
		codec.List(c, &t.set.Limits, (*codec.Coder).Limit)
		c.Flag(&t.set.Unlimited)
	})
	if !c.Reading || len(all) == 0 {
		return
	}
	*tiers = make(map[string]policy.LimitSet, len(all))
	for _, t := range all {
		(*tiers)[t.name] = t.set
	}
}
