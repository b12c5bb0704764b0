// SPDX-License-Identifier: Apache-2.0

package core

import "strings"

// Bounds of what else a policy reads of a request. They are those of usual servers: a longer field is refused by nginx and
// Apache httpd as they come. Whoever sends one is refused: neither what it is compared with nor the counter it would
// belong to is then known.
const (
	fieldBytesMax    = 8 << 10 // a header or attribute that is compared or counted by, the host, the method
	fieldElementsMax = 1000    // elements of a header that is compared: each is looked up
)

const (
	statusURITooLong     = 414
	statusFieldsTooLarge = 431
)

// compares is what an enforced rule of a policy looks at in every request, whatever else the rule says.
type compares struct {
	enforces bool     // there is an enforced rule: one that is not log_only
	paths    bool     // one has patterns of the path
	headers  []string // those with values to compare, each once
}

// add takes in a rule's conditions.
func (c *compares) add(source *Rule, when *condition, costs []ruleCost) {
	if source.Action == ActionLogOnly {
		return
	}
	c.enforces = true
	c.addCondition(when)
	for i := range costs {
		c.addCondition(&costs[i].when)
	}
}

func (c *compares) addCondition(when *condition) {
	c.paths = c.paths || len(when.patterns) > 0
	for i := range when.headers {
		if h := &when.headers[i]; len(h.values) > 0 {
			c.headers = withText(c.headers, h.name)
		}
	}
}

// withText returns the list with the text in it, once.
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

// tooLong reports whether a value is too long to be looked at, and remembers that the request had one.
func (r *request) tooLong(value string) bool {
	if len(value) <= fieldBytesMax {
		return false
	}
	r.oversized = statusFieldsTooLarge
	return true
}

// tooLongList reports the same of a header whose elements are compared.
func tooLongList(value string) bool {
	return len(value) > fieldBytesMax || len(value) > fieldElementsMax && strings.Count(value, ",") >= fieldElementsMax
}

// oversizedFor returns the status for a request of which the policy's rules would have to read more than is read, 0 if
// there is no such thing.
func (r *request) oversizedFor(rs *Ruleset) (status int) {
	c := &rs.compares
	if r.long && c.paths {
		return statusURITooLong
	}
	if c.enforces && (len(r.host) > fieldBytesMax || len(r.method) > fieldBytesMax) {
		return statusFieldsTooLarge
	}
	for _, name := range c.headers {
		if value, ok := r.attrs.Header(name); ok && tooLongList(value) {
			return statusFieldsTooLarge
		}
	}
	return 0
}

// enforced reports whether one of the rules that match is not log_only.
func (p *Plan) enforced(rs *Ruleset) bool {
	for _, index := range p.matched {
		if rs.rules[index].action != ActionLogOnly {
			return true
		}
	}
	return false
}

// refuseOversized refuses the request for its size.
func (p *Plan) refuseOversized(rs *Ruleset, status int) {
	p.oversize(status)
	p.use(rs, policyItself)
}

func (p *Plan) oversize(status int) {
	if p.refusal < refusalOversized {
		p.refusal, p.oversized = refusalOversized, status
	}
}
