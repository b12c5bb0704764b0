// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
)

func (v *verifier) dimensions(at string, r *Rule) {
	if r.PerNone && len(r.Per) > 0 {
		v.problem(at+".per", "", "says both nobody and somebody", "write an empty list or the dimensions")
	}
	if len(r.Per) > DimensionsMax {
		v.problem(at+".per", strconv.Itoa(len(r.Per)), fmt.Sprintf("are more than %d dimensions", DimensionsMax),
			"leave some out")
		return
	}
	header, attr, missable, unknown := false, false, len(r.Per) == 0 && !r.PerNone, false
	seen := map[string]int{}
	for i, d := range r.Per {
		place := fmt.Sprintf("%s.per[%d]", at, i)
		label, known := v.dimension(place, r, d)
		if !known {
			unknown = true
			continue
		}
		if first, twice := seen[label]; twice {
			v.problem(place, label, fmt.Sprintf("is per[%d] again", first), "leave it out")
		} else {
			seen[label] = i
		}
		header, attr = header || d.Kind == PerHeader, attr || d.Kind == PerAttr
		missable = missable || d.Kind != PerMethod && d.Kind != PerEndpoint
	}
	if r.Missing != MissingClient && !missable && !unknown {
		v.problem(at+".missing", "", "has no effect: no dimension of the rule can be missing", "leave it out")
	}
	if header && !r.Unverified {
		v.problem(at+".per", "", "names a header, which anyone can write to be counted apart",
			"write unverified: true if something in front sets or removes it")
	}
	if r.Unverified && !header && !attr && !unknown { // an attribute may be a header by another name
		v.problem(at+".unverified", "true", "has no effect: per names no header", "leave it out")
	}
}

// dimension checks one entry of per and returns what it is called in keys.
func (v *verifier) dimension(place string, r *Rule, d Dimension) (label string, known bool) {
	switch d.Kind {
	case PerHeader:
		v.header(place, d.Name)
		return headerLabel(d.Name), true
	case PerAttr:
		v.attr(place, d.Name)
		return attrLabel(d.Name), true
	case PerUser, PerAPIKey, PerTenant, PerTier:
		if f := clientFieldOf[d.Kind]; !v.knows(f) {
			v.unknowable(place, f)
		}
	case PerClient, PerIP, PerHost, PerMethod, PerEndpoint:
	default:
		v.problem(place, strconv.Itoa(int(d.Kind)), "is an unknown dimension",
			"write client, user, api_key, ip, tenant, tier, host, method, endpoint, header:NAME or attr:NAME")
		return "", false
	}
	label = dimensionLabels[d.Kind]
	if d.Name != "" {
		v.problem(place, d.Name, "is a name that "+label+" does not take", "leave it out")
	}
	if d.Kind == PerEndpoint && len(r.Match.Path) == 0 {
		v.problem(place, label, "tells path patterns apart, and the rule's match has none", "add match: { path: … }")
	}
	return label, true
}

// clientFieldOf is what a dimension that is about the client takes of it.
var clientFieldOf = map[DimensionKind]clientField{PerUser: clientUser, PerAPIKey: clientAPIKey, PerTenant: clientTenant,
	PerTier: clientTier}
