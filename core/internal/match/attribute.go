// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// AttrStarsMax is the greatest number of stars in one of the values that a condition lists. Package
// validate rejects a value with more.
const AttrStarsMax = 8

// attrCondition is an attribute that must be present. If attrCondition has values, the attribute
// must have one of them.
type attrCondition struct {
	name   string
	values []glob
	many   *globSet // of values; nil for few
}

// glob is a text with stars, split at the stars. Each star matches any run of bytes,
// including an empty one. A glob without a star is one piece.
type glob []string

func parseGlob(text string) glob { return slim.Split(text, "*") }

// glob.matches reports whether the glob matches the value. For each piece, from left to right, it
// uses the first match, which leaves the most text for the other pieces.
func (g glob) matches(value string) bool {
	last := len(g) - 1
	if last == 0 {
		return value == g[0]
	}
	if !g.encloses(value, len(g[0])) {
		return false
	}
	rest := value[len(g[0]) : len(value)-len(g[last])]
	for _, piece := range g[1:last] {
		at := strings.Index(rest, piece)
		if at < 0 {
			return false
		}
		rest = rest[at+len(piece):]
	}
	return true
}

// encloses reports whether the value begins with the first piece of the glob, and ends with the
// last piece, which does not begin before the given offset.
//
//go:noinline
func (g glob) encloses(value string, from int) bool {
	first, last := g[0], g[len(g)-1]
	end := len(value) - len(last)
	return end >= from && strings.HasPrefix(value, first) && value[end:] == last
}

// prefixOnly reports whether the glob matches every text that begins with its first piece.
func (g glob) prefixOnly() bool { return len(g) == 2 && g[1] == "" }

func (c *Condition) holdsAttrs(r *Request) bool {
	for i := range c.attrs {
		at := &c.attrs[i]
		value, ok := r.Attrs.Attr(at.name)
		if !ok || len(at.values) > 0 && (r.TooLong(value) || !at.matches(value, r)) {
			return false
		}
	}
	return true
}

func (a *attrCondition) matches(value string, r *Request) bool {
	if a.many != nil {
		return a.many.matches(&r.globs, value)
	}
	for i := range a.values {
		if a.values[i].matches(value) {
			return true
		}
	}
	return false
}

// StarredAttrs returns the names of the attributes for which the condition has values with stars.
// Only such a value could match a text that is too long to be compared.
func (c *Condition) StarredAttrs() (names []string) {
	for i := range c.attrs {
		if slices.ContainsFunc(c.attrs[i].values, func(g glob) bool { return len(g) > 1 }) {
			names = append(names, c.attrs[i].name)
		}
	}
	return names
}

// addAttrs compiles the attributes of the match.
func (c *Condition) addAttrs(attrs []policy.AttrMatch) {
	for _, m := range attrs {
		at := attrCondition{name: m.Name}
		present := len(m.Values) == 0
		for _, text := range m.Values {
			at.values = append(at.values, parseGlob(text))
			present = present || text != "" && slim.Trim(text, "*") == ""
		}
		if present {
			at.values = nil
		}
		at.many = newGlobSet(at.values)
		c.attrs = append(c.attrs, at)
	}
	if len(attrs) > 0 {
		c.parts |= partAttr
	}
}

// appendPlaces appends the places in the index at which the condition is listed under this
// attribute.
func (a *attrCondition) appendPlaces(all []place, attr int, open bool) []place {
	if len(a.values) == 0 {
		return appendValuePlace(all, partAttr, attr, a.name, nil, open)
	}
	for _, g := range a.values {
		first := &headerValue{text: g[0], prefix: len(g) > 1}
		all = appendValuePlace(all, partAttr, attr, a.name, first, open || first.prefix && !g.prefixOnly())
	}
	return all
}
