// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// block parses a penstock block into a policy. The policy's settings go into a tree that
// internal/policyfile reads. So each setting means the same as in a policy file, and all problems
// are reported together.
type block struct {
	d        *caddyfile.Dispenser
	tree     *syntax.Node
	rules    *syntax.Node
	line     *syntax.Node  // the rule of the directive's first line
	nameLine func() string // nil outside of a site
	from     policyPlaces
	// shadowPolicy is the file of a candidate policy.
	shadowPolicy string
	store        *Store
	directory    *Directory
	eventsTo     string
	control      *Control
	region       string
	problems     policy.Problems // problems of the Caddyfile syntax; all other problems are in the tree
}

func newBlock(d *caddyfile.Dispenser) *block {
	return &block{d: d, tree: syntax.Map(""), rules: syntax.List("")}
}

func (b *block) read() error {
	d := b.d
	if !d.Next() {
		return d.ArgErr()
	}
	b.tree.Place = place(d)
	if limits := b.limits(d.RemainingArgs()); len(limits.Items) > 0 && b.nameLine == nil {
		b.problem("penstock", "has a limit, but no site or rule that says which requests it limits", "write it in a site, or as a rule in this "+
			"block: rule NAME LIMIT")
	} else if len(limits.Items) > 0 {
		b.line = syntax.Map(place(d))
		b.line.Set("limit", place(d), limits)
		b.rules.Items = append(b.rules.Items, b.line)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.word()
	}
	if d.Next() {
		return d.Errf("%q follows the penstock block; write one directive a line", d.Val())
	}
	if b.line != nil && b.line.Get("name") == nil {
		b.line.Set("name", b.line.Place, syntax.Text(b.line.Place, b.nameLine()))
	}
	if len(b.rules.Items) > 0 {
		b.tree.Set("rules", b.tree.Place, b.rules)
	}
	return nil
}

// block.problem records a problem of the setting that the dispenser is at.
func (b *block) problem(word, why, remedy string) {
	b.problemAt(place(b.d), word, why, remedy)
}

func (b *block) problemAt(at, word, why, remedy string) {
	b.problems = append(b.problems, policy.Problem{Path: word, Why: why, Remedy: remedy, Place: at})
}

// block.skip consumes the rest of a line and its block, after a setting that is invalid here.
func (b *block) skip() {
	b.d.RemainingArgs()
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		b.skip()
	}
}

// block.document returns the policy, or an error that lists all problems.
func (b *block) document() (*policyfile.Document, error) {
	d, err := policyfile.FromNode(b.tree)
	if len(b.problems) > 0 {
		err = errors.Join(b.problems, err)
	}
	if err != nil {
		return nil, fmt.Errorf("\n%w", err)
	}
	named := *d
	nameRules(&named, func(string) bool { return false })
	if err := named.Check(); err != nil {
		return nil, fmt.Errorf("\n%w", err)
	}
	return d, nil
}

// ruleWords are the settings that a block accepts for the limit on its first line. Settings that
// rules and policies share, such as lease, are not among them, because in a block they apply to the
// policy.
var ruleWords = []string{"match", "per", "limit", "tiers", "group", "priority", "missing", "unverified", "cost", "cost_after",
	"count_if", "refund_on", "action", "throttle", "response", "retry_after", "retry_jitter", "expose",
	"quota"}

func (b *block) word() {
	word := b.d.Val()
	switch {
	case word == "policy":
		b.readPolicy()
	case word == "shadow":
		b.shadow()
	case word == "store" && b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
		b.skip()
	case word == "store":
		b.readStore()
	case word == "directory" && b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
		b.skip()
	case word == "directory":
		b.readDirectory()
	case word == "region":
		b.readRegion()
	case word == "events_to":
		b.readEventsTo()
	case word == "control":
		b.readControl()
	case word == "rule":
		b.rule()
	case word == "identify":
		b.identify()
	case word == "exempt", word == "block":
		b.listedEntry(word)
	case word == "user", word == "tenant", word == "tier":
		b.source(word)
	case !slices.Contains(ruleWords, word):
		b.readSetting(b.tree)
	case b.line == nil:
		b.problem(word, "belongs to a rule", fmt.Sprintf("write rule NAME { %s ... }, or the limit on the first line", word))
		b.skip()
	default:
		b.ruleWord(b.line)
	}
}

// block.shadow reads "shadow policy FILE".
func (b *block) shadow() {
	if !b.d.NextArg() || b.d.Val() != "policy" {
		b.problem("shadow", "tries a policy file out and nothing else", "write shadow policy candidate.yaml; for one rule, action log_only")
		b.skip()
		return
	}
	b.policyFile("shadow policy", &b.shadowPolicy)
}

// readPolicy reads "policy FILE", "policy redis NAME" or "policy http NAME".
func (b *block) readPolicy() {
	args := b.d.RemainingArgs()
	switch {
	case len(args) == 2 && (args[0] == "redis" || args[0] == "http"):
		b.readPublished(args[0], args[1])
		return
	case b.from.redis != nil || b.from.http != nil:
		b.problem("policy", "is listed twice", "keep one")
	default:
		b.filePath("policy", args, &b.from.file)
	}
	b.noBlock("policy")
}

func (b *block) policyFile(word string, file *string) {
	b.filePath(word, b.d.RemainingArgs(), file)
	b.noBlock(word)
}

