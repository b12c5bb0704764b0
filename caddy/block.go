// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/penstock/penstock/internal/policy"
)

// block is a penstock block on its way to a policy: what is the policy's goes into a tree that internal/policy reads, so
// that every word means what it means in a file, and everything wrong is told at once.
type block struct {
	d        *caddyfile.Dispenser
	tree     *policy.Node
	rules    *policy.Node
	line     *policy.Node  // the rule of the first line
	nameLine func() string // nil: not in a site
	policy   string
	store    *Store
}

func newBlock(d *caddyfile.Dispenser) *block {
	return &block{d: d, tree: policy.Map(""), rules: policy.List("")}
}

func (b *block) read() error {
	d := b.d
	if !d.Next() {
		return d.ArgErr()
	}
	b.tree.Place = place(d)
	if limits := b.limits(d.RemainingArgs()); len(limits.Items) > 0 {
		b.line = policy.Map(place(d))
		b.line.Set("limit", place(d), limits)
		b.rules.Items = append(b.rules.Items, b.line)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.word(); err != nil {
			return err
		}
	}
	if d.Next() {
		return d.Errf("%q stands behind the penstock block; write one directive a line", d.Val())
	}
	if b.line != nil && b.line.Get("name") == nil && b.nameLine != nil {
		b.line.Set("name", b.line.Place, policy.Text(b.line.Place, b.nameLine()))
	}
	if len(b.rules.Items) > 0 {
		b.tree.Set("rules", b.tree.Place, b.rules)
	}
	return nil
}

// document makes the policy and tells everything that is wrong with it.
func (b *block) document() (*policy.Document, error) {
	d, err := policy.FromNode(b.tree)
	if err != nil {
		return nil, fmt.Errorf("\n%w", err)
	}
	named := *d
	nameRules(&named, func(string) bool { return false })
	if _, err := named.Compile(); err != nil {
		return nil, fmt.Errorf("\n%w", err)
	}
	return d, nil
}

// ruleWords are the words that may stand in a block for the limit of its first line. Those a policy knows as well are
// the policy's there.
var ruleWords = []string{"match", "per", "limit", "group", "priority", "missing", "unverified", "cost", "action", "expose"}

func (b *block) word() error {
	d := b.d
	word := d.Val()
	switch word {
	case "policy":
		return b.policyFile()
	case "store":
		if b.nameLine != nil {
			return d.Errf("the store is for the whole Caddy; write it in a penstock block of the global options")
		}
		return b.readStore()
	case "rule":
		return b.rule()
	case "identify":
		return b.identify()
	case "exempt":
		return b.merge(b.tree, word)
	}
	if slices.Contains(ruleWords, word) {
		if b.line == nil {
			return d.Errf("%s belongs to a rule; write rule NAME { %s ... }, or the limit on the first line", word, word)
		}
		return b.ruleWord(b.line)
	}
	return b.plain(b.tree)
}

func (b *block) policyFile() error {
	d := b.d
	if b.policy != "" {
		return d.Errf("policy stands here twice; keep one file")
	}
	var path string
	if !d.Args(&path) || d.NextArg() {
		return d.Errf("policy takes one file; write policy policy.yaml")
	}
	b.policy = path
	// Relative to the Caddyfile, as import is: the working directory of a service is seldom where its files are.
	if !filepath.IsAbs(path) && !strings.HasPrefix(path, "{") {
		b.policy = filepath.Join(filepath.Dir(d.File()), path)
	}
	return b.noBlock("policy")
}

func (b *block) noBlock(word string) error {
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		return b.d.Errf("%s takes no block", word)
	}
	return nil
}

// rule reads a rule: its name, optionally limits, optionally a block.
func (b *block) rule() error {
	d := b.d
	at := place(d)
	rule := policy.Map(at)
	args := d.RemainingArgs()
	if len(args) == 0 || strings.Contains(args[0], "/") {
		return d.Errf("the rule has no name; write rule NAME { ... }")
	}
	rule.Set("name", at, policy.Text(at, args[0]))
	if limits := b.limits(args[1:]); len(limits.Items) > 0 {
		rule.Set("limit", at, limits)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.ruleWord(rule); err != nil {
			return err
		}
	}
	b.rules.Items = append(b.rules.Items, rule)
	return nil
}

func (b *block) ruleWord(rule *policy.Node) error {
	switch word := b.d.Val(); word {
	case "match":
		return b.merge(rule, word)
	case "limit":
		at := place(b.d)
		b.extend(rule, word, b.limits(b.d.RemainingArgs()), at)
		return b.noBlock(word)
	case "cost":
		return b.cost(rule)
	default:
		return b.plain(rule)
	}
}

