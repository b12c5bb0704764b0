// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/penstock/penstock/core"
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
	// shadowPolicy is the file of a candidate.
	shadowPolicy string
	store        *Store
	problems     core.Problems // with how it is written; the tree has others
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
	if limits := b.limits(d.RemainingArgs()); len(limits.Items) > 0 && b.nameLine == nil {
		b.problem("penstock", "has a limit that does not say for which requests", "write it in a site, or as a rule in this "+
			"block: rule NAME LIMIT")
	} else if len(limits.Items) > 0 {
		b.line = policy.Map(place(d))
		b.line.Set("limit", place(d), limits)
		b.rules.Items = append(b.rules.Items, b.line)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.word()
	}
	if d.Next() {
		return d.Errf("%q stands behind the penstock block; write one directive a line", d.Val())
	}
	if b.line != nil && b.line.Get("name") == nil {
		b.line.Set("name", b.line.Place, policy.Text(b.line.Place, b.nameLine()))
	}
	if len(b.rules.Items) > 0 {
		b.tree.Set("rules", b.tree.Place, b.rules)
	}
	return nil
}

// problem notes that the word on this line is written wrongly.
func (b *block) problem(word, why, remedy string) {
	b.problemAt(place(b.d), word, why, remedy)
}

func (b *block) problemAt(at, word, why, remedy string) {
	b.problems = append(b.problems, core.Problem{Path: word, Why: why, Remedy: remedy, Place: at})
}

// skip passes over the rest of a line and its block, for a word that makes no sense.
func (b *block) skip() {
	b.d.RemainingArgs()
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		b.skip()
	}
}

// document makes the policy and tells everything that is wrong with it.
func (b *block) document() (*policy.Document, error) {
	d, err := policy.FromNode(b.tree)
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

// ruleWords are the words that may stand in a block for the limit of its first line. Those a policy knows as well are
// the policy's there.
var ruleWords = []string{"match", "per", "limit", "tiers", "group", "priority", "missing", "unverified", "cost", "cost_after",
	"count_if", "refund_on", "action", "throttle", "response", "retry_after", "retry_jitter", "expose",
	"quota"}

func (b *block) word() {
	word := b.d.Val()
	switch {
	case word == "policy":
		b.policyFile(word, &b.policy)
	case word == "shadow":
		b.shadow()
	case word == "store" && b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
		b.skip()
	case word == "store":
		b.readStore()
	case word == "rule":
		b.rule()
	case word == "identify":
		b.identify()
	case word == "exempt", word == "block":
		b.listed(word)
	case word == "user", word == "tenant", word == "tier":
		b.source(word)
	case !slices.Contains(ruleWords, word):
		b.plain(b.tree)
	case b.line == nil:
		b.problem(word, "belongs to a rule", fmt.Sprintf("write rule NAME { %s ... }, or the limit on the first line", word))
		b.skip()
	default:
		b.ruleWord(b.line)
	}
}

// shadow reads "shadow policy FILE".
func (b *block) shadow() {
	if !b.d.NextArg() || b.d.Val() != "policy" {
		b.problem("shadow", "tries a policy file out and nothing else", "write shadow policy candidate.yaml; for one rule, action log_only")
		b.skip()
		return
	}
	b.policyFile("shadow policy", &b.shadowPolicy)
}

func (b *block) policyFile(word string, file *string) {
	d := b.d
	args := d.RemainingArgs()
	switch {
	case len(args) != 1:
		b.problem(word, "takes one file", "write "+word+" policy.yaml")
	case *file != "":
		b.problem(word, "stands here twice", "keep one file")
	default:
		*file = absolute(d, args[0])
	}
	b.noBlock(word)
}

// absolute returns the path of a file that is named relative to the Caddyfile, as import names them: the working
// directory of a service is seldom where its files are, and that of "caddy reload" need not be the service's.
func absolute(d *caddyfile.Dispenser, path string) string {
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
func (b *block) merge(into *policy.Node, word string) {
	known := into.Get(word)
	if known == nil {
		known = policy.Map(place(b.d))
		into.Set(word, place(b.d), known)
	}
	b.matchWords(known)
}

// matchWords reads the rest of a line and its block as words of a match.
func (b *block) matchWords(into *policy.Node) {
	d := b.d
	if d.NextArg() {
		b.matchWord(into)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.matchWord(into)
	}
}

// matchNames are the words of match that are followed by a name and values, with what is wrong without a name.
var matchNames = map[string][2]string{
	"header": {"names no header", "write header X-Name VALUE"},
	"attr":   {"names no attribute", "write attr NAME VALUE"},
}

func (b *block) matchWord(into *policy.Node) {
	d := b.d
	word := d.Val()
	lacks, known := matchNames[word]
	if !known {
		b.plain(into)
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
		named = policy.Map(at)
		into.Set(word, at, named)
	}
	values := policy.Texts(at, args[1:]...)
	if known := named.Get(args[0]); known != nil && known.Kind == policy.KindList {
		known.Items = append(known.Items, values.Items...)
		return
	}
	named.Set(args[0], at, values)
}

// flags are the words that mean true when nothing follows them.
var flags = []string{"enabled", "unverified", "expose", "quota", "case_sensitive", "bearer"}

// files are the words whose value is the path of a file.
var files = []string{"jwks_file", "secret_file", "keys_file"}

// plain reads a word with its values, whatever it is: internal/policy knows which there are.
func (b *block) plain(into *policy.Node) {
	d := b.d
	word, at := d.Val(), place(d)
	args := d.RemainingArgs()
	inner := policy.Map(at)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.plain(inner)
	}
	if len(args) > 0 && len(inner.Entries) > 0 {
		b.problem(word, "has values and a block", "write one of them")
	}
	var value *policy.Node
	switch {
	case len(inner.Entries) > 0:
		value = inner
	case len(args) == 0 && word == "penalty": // all of it has defaults
		value = inner
	case len(args) == 0 && slices.Contains(flags, word):
		value = policy.Text(at, "true")
	case len(args) == 0:
		value = &policy.Node{Place: at}
	case len(args) == 1 && args[0] == "[]":
		value = policy.List(at)
	case len(args) == 1 && slices.Contains(files, word):
		value = policy.Text(at, absolute(d, args[0]))
	default:
		value = oneOrMany(at, args)
	}
	into.Set(word, at, value)
}

// oneOrMany returns a word, or a list of several.
func oneOrMany(at string, args []string) *policy.Node {
	if len(args) == 1 {
		return policy.Text(at, args[0])
	}
	return policy.Texts(at, args...)
}

// lineAndBlock reads "key value..." behind a word, as far as it is there, and the block that may follow: the words of
// one thing, of which the line names what matters most.
func (b *block) lineAndBlock() *policy.Node {
	d := b.d
	at := place(d)
	into := policy.Map(at)
	if args := d.RemainingArgs(); len(args) > 0 {
		value := &policy.Node{Place: at}
		if len(args) > 1 {
			value = oneOrMany(at, args[1:])
		}
		into.Set(args[0], at, value)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.plain(into)
	}
	return into
}

// place says where the token was written.
func place(d *caddyfile.Dispenser) string {
	return fmt.Sprintf("%s:%d", d.File(), d.Line())
}
