// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// precedence.ask sends METHOD URL [as KIND ID [WORD=VALUE …]] and compares the answer. It then
// repeats the request with tracing. The result must be equal, and Explain must report the same
// rules, numbers and keys.
func (p *precedence) ask(words []string, want string) {
	p.asked++
	if p.rs == nil {
		var err error
		if p.rs, err = Compile(p.policy); err != nil {
			p.fatal("%v", err)
		}
	}
	request := &client{path: words[1], method: words[0], peer: netip.MustParseAddr("192.0.2.7"),
		header: map[string]string{}, now: 1_700_050_000 * counter.Second}
	if rest, hasHost := strings.CutPrefix(words[1], "//"); hasHost {
		host, path, _ := strings.Cut(rest, "/")
		request.host, request.path = host, "/"+path
	}
	p.who = knownClient{state: policy.CredentialUnknown}
	if len(words) > 3 && words[2] == "as" {
		carrier := "Authorization"
		if words[3] == "api_key" {
			carrier = "X-Api-Key"
		}
		request.header[carrier] = "Bearer token"
		p.asClient(words[3], words[4], words[5:], request)
	}
	plan, d := newCounters().ask(p.t, request, p.rs)
	if got := p.answer(plan, &d); got != want {
		p.t.Errorf("testdata/precedence.txt:%d: %s\n got %s\nwant %s", p.line, strings.Join(words, " "), got, want)
	}
	traced := new(Plan)
	traced.Trace()
	traced.Add(p.rs, request)
	newCounters().take(traced.Checks(), traced.Results())
	d = traced.Decide()
	if got := p.answer(traced, &d); got != want {
		p.t.Errorf("testdata/precedence.txt:%d: traced, it comes to %s", p.line, got)
	}
	p.checkExplained(traced)
}

// asClient gives the request the credential of a client.
func (p *precedence) asClient(kind, id string, words []string, request *client) {
	who := &policy.Identity{Kind: kind, ID: id}
	switch kind {
	case "user":
		who.User = id
	case "api_key":
		who.APIKey = id
	case "revoked":
		p.who.state = policy.CredentialRevoked
		return
	default:
		p.fatal("%q is no kind of client", kind)
	}
	own := map[string]policy.LimitSet{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		rule, isOwn := strings.CutPrefix(key, "own.")
		switch {
		case isOwn:
			own[rule] = p.set(value)
		case key == "tier":
			who.Tier = value
		case key == "tenant":
			who.Tenant = value
		case key == "user":
			who.User = value
		case key == "header":
			name, text, _ := strings.Cut(value, ":")
			request.header[name] = text
		default:
			p.fatal("%q is no word of a client", key)
		}
	}
	var err error
	if who.Overrides, err = policy.NewOverrides(own); err != nil {
		p.fatal("%v", err)
	}
	p.who = knownClient{identity: who, state: policy.CredentialValid}
}

// precedence.answer returns the result of a plan in the notation of the stories.
func (p *precedence) answer(plan *Plan, d *Decision) string {
	switch {
	case d.Outcome == OutcomeBlocked && d.Rule != "":
		return "blocked:" + d.Rule
	case d.Outcome == OutcomeBlocked, d.Outcome == OutcomeUnauthorized:
		return d.Outcome.String()
	case len(plan.uses) == 0:
		return "none"
	}
	var answers []string
	for i, o := range plan.Outcomes() {
		u, said := &plan.uses[i], ""
		switch {
		case o.Outcome != OutcomeAllowed:
			said = o.Outcome.String()
		case u.unlimited:
			said = "unlimited"
		}
		for c := u.checks[0]; c < u.checks[1] && o.Outcome == OutcomeAllowed; c++ {
			said += "," + plan.checks[c].Limit.String()
		}
		answers = append(answers, u.rule.name+":"+strings.TrimPrefix(said, ","))
	}
	return strings.Join(answers, " ")
}

// checkExplained checks that the explanation agrees with the plan on every rule in play, and that
// it gives a reason for every other matching rule.
func (p *precedence) checkExplained(plan *Plan) {
	explanations := plan.Explain()
	if len(explanations) != 1 {
		p.fatal("%d explanations", len(explanations))
	}
	e := explanations[0]
	inPlay := 0
	for _, r := range e.Rules {
		u := plan.useOf(p.rs, int32(r.Index))
		if r.Fate == "" || u == nil && strings.HasPrefix(r.Fate, "applies") {
			p.fatal("%s is said to be %q", r.Name, r.Fate)
		}
		if u == nil {
			continue
		}
		inPlay++
		asked := int(u.checks[1] - u.checks[0])
		if len(plan.Checks()) == 0 { // the request is denied without the store
			asked = 0
		}
		if len(r.Checks) != asked || r.Unlimited != u.unlimited || r.Name != u.rule.name {
			p.fatal("%s: %+v, in the plan it is %+v", r.Name, r, u)
		}
		for i := range r.Checks {
			c := &plan.checks[int(u.checks[0])+i]
			if string(r.Checks[i].Key) != string(c.Key) || r.Checks[i].Limit != c.Limit || r.Cost != c.Cost {
				p.fatal("%s asks %+v, said to be %+v", r.Name, c, r.Checks[i])
			}
		}
	}
	for _, o := range plan.Outcomes() {
		if o.Index >= 0 {
			inPlay--
		}
	}
	if inPlay != 0 {
		p.fatal("%d rules too many are explained: %+v", inPlay, e.Rules)
	}
}
