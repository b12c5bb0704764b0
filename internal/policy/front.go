// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

// Front is what enforces a policy. Most words mean the same in all of them.
type Front uint8

// The fronts.
const (
	FrontCaddy Front = iota + 1 // the Caddy module
	FrontEnvoy                  // the filter in Envoy
	FrontRLS                    // Envoy's rate limit protocol
)

// FrontOf returns the front of a name.
func FrontOf(name string) (Front, bool) {
	f, ok := map[string]Front{"caddy": FrontCaddy, "envoy": FrontEnvoy, "rls": FrontRLS}[name]
	return f, ok
}

// foreign are the beginnings of attributes that a front can never have, because they are another's. Of the rate limit
// protocol there are none: an attribute is an entry of a descriptor, and those have any name.
var foreign = map[Front]struct {
	prefixes []string
	why      string
	remedy   string
}{
	FrontCaddy: {[]string{"metadata.", "xds.", "filter_state.", "upstream_filter_state."},
		"is an attribute of Envoy's, which Caddy does not have", "write a placeholder of Caddy's, such as http.auth.user.id"},
	FrontEnvoy: {[]string{"http."},
		"is a placeholder of Caddy's, which Envoy does not have", "write an attribute of Envoy's, such as xds.route_name"},
}

// Beyond returns what the policy asks of a front that it cannot do, so that it would be believed and not done. The policy
// itself is right: [Document.Check] has found nothing.
//
// An attribute that only another front has is fine where others stand beside it, to be tried in turn: that is how one policy
// serves both.
func (d *Document) Beyond(f Front) core.Problems {
	p, err := d.Policy()
	if err != nil {
		return nil // which Check says better
	}
	b := beyond{front: f, document: d}
	b.identify(p.Identify)
	b.sources("user", p.User)
	b.sources("tenant", p.Tenant)
	b.sources("tier", p.Tier)
	for i := range p.Rules {
		if !p.Rules[i].Disabled {
			b.rule(index("rules", i), &p.Rules[i])
		}
	}
	return b.problems
}

type beyond struct {
	front    Front
	document *Document
	problems core.Problems
}

func (b *beyond) problem(path, value, why, remedy string) {
	b.problems = append(b.problems, core.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: b.document.Place(path)})
}

// foreign reports whether the attribute is one that only another front has.
func (b *beyond) foreign(attr string) bool {
	for _, prefix := range foreign[b.front].prefixes {
		if strings.HasPrefix(brackets.Replace(attr), prefix) {
			return true
		}
	}
	return false
}

func (b *beyond) attr(path, name string) {
	if b.foreign(name) {
		b.problem(path, name, foreign[b.front].why, foreign[b.front].remedy)
	}
}

func (b *beyond) identify(ways []core.Identify) {
	for i := range ways {
		if ways[i].Kind != core.IdentifyAttr || !b.foreign(ways[i].Name) {
			return
		}
	}
	for i := range ways {
		b.attr(index("identify", i), ways[i].Name)
	}
}

func (b *beyond) sources(word string, sources []core.Source) {
	for i := range sources {
		if sources[i].Kind != core.SourceAttr || !b.foreign(sources[i].Name) {
			return
		}
	}
	for i := range sources {
		b.attr(index(word, i), sources[i].Name)
	}
}

func (b *beyond) rule(at string, r *core.Rule) {
	for i, d := range r.Per {
		if d.Kind == core.PerAttr {
			b.attr(index(at+".per", i), d.Name)
		}
	}
	b.match(at+".match", &r.Match)
	for i := range r.Cost {
		b.match(index(at+".cost", i)+".match", &r.Cost[i].Match)
	}
	if b.front != FrontRLS {
		return
	}
	const unseen, elsewhere = "cannot be done over Envoy's rate limit protocol, which tells of no response, and a bridge with --rls-listen " +
		"serves it by the same policy", "leave it out, or run a bridge without --rls-listen for the filter"
	if r.CostAfter != nil {
		b.problem(at+".cost_after", "", unseen, "leave it out; Envoy can report costs itself, by hits_addend with apply_on_stream_done")
	}
	if len(r.CountIf) > 0 {
		b.problem(at+".count_if", "", unseen, elsewhere)
	}
	if len(r.RefundOn) > 0 {
		b.problem(at+".refund_on", "", unseen, elsewhere)
	}
	if r.Action == core.ActionThrottle {
		b.problem(at+".action", "throttle", "cannot be done over Envoy's rate limit protocol, in which nothing waits",
			"write action: reject, or use the filter")
	}
}

func (b *beyond) match(at string, m *core.Match) {
	for i := range m.Attr {
		b.attr(at+".attr."+m.Attr[i].Name, m.Attr[i].Name)
	}
}

// String returns the front's name.
func (f Front) String() string {
	switch f {
	case FrontCaddy:
		return "caddy"
	case FrontEnvoy:
		return "envoy"
	case FrontRLS:
		return "rls"
	}
	return "Front(" + strconv.Itoa(int(f)) + ")"
}
