// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// comparedParts lists the parts of a request that the enforced rules of a policy compare. A rule is
// enforced unless it is log_only.
type comparedParts struct {
	enforces bool     // whether there is an enforced rule
	paths    bool     // whether an enforced rule has path patterns
	headers  []string // the headers whose values are compared, without duplicates
	attrs    []string // the attributes that are compared with patterns that have stars, without duplicates
}

// addRule adds what a rule's conditions compare.
func (c *comparedParts) addRule(source *policy.Rule, when *match.Condition, costs []ruleCost) {
	if source.Action == policy.ActionLogOnly {
		return
	}
	c.enforces = true
	c.addCondition(when)
	for i := range costs {
		c.addCondition(&costs[i].when)
	}
}

func (c *comparedParts) addCondition(when *match.Condition) {
	c.paths = c.paths || len(when.Patterns) > 0
	for i := range when.Headers {
		if h := &when.Headers[i]; len(h.Values) > 0 {
			c.headers = withText(c.headers, h.Name)
		}
	}
	for _, name := range when.StarredAttrs() {
		c.attrs = withText(c.attrs, name)
	}
}

// withText returns the list with the text added, unless the list contains it already.
//
//go:noinline
func withText(list []string, text string) []string {
	for _, s := range list {
		if s == text {
			return list
		}
	}
	return append(list, text)
}

// oversizedFor returns the status of a denial if the path, host, method, a header or an attribute
// of the request is too long for the policy's rules to compare; 0 if none is.
func oversizedFor(r *match.Request, rs *Ruleset) (status int) {
	c := &rs.compares
	if r.Long && c.paths {
		return match.StatusURITooLong
	}
	if c.enforces && (len(r.Host) > match.FieldBytesMax || len(r.Method) > match.FieldBytesMax) {
		return match.StatusFieldsTooLarge
	}
	for _, name := range c.headers {
		if value, ok := r.Attrs.Header(name); ok && match.TooLongList(value) {
			return match.StatusFieldsTooLarge
		}
	}
	for _, name := range c.attrs {
		if value, ok := r.Attrs.Attr(name); ok && len(value) > match.FieldBytesMax {
			return match.StatusFieldsTooLarge
		}
	}
	return 0
}

// isEnforced reports whether one of the rules that match is not log_only.
func (p *Plan) isEnforced(rs *Ruleset) bool {
	for _, index := range p.matched {
		if rs.rules[index].action != policy.ActionLogOnly {
			return true
		}
	}
	return false
}

// denyOversized denies the request because a part of it is too long.
func (p *Plan) denyOversized(rs *Ruleset, status int) {
	p.oversize(status)
	p.appendUse(rs, policyItself)
}

func (p *Plan) oversize(status int) {
	if p.denial < denialOversized {
		p.denial, p.oversized = denialOversized, status
	}
}
