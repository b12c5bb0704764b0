// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// block.identify reads "identify ip|attr NAME|header NAME [unverified]|cookie NAME
// [unverified]|jwt|api_key" with an optional block. Each line adds one entry.
func (b *block) identify() {
	d := b.d
	at, said := place(d), false
	if d.NextArg() {
		b.identifyWay(at)
		return
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); said = true {
		b.identifyWay(place(d))
	}
	if !said {
		b.problem("identify", "has no value", identifyRemedy)
	}
}

const identifyRemedy = "write identify ip, identify attr NAME, identify header NAME unverified, or identify jwt { ... }"

func (b *block) identifyWay(at string) {
	kind := b.d.Val()
	b.extend(b.tree, "identify", syntax.List(at, syntax.Map(at).Set(kind, at, b.namedMethod("identify "+kind, kind, identifyRemedy))), at)
}

// namedMethod reads the rest of an entry of identify, which follows the kind. An attr takes a name,
// a header or cookie takes a name and optionally unverified, and other kinds take a block.
func (b *block) namedMethod(path, kind, remedy string) *syntax.Node {
	d := b.d
	at := place(d)
	inner := syntax.Map(at)
	switch args := d.RemainingArgs(); {
	case kind == "attr" && len(args) == 1:
		b.noBlock(path)
		return syntax.Text(at, args[0])
	case (kind == "header" || kind == "cookie") && len(args) > 0:
		inner.Set("name", at, syntax.Text(at, args[0]))
		if len(args) == 2 && args[1] == "unverified" {
			inner.Set("unverified", at, syntax.Text(at, "true"))
		} else if len(args) > 1 {
			b.problem(path, fmt.Sprintf("cannot take %q behind the name", args[1]), remedy)
		}
	case len(args) > 0:
		b.problem(path, fmt.Sprintf("cannot take %q", strings.Join(args, " ")), remedy)
		b.skip()
		return inner
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.readSetting(inner)
	}
	return inner
}

// block.source reads "tenant attr NAME|header NAME unverified|host_label N", or a block with
// one source on each line. The settings user and tier have the same forms.
func (b *block) source(word string) {
	d := b.d
	if d.NextArg() {
		b.sourceFrom(word)
		return
	}
	said := false
	for nesting := d.Nesting(); d.NextBlock(nesting); said = true {
		b.sourceFrom(word)
	}
	if !said {
		b.problem(word, "has no value", sourceRemedy(word))
	}
}

func sourceRemedy(word string) string {
	return fmt.Sprintf("write %s attr NAME, %s header NAME unverified or %s host_label 1", word, word, word)
}

func (b *block) sourceFrom(word string) {
	d := b.d
	kind, at := d.Val(), place(d)
	from := syntax.Map(at)
	if kind == "host_label" {
		b.readSetting(from)
	} else {
		from.Set(kind, at, b.namedMethod(word+" "+kind, kind, sourceRemedy(word)))
	}
	b.extend(b.tree, word, syntax.List(at, from), at)
}

// listedEntry reads an entry of exempt or block, such as "exempt ip 10.0.0.0/8 { reason ... }", or
// a block with the same content. Each directive adds one entry.
func (b *block) listedEntry(word string) {
	at := place(b.d)
	b.extend(b.tree, word, syntax.List(at, b.lineAndBlock()), at)
}