// filePath stores in file the path in args, which must be the only argument.
func (b *block) filePath(word string, args []string, file *string) {
	switch {
	case len(args) != 1:
		b.problem(word, "takes one file", "write "+word+" policy.yaml")
	case *file != "":
		b.problem(word, "is listed twice", "keep one file")
	default:
		*file = resolveInCaddyfile(b.d, args[0])
	}
}

// resolveInCaddyfile resolves a path relative to the Caddyfile, as the directive import does. The
// working directory of a service is rarely where its files are, and "caddy reload" may run in a
// different one.
func resolveInCaddyfile(d *caddyfile.Dispenser, path string) string {
	if filepath.IsAbs(path) || strings.HasPrefix(path, "{") {
		return path
	}
	path = filepath.Join(filepath.Dir(d.File()), path)
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

func (b *block) noBlock(word string) {
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		b.problem(word, "takes no block", "")
		b.skip()
	}
}

// block.limits parses one or several limits. Each limit begins with the argument that contains
// a slash.
func (b *block) limits(args []string) *syntax.Node {
	list := syntax.List(place(b.d))
	for _, arg := range args {
		if n := len(list.Items); n > 0 && !strings.Contains(arg, "/") {
			list.Items[n-1].Text += " " + arg
			continue
		}
		list.Items = append(list.Items, syntax.Text(place(b.d), arg))
	}
	return list
}

// block.extend appends items to a list, so that a setting may be repeated on several lines.
func (b *block) extend(into *syntax.Node, word string, items *syntax.Node, at string) {
	if known := into.Get(word); known != nil && known.Kind == syntax.KindList {
		known.Items = append(known.Items, items.Items...)
		return
	}
	into.Set(word, at, items)
}

// block.merge reads "key value..." pairs, or a block of them, into the map named word.
func (b *block) merge(into *syntax.Node, word string) {
	known := into.Get(word)
	if known == nil {
		known = syntax.Map(place(b.d))
		into.Set(word, place(b.d), known)
	}
	b.matchWords(known)
}

// matchWords reads the rest of a line and its block as conditions of a match.
func (b *block) matchWords(into *syntax.Node) {
	d := b.d
	if d.NextArg() {
		b.matchWord(into)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.matchWord(into)
	}
}

// matchNames holds, for each match condition that takes a name and values, the problem and the
// remedy that are reported if the name is missing.
var matchNames = map[string][2]string{
	"header": {"names no header", "write header X-Name VALUE"},
	"attr":   {"names no attribute", "write attr NAME VALUE"},
}

func (b *block) matchWord(into *syntax.Node) {
	d := b.d
	word := d.Val()
	lacks, known := matchNames[word]
	if !known {
		b.readSetting(into)
		return
	}
	at := place(d)
	args := d.RemainingArgs()
	if len(args) == 0 {
		b.problem(word, lacks[0], lacks[1])
		b.skip()
		return
	}
	named := into.Get(word)
	if named == nil {
		named = syntax.Map(at)
		into.Set(word, at, named)
	}
	values := syntax.Texts(at, args[1:]...)
	if known := named.Get(args[0]); known != nil && known.Kind == syntax.KindList {
		known.Items = append(known.Items, values.Items...)
		return
	}
	named.Set(args[0], at, values)
}

// flags lists the settings that mean true without a value.
var flags = []string{"enabled", "unverified", "expose", "quota", "case_sensitive", "bearer"}

// files lists the settings whose value is a file path.
var files = []string{"jwks_file", "secret_file", "keys_file"}

// block.readSetting reads any setting with its values. internal/policyfile decides whether the
// setting exists.
func (b *block) readSetting(into *syntax.Node) {
	d := b.d
	word, at := d.Val(), place(d)
	args := d.RemainingArgs()
	inner := syntax.Map(at)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.readSetting(inner)
	}
	if len(args) > 0 && len(inner.Entries) > 0 {
		b.problem(word, "has values and a block", "write one of them")
	}
	var value *syntax.Node
	switch {
	case len(inner.Entries) > 0:
		value = inner
	case len(args) == 0 && (word == "penalty" || word == "events"): // all fields of these have defaults
		value = inner
	case len(args) == 0 && slices.Contains(flags, word):
		value = syntax.Text(at, "true")
	case len(args) == 0:
		value = &syntax.Node{Place: at}
	case len(args) == 1 && args[0] == "[]":
		value = syntax.List(at)
	case len(args) == 1 && slices.Contains(files, word):
		value = syntax.Text(at, resolveInCaddyfile(d, args[0]))
	default:
		value = oneOrMany(at, args)
	}
	into.Set(word, at, value)
}

// oneOrMany returns a single value as text, and several values as a list.
func oneOrMany(at string, args []string) *syntax.Node {
	if len(args) == 1 {
		return syntax.Text(at, args[0])
	}
	return syntax.Texts(at, args...)
}

// lineAndBlock reads an optional "key value..." line and the optional block after it as settings of
// one object.
func (b *block) lineAndBlock() *syntax.Node {
	d := b.d
	at := place(d)
	into := syntax.Map(at)
	if args := d.RemainingArgs(); len(args) > 0 {
		value := &syntax.Node{Place: at}
		if len(args) > 1 {
			value = oneOrMany(at, args[1:])
		}
		into.Set(args[0], at, value)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.readSetting(into)
	}
	return into
}

// place returns the file and line of the current token.
func place(d *caddyfile.Dispenser) string {
	return fmt.Sprintf("%s:%d", d.File(), d.Line())
}
