// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// Front is a part of a program that enforces a policy. Most fields have the same meaning in all
// fronts.
type Front uint8

// The fronts.
const (
	FrontCaddy Front = iota + 1 // the Caddy module
	FrontEnvoy                  // the filter in Envoy
	FrontRLS                    // Envoy's rate limit protocol
)

// FrontOf returns the front with the given name.
func FrontOf(name string) (Front, bool) {
	f, ok := map[string]Front{"caddy": FrontCaddy, "envoy": FrontEnvoy, "rls": FrontRLS}[name]
	return f, ok
}

// foreign holds prefixes of attributes that a front can never have, because they belong to another
// front. There are no such prefixes for the rate limit protocol, because its attributes are
// descriptor entries, which can have any name.
var foreign = map[Front]struct {
	prefixes []string
	why      string
	remedy   string
}{
	FrontCaddy: {[]string{"metadata.", "xds.", "filter_state.", "upstream_filter_state."},
		"is an attribute of Envoy, which Caddy does not have", "write a placeholder of Caddy, such as http.auth.user.id"},
	FrontEnvoy: {[]string{"http."},
		"is a placeholder of Caddy, which Envoy does not have", "write an attribute of Envoy, such as xds.route_name"},
}

// Beyond returns the settings that the front cannot enforce, although [policyfile.Document.Check]
// accepts the policy.
//
// An attribute that only another front has is accepted in a list with other sources, where each is
// tried in turn. So one policy can serve both fronts.
func Beyond(d *policyfile.Document, f Front) policy.Problems {
	p, err := d.Policy()
	if err != nil {
		return nil // Check reports this with a better message
	}
	b := frontChecker{front: f, document: d}
	b.identify(p.Identify)
	b.sources("user", p.User)
	b.sources("tenant", p.Tenant)
	b.sources("tier", p.Tier)
	for i := range p.Rules {
		if !p.Rules[i].Disabled {
			b.rule(policyfile.Index("rules", i), &p.Rules[i])
		}
	}
	d.NameRules(b.problems)
	return b.problems
}

type frontChecker struct {
	front    Front
	document *policyfile.Document
	problems policy.Problems
}

func (b *frontChecker) problem(path, value, why, remedy string) {
	b.problems = append(b.problems, policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: b.document.Place(path)})
}

// frontChecker.foreign reports whether only another front has the attribute.
func (b *frontChecker) foreign(attr string) bool {
	for _, prefix := range foreign[b.front].prefixes {
		if strings.HasPrefix(policyfile.Unbracketed(attr), prefix) {
			return true
		}
	}
	return false
}

func (b *frontChecker) attr(path, name string) {
	if b.foreign(name) {
		b.problem(path, name, foreign[b.front].why, foreign[b.front].remedy)
	}
}

func (b *frontChecker) identify(ways []policy.Identify) {
	for i := range ways {
		if ways[i].Kind != policy.IdentifyAttr || !b.foreign(ways[i].Name) {
			return
		}
	}
	for i := range ways {
		b.attr(policyfile.Index("identify", i), ways[i].Name)
	}
}

func (b *frontChecker) sources(word string, sources []policy.Source) {
	for i := range sources {
		if sources[i].Kind != policy.SourceAttr || !b.foreign(sources[i].Name) {
			return
		}
	}
	for i := range sources {
		b.attr(policyfile.Index(word, i), sources[i].Name)
	}
}

func (b *frontChecker) rule(at string, r *policy.Rule) {
	for i, d := range r.Per {
		if d.Kind == policy.PerAttr {
			b.attr(policyfile.Index(at+".per", i), d.Name)
		}
	}
	b.checkMatch(at+".match", &r.Match)
	for i := range r.Cost {
		b.checkMatch(policyfile.Index(at+".cost", i)+".match", &r.Cost[i].Match)
	}
	if b.front != FrontRLS {
		return
	}
	const unseen, elsewhere = "cannot be done over Envoy's rate limit protocol, which reports no responses, and a bridge with --rls-listen " +
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
	if r.Action == policy.ActionThrottle {
		b.problem(at+".action", "throttle", "cannot be done over Envoy's rate limit protocol, in which nothing waits",
			"write action: reject, or use the filter")
	}
}

func (b *frontChecker) checkMatch(at string, m *policy.Match) {
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
