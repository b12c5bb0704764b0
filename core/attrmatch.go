// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"
)

// attrStarsMax is how many stars a value may hold. With them the work of comparing grows with the value's length only.
const attrStarsMax = 8

// attrCondition is an attribute that must be present and have one of the values, if there are any.
type attrCondition struct {
	name   string
	values []glob
}

// glob is a text with stars, each of which stands for any run of bytes, none included: the pieces between them. Without a
// star it is one piece.
type glob []string

func parseGlob(text string) glob { return strings.Split(text, "*") }

// matches reports whether the value is one that the glob is for. Each piece is looked for once, from the left: the first
// place where it fits leaves the most for the rest.
func (g glob) matches(value string) bool {
	last := len(g) - 1
	rest, ok := strings.CutPrefix(value, g[0])
	if !ok || last == 0 {
		return ok && rest == ""
	}
	for _, piece := range g[1:last] {
		at := strings.Index(rest, piece)
		if at < 0 {
			return false
		}
		rest = rest[at+len(piece):]
	}
	return strings.HasSuffix(rest, g[last])
}

// prefixOnly reports whether whatever begins with the first piece matches.
func (g glob) prefixOnly() bool { return len(g) == 2 && g[1] == "" }

func (c *condition) holdsAttrs(r *request) bool {
	for i := range c.attrs {
		at := &c.attrs[i]
		value, ok := r.attrs.Attr(at.name)
		if !ok || len(at.values) > 0 && (r.tooLong(value) || !slices.ContainsFunc(at.values, func(g glob) bool { return g.matches(value) })) {
			return false
		}
	}
	return true
}

// addAttrs compiles what the match says of attributes.
func (c *condition) addAttrs(attrs []AttrMatch) {
	for _, m := range attrs {
		at := attrCondition{name: m.Name}
		present := len(m.Values) == 0
		for _, text := range m.Values {
			at.values = append(at.values, parseGlob(text))
			present = present || text != "" && strings.Trim(text, "*") == ""
		}
		if present {
			at.values = nil
		}
		c.attrs = append(c.attrs, at)
	}
	if len(attrs) > 0 {
		c.parts |= partAttr
	}
}

// appendPlaces lists the places of the index under which the condition can be found by this attribute.
func (a *attrCondition) appendPlaces(all []place, attr int, open bool) []place {
	if len(a.values) == 0 {
		return append(all, valuePlace(partAttr, attr, a.name, nil, open))
	}
	for _, g := range a.values {
		first := &headerValue{text: g[0], prefix: len(g) > 1}
		all = append(all, valuePlace(partAttr, attr, a.name, first, open || first.prefix && !g.prefixOnly()))
	}
	return all
}
