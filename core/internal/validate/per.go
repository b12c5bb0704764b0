// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strconv"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

func (v *Verifier) dimensions(at string, r *policy.Rule) {
	if r.PerNone && len(r.Per) > 0 {
		v.problem(at+".per", "", "is both empty and not empty", "write an empty list or the dimensions")
	}
	if len(r.Per) > policy.DimensionsMax {
		v.problem(at+".per", strconv.Itoa(len(r.Per)), fmt.Sprintf("are more than %d dimensions", policy.DimensionsMax),
			"leave some out")
		return
	}
	header, attr, missable, unknown := false, false, len(r.Per) == 0 && !r.PerNone, false
	seen := map[string]int{}
	for i, d := range r.Per {
		place := fmt.Sprintf("%s.per[%d]", at, i)
		label, known := v.checkDimension(place, r, d)
		if !known {
			unknown = true
			continue
		}
		if first, twice := seen[label]; twice {
			v.problem(place, label, fmt.Sprintf("is per[%d] again", first), "leave it out")
		} else {
			seen[label] = i
		}
		header, attr = header || d.Kind == policy.PerHeader, attr || d.Kind == policy.PerAttr
		missable = missable || d.Kind != policy.PerMethod && d.Kind != policy.PerEndpoint
	}
	if r.Missing != policy.MissingClient && !missable && !unknown {
		v.problem(at+".missing", "", "has no effect: no dimension of the rule can be missing", "leave it out")
	}
	if header && !r.Unverified {
		v.problem(at+".per", "", "names a header, which clients can set to get counters of their own",
			"write unverified: true if something in front sets or removes it")
	}
	// an attribute can contain a header under another name, so Unverified can have an effect
	if r.Unverified && !header && !attr && !unknown {
		v.problem(at+".unverified", "true", "has no effect: per names no header", "leave it out")
	}
}

// checkDimension checks one dimension of a rule and returns its name in keys.
func (v *Verifier) checkDimension(place string, r *policy.Rule, d policy.Dimension) (label string, known bool) {
	switch d.Kind {
	case policy.PerHeader:
		v.header(place, d.Name)
		return identify.HeaderLabel(d.Name), true
	case policy.PerAttr:
		v.attr(place, d.Name)
		return identify.AttrLabel(d.Name), true
	case policy.PerUser, policy.PerAPIKey, policy.PerTenant, policy.PerTier:
		if f := clientFieldOf(d.Kind); !v.canKnow(f) {
			v.reportUnknowable(place, f)
		}
	case policy.PerClient, policy.PerIP, policy.PerHost, policy.PerMethod, policy.PerEndpoint:
	default:
		v.problem(place, strconv.Itoa(int(d.Kind)), "is an unknown dimension",
			"write client, user, api_key, ip, tenant, tier, host, method, endpoint, header:NAME or attr:NAME")
		return "", false
	}
	label = policy.DimensionLabels[d.Kind]
	if d.Name != "" {
		v.problem(place, d.Name, "is a name that "+label+" does not take", "leave it out")
	}
	if d.Kind == policy.PerEndpoint && len(r.Match.Path) == 0 {
		v.problem(place, label, "counts each path pattern separately, but the rule's match has none", "add match: { path: … }")
	}
	return label, true
}

// clientFieldOf returns the field of the client that a dimension uses.
func clientFieldOf(kind policy.DimensionKind) match.ClientField {
	switch kind {
	case policy.PerUser:
		return match.ClientUser
	case policy.PerAPIKey:
		return match.ClientAPIKey
	case policy.PerTenant:
		return match.ClientTenant
	default:
		return match.ClientTier
	}
}
