// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"strings"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// block.rule reads a rule: its name, optional limits and an optional block.
func (b *block) rule() {
	d := b.d
	at := place(d)
	rule := syntax.Map(at)
	args := d.RemainingArgs()
	if len(args) == 0 || strings.Contains(args[0], "/") {
		b.problem("rule", "has no name", "write rule NAME { ... }")
		b.skip()
		return
	}
	rule.Set("name", at, syntax.Text(at, args[0]))
	if limits := b.limits(args[1:]); len(limits.Items) > 0 {
		rule.Set("limit", at, limits)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.ruleWord(rule)
	}
	b.rules.Items = append(b.rules.Items, rule)
}

func (b *block) ruleWord(rule *syntax.Node) {
	switch word := b.d.Val(); word {
	case "match":
		b.merge(rule, word)
	case "limit":
		at := place(b.d)
		b.extend(rule, word, b.limits(b.d.RemainingArgs()), at)
		b.noBlock(word)
	case "tiers":
		b.tiers(rule)
	case "cost":
		b.cost(rule)
	case "cost_after", "count_if", "refund_on":
		at := place(b.d)
		rule.Set(word, at, b.lineAndBlock())
	case "action":
		b.action(rule)
	case "response":
		b.response(rule)
	default:
		b.readSetting(rule)
	}
}

// block.tiers reads "tiers NAME LIMIT..." or a block with one tier on each line. LIMIT may be
// unlimited.
func (b *block) tiers(rule *syntax.Node) {
	d := b.d
	at := place(d)
	known := rule.Get("tiers")
	if known == nil {
		known = syntax.Map(at)
		rule.Set("tiers", at, known)
	}
	if d.NextArg() {
		b.tier(known)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.tier(known)
	}
}

func (b *block) tier(into *syntax.Node) {
	name, at := b.d.Val(), place(b.d)
	limits := b.limits(b.d.RemainingArgs())
	switch len(limits.Items) {
	case 0:
		b.problem("tiers."+name, "has no limit", "write "+name+" 1000/1m, or "+name+" unlimited")
	case 1:
		into.Set(name, at, limits.Items[0])
	default:
		into.Set(name, at, limits)
	}
	b.noBlock("tiers." + name)
}

// block.action reads "action NAME". After throttle, an optional block bounds the delay and the
// queue.
func (b *block) action(rule *syntax.Node) {
	d := b.d
	at, args := place(d), d.RemainingArgs()
	if len(args) != 1 {
		b.problem("action", "takes one word", "write action reject, log_only, throttle, allow or block")
		b.skip()
		return
	}
	rule.Set("action", at, syntax.Text(at, args[0]))
	if args[0] != "throttle" {
		b.noBlock("action " + args[0])
		return
	}
	throttle := syntax.Map(at)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.readSetting(throttle)
	}
	if len(throttle.Entries) > 0 {
		rule.Set("throttle", at, throttle)
	}
}

// block.response reads "response { status N ... }", in which "header NAME VALUE" may appear.
func (b *block) response(rule *syntax.Node) {
	d := b.d
	at := place(d)
	response, headers := syntax.Map(at), syntax.Map(at)
	if len(d.RemainingArgs()) > 0 {
		b.problem("response", "takes a block", "write response { status 429 }")
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch d.Val() {
		case "header":
			if d.NextArg() {
				b.responseHeader(headers)
			} else {
				b.problem("response.header", "takes a name and a value", responseHeaderRemedy)
			}
		case "headers":
			if d.NextArg() {
				b.responseHeader(headers)
			}
			for inner := d.Nesting(); d.NextBlock(inner); {
				b.responseHeader(headers)
			}
		default:
			b.readSetting(response)
		}
	}
	if len(headers.Entries) > 0 {
		response.Set("headers", headers.Entries[0].Place, headers)
	}
	rule.Set("response", at, response)
}

const responseHeaderRemedy = "write header X-Name VALUE"

func (b *block) responseHeader(into *syntax.Node) {
	name, at := b.d.Val(), place(b.d)
	if args := b.d.RemainingArgs(); len(args) == 1 {
		into.Set(name, at, syntax.Text(at, args[0]))
	} else {
		b.problem("response.header", "takes a name and a value", responseHeaderRemedy)
	}
	b.noBlock("response.header")
}

// block.cost reads one of the forms of a cost: "cost N" for all requests, "cost N key
// value..." or "cost N { key value... }" for requests that match, or "cost header NAME { trusted
// ... }".
func (b *block) cost(rule *syntax.Node) {
	d := b.d
	at := place(d)
	if !d.NextArg() {
		b.problem("cost", "has no number", "write cost 5, or cost 5 path /search")
		b.skip()
		return
	}
	if d.Val() == "header" {
		b.extend(rule, "cost", syntax.List(at, b.costHeader(at)), at)
		return
	}
	entry := syntax.Map(at).Set("n", at, syntax.Text(at, d.Val()))
	match := syntax.Map(at)
	b.matchWords(match)
	if len(match.Entries) > 0 {
		entry.Set("match", at, match)
	}
	b.extend(rule, "cost", syntax.List(at, entry), at)
}

// costHeader reads the rest of "cost header NAME { ... }". The block may contain "match" in
// addition to the settings of a cost.
func (b *block) costHeader(at string) *syntax.Node {
	d := b.d
	entry := syntax.Map(at)
	if args := d.RemainingArgs(); len(args) == 1 {
		entry.Set("header", at, syntax.Text(at, args[0]))
	} else {
		b.problem("cost header", "takes one name", "write cost header X-Cost { trusted 10.0.0.0/8 }")
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() == "match" {
			b.merge(entry, "match")
		} else {
			b.readSetting(entry)
		}
	}
	return entry
}
