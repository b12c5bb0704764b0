// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
)

// Policy is a policy whose clients an operator asks about.
type Policy struct {
	Ruleset *core.Ruleset
	// Document is the text of the ruleset. Document has the same rules in the same order.
	Document *policyfile.Document
	// Verifiers[i] belongs to Document.Identify[i]. Only verifiers of package credential contribute
	// to a client's profile.
	Verifiers []policy.Verifier
	// Place is where the policy is in force, such as a site; "" if the process has one policy only.
	Place string
	// File is the policy file; "" if the policy is part of another configuration.
	File string
	// Rejected is true if the last edit of the file was rejected.
	Rejected bool
	// Candidate is the candidate that decides the requests of a share of the clients; nil without
	// one.
	Candidate *Candidate
}

// Policy.keys returns the verifiers of API keys.
func (p *Policy) keys() (all []*credential.Keys) {
	for _, v := range p.Verifiers {
		if keys, ok := v.(*credential.Keys); ok {
			all = append(all, keys)
		}
	}
	return all
}

// Policy.identifies reports whether the policy has a way to identify clients of a kind.
func (p *Policy) identifies(kind string) bool {
	kind = strings.TrimSuffix(kind, policy.HashSuffix)
	if len(p.Document.Identify) == 0 {
		return kind == "ip"
	}
	if kind == "user" && p.Document.KeysInDirectory() {
		return true // a key in the directory may identify a user
	}
	return slices.ContainsFunc(p.Document.Identify, func(way policyfile.Identify) bool { return kindOf(&way) == kind })
}

// kindOf returns the kind of the clients that an entry of identify produces.
func kindOf(way *policyfile.Identify) string {
	switch {
	case way.JWT != nil:
		return "user"
	case way.APIKey != nil:
		return "api_key"
	case way.Header != nil:
		return "header." + strings.ToLower(way.Header.Name)
	case way.Cookie != nil:
		return "cookie." + way.Cookie.Name
	case way.Attr != "":
		return "attr." + way.Attr
	}
	return "ip"
}

// Policy.kinds returns the kinds of clients that the policy identifies, for messages.
func (p *Policy) kinds() string {
	if len(p.Document.Identify) == 0 {
		return "ip"
	}
	var all []string
	for i := range p.Document.Identify {
		if kind := kindOf(&p.Document.Identify[i]); !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	return strings.Join(all, ", ")
}

// countsBy reports whether a rule of the policy counts by a dimension whose values have the given
// kind in keys, such as "tier" or "header.x-user".
func (p *Policy) countsBy(kind string) bool {
	return slices.ContainsFunc(p.Document.Rules, func(r policyfile.Rule) bool {
		return slices.ContainsFunc(dimensionsOf(&r), func(dimension string) bool { return valueKind(dimension) == kind })
	})
}

// valueKind returns the kind that the values of a dimension have in counter keys: "header.x-user"
// for "header:X-User".
func valueKind(dimension string) string {
	if name, ok := strings.CutPrefix(dimension, "header:"); ok {
		return "header." + strings.ToLower(name)
	}
	return strings.Replace(dimension, "attr:", "attr.", 1)
}

// dimensionsOf returns what a rule counts by, such as "client" or "ip". A rule without per counts
// by client.
func dimensionsOf(r *policyfile.Rule) []string {
	if r.Per == nil {
		return []string{"client"}
	}
	return *r.Per
}

// canCharge reports whether a request of the client can be charged to a counter of the rule. A
// request cannot be charged if a dimension of the rule needs a property that the client does not
// have.
func (p *Policy) canCharge(index int, who *policy.Identity, hasAddress bool) bool {
	identified := p.identifies(who.Kind)
	for _, dimension := range dimensionsOf(&p.Document.Rules[index]) {
		switch dimension {
		case "ip":
			if !hasAddress {
				return false
			}
		case "client":
			if !identified {
				return false
			}
		case "user":
			if who.User == "" && !identified {
				return false
			}
		case "api_key":
			if who.APIKey == "" && !identified {
				return false
			}
		}
	}
	return true
}

// Policy.tiers returns the tiers for which rules have limits, sorted.
func (p *Policy) tiers() []string {
	tiers := map[string]bool{}
	for i := range p.Document.Rules {
		for tier := range p.Document.Rules[i].Tiers {
			tiers[tier] = true
		}
	}
	return slices.Sorted(maps.Keys(tiers))
}

// usesTiers reports whether counters depend on the tier.
func (p *Policy) usesTiers() bool { return len(p.tiers()) > 0 || p.countsBy("tier") }

// Policy.mentions reports whether the policy treats clients of the tier differently from other
// clients.
func (p *Policy) mentions(tier string) bool {
	d := p.Document
	in := func(m *policyfile.Match) bool { return m != nil && slices.Contains(m.Tier, tier) }
	lists := func(l policyfile.Listed) bool { return slices.Contains(l.Tier, tier) }
	return slices.ContainsFunc(d.Block, lists) || slices.ContainsFunc(d.Exempt, lists) ||
		slices.ContainsFunc(d.Rules, func(r policyfile.Rule) bool {
			_, has := r.Tiers[tier]
			return has || slices.Contains(dimensionsOf(&r), "tier") || in(r.Match) ||
				slices.ContainsFunc(r.Cost, func(c policyfile.Cost) bool { return in(c.Match) })
		})
}