// limits puts the words of one or several limits together: each begins with the word that has the slash.
func (b *block) limits(args []string) *policy.Node {
	list := policy.List(place(b.d))
	for _, arg := range args {
		if n := len(list.Items); n > 0 && !strings.Contains(arg, "/") {
			list.Items[n-1].Text += " " + arg
			continue
		}
		list.Items = append(list.Items, policy.Text(place(b.d), arg))
	}
	return list
}

// extend adds the items to the list of that name, so that a word may stand on several lines.
func (b *block) extend(into *policy.Node, word string, items *policy.Node, at string) {
	if known := into.Get(word); known != nil && known.Kind == policy.KindList {
		known.Items = append(known.Items, items.Items...)
		return
	}
	into.Set(word, at, items)
}

// merge reads "word key value..." or "word { key value... }" into the map of that name.
func (b *block) merge(into *policy.Node, word string) error {
	known := into.Get(word)
	if known == nil {
		known = policy.Map(place(b.d))
		into.Set(word, place(b.d), known)
	}
	return b.matchWords(known)
}

// matchWords reads the rest of a line and its block as words of a match.
func (b *block) matchWords(into *policy.Node) error {
	d := b.d
	if d.NextArg() {
		if err := b.matchWord(into); err != nil {
			return err
		}
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.matchWord(into); err != nil {
			return err
		}
	}
	return nil
}

func (b *block) matchWord(into *policy.Node) error {
	d := b.d
	if d.Val() != "header" {
		return b.plain(into)
	}
	at := place(d)
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Errf("header names no header; write header X-Name VALUE")
	}
	headers := into.Get("header")
	if headers == nil {
		headers = policy.Map(at)
		into.Set("header", at, headers)
	}
	values := policy.Texts(at, args[1:]...)
	if known := headers.Get(args[0]); known != nil && known.Kind == policy.KindList {
		known.Items = append(known.Items, values.Items...)
		return nil
	}
	headers.Set(args[0], at, values)
	return nil
}

// cost reads "cost N", or "cost N key value..." and "cost N { key value... }" for the requests that match.
func (b *block) cost(rule *policy.Node) error {
	d := b.d
	at := place(d)
	if !d.NextArg() {
		return d.Errf("cost takes a number; write cost 5, or cost 5 path /search")
	}
	entry := policy.Map(at).Set("n", at, policy.Text(at, d.Val()))
	match := policy.Map(at)
	if err := b.matchWords(match); err != nil {
		return err
	}
	if len(match.Entries) > 0 {
		entry.Set("match", at, match)
	}
	b.extend(rule, "cost", policy.List(at, entry), at)
	return nil
}

// identify reads "identify ip|attr NAME|header NAME [unverified]" with an optional block, one way a line.
func (b *block) identify() error {
	d := b.d
	at := place(d)
	if d.NextArg() {
		return b.identifyWay(at)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.identifyWay(place(d)); err != nil {
			return err
		}
	}
	return nil
}

func (b *block) identifyWay(at string) error {
	d := b.d
	kind := d.Val()
	inner := policy.Map(at)
	value := inner
	switch args := d.RemainingArgs(); {
	case kind == "attr" && len(args) == 1:
		value = policy.Text(at, args[0])
	case kind == "header" && len(args) > 0:
		inner.Set("name", at, policy.Text(at, args[0]))
		if len(args) == 2 && args[1] == "unverified" {
			inner.Set("unverified", at, policy.Text(at, "true"))
		} else if len(args) > 1 {
			return d.Errf("%q cannot stand behind the header's name; write identify header %s unverified", args[1], args[0])
		}
	case len(args) > 0:
		return d.Errf("identify %s cannot take %q; write identify ip, identify attr NAME or identify header NAME unverified",
			kind, strings.Join(args, " "))
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.plain(inner); err != nil {
			return err
		}
	}
	b.extend(b.tree, "identify", policy.List(at, policy.Map(at).Set(kind, at, value)), at)
	return nil
}

// flags are the words that mean true when nothing follows them.
var flags = []string{"enabled", "unverified", "expose", "case_sensitive"}

// plain reads a word with its values, whatever it is: internal/policy knows which there are.
func (b *block) plain(into *policy.Node) error {
	d := b.d
	word, at := d.Val(), place(d)
	args := d.RemainingArgs()
	inner := policy.Map(at)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.plain(inner); err != nil {
			return err
		}
	}
	var value *policy.Node
	switch {
	case len(inner.Entries) > 0:
		value = inner
	case len(args) == 0 && slices.Contains(flags, word):
		value = policy.Text(at, "true")
	case len(args) == 0:
		value = &policy.Node{Place: at}
	case len(args) == 1 && args[0] == "[]":
		value = policy.List(at)
	case len(args) == 1:
		value = policy.Text(at, args[0])
	default:
		value = policy.Texts(at, args...)
	}
	into.Set(word, at, value)
	return nil
}

// place says where the token was written.
func place(d *caddyfile.Dispenser) string {
	return fmt.Sprintf("%s:%d", d.File(), d.Line())
}
