// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// decoder.costs reads a number or a list of costs.
func (d *decoder) costs(n *syntax.Node, path string, into *Costs) {
	if !d.someItems(n, path) {
		return
	}
	if n.Kind == syntax.KindList {
		d.list(n, path, reflect.ValueOf(into).Elem())
		return
	}
	if n.Kind == syntax.KindMap {
		*into = make(Costs, 1)
		d.value(n, path, reflect.ValueOf(&(*into)[0]).Elem())
		return
	}
	*into = make(Costs, 1)
	d.value(n, path, reflect.ValueOf(&(*into)[0].N).Elem())
}

// decoder.identify reads a list of ways to identify, or one of them.
func (d *decoder) identify(n *syntax.Node, path string, into *[]Identify) {
	if !d.someItems(n, path) {
		return
	}
	if n.Kind != syntax.KindList {
		*into = []Identify{d.identifyEntry(n, path)}
		return
	}
	*into = make([]Identify, len(n.Items))
	for i, item := range n.Items {
		(*into)[i] = d.identifyEntry(item, Index(path, i))
	}
}

// identifyEntry reads one way to identify: the plain word ip, or a map with exactly one key.
func (d *decoder) identifyEntry(n *syntax.Node, path string) (entry Identify) {
	kind := reflect.TypeFor[Identify]()
	switch n.Kind {
	case syntax.KindWord, syntax.KindText:
		switch {
		case n.Text == "ip":
			entry.IP = &IdentifyIP{}
		case slices.Contains(FieldNames(kind), n.Text):
			d.found.At(n, path, "needs settings", identifyRemedy)
		default:
			d.found.At(n, path, "is not a way to identify a client", identifyRemedy)
		}
	case syntax.KindMap:
		d.fields(n, path, reflect.ValueOf(&entry).Elem())
		d.oneWord(n, path, identifyRemedy)
	default:
		d.found.At(n, path, "is "+n.Kind.String()+" where a way to identify belongs", identifyRemedy)
	}
	return entry
}

// oneWord reports a problem if a map that must have exactly one key has none or several.
func (d *decoder) oneWord(n *syntax.Node, path, remedy string) {
	if n.Kind == syntax.KindMap && len(n.Entries) != 1 {
		d.found.At(n, path, fmt.Sprintf("must have exactly one field, not %d", len(n.Entries)), remedy)
	}
}

// oneOrList decodes a list, or a single item in place of a list.
func (d *decoder) oneOrList(n *syntax.Node, path string, into reflect.Value) {
	if n.Kind == syntax.KindList {
		d.list(n, path, into)
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), 1, 1))
	if n.Kind == syntax.KindMap { // later problems use this path
		path = Index(path, 0)
	}
	d.value(n, path, into.Index(0))
}

// decoder.statuses decodes response statuses, which are numbers or words.
func (d *decoder) statuses(n *syntax.Node, path string, into *StatusWords) {
	if n.Kind != syntax.KindList {
		*into = StatusWords{d.status(n, path)}
		return
	}
	if len(n.Items) == 0 {
		d.found.At(n, path, "is an empty list", "write statuses such as 401 and 5xx")
		return
	}
	for i, item := range n.Items {
		*into = append(*into, d.status(item, Index(path, i)))
	}
}

func (d *decoder) status(n *syntax.Node, path string) string {
	if n.Kind == syntax.KindNumber {
		return n.Text
	}
	text, _ := d.word(n, path)
	return text
}

// decoder.date decodes a date, for which some formats have a type.
func (d *decoder) date(n *syntax.Node, path string) Date {
	if n.Kind == syntax.KindDate {
		return Date(strings.Replace(n.Text, " ", "T", 1)) // TOML permits a space
	}
	text, _ := d.word(n, path)
	return Date(text)
}

// decoder.decodeNamed decodes a map whose keys are names that the user chose. The case of header
// names is ignored.
func (d *decoder) decodeNamed(n *syntax.Node, path string, into reflect.Value) {
	_, isTier := into.Interface().(Tiers)
	_, isRegion := into.Interface().(Regions)
	exact := isTier || isRegion
	if n.Kind != syntax.KindMap {
		d.found.At(n, path, "is "+n.Kind.String()+" where a block of names with values belongs", remedyForNamed(path))
		return
	}
	if len(n.Entries) == 0 {
		remedy := "leave it out"
		if syntax.LastWord(path) == "header" {
			remedy += " to mean everything"
		}
		d.found.At(n, path, "is an empty block", remedy)
	}
	into.Set(reflect.MakeMapWithSize(into.Type(), len(n.Entries)))
	seen := make(map[string]string, len(n.Entries))
	for _, entry := range n.Entries {
		at, key := Join(path, entry.Key), entry.Key
		if !exact {
			key = strings.ToLower(key)
		}
		if place, twice := seen[key]; twice {
			d.twice(entry, at, place)
			continue
		}
		seen[key] = entry.Place
		if value, ok := d.namedValue(entry, at, isTier, into.Type().Elem()); ok {
			into.SetMapIndex(reflect.ValueOf(entry.Key), value)
		}
	}
}

// namedValue decodes the value of a name: the values that a header may have, the limits of a tier,
// the value of a response header, or the share of a region.
func (d *decoder) namedValue(entry syntax.Entry, at string, isTier bool, of reflect.Type) (value reflect.Value, ok bool) {
	if of.Kind() == reflect.String {
		text, ok := d.word(entry.Value, at)
		return reflect.ValueOf(text), ok
	}
	if of.Kind() == reflect.Int64 {
		value, before := reflect.New(of).Elem(), len(d.found.Problems)+d.found.More
		d.value(entry.Value, at, value)
		return value, len(d.found.Problems)+d.found.More == before
	}
	var values Words
	switch n := entry.Value; {
	case n.Kind == syntax.KindNull && isTier:
		d.found.At(n, at, "has no value", "write unlimited, or limits such as 1000/1m")
	case n.Kind == syntax.KindNull:
		d.found.At(n, at, "has no value", `write "*" for any value`)
	case n.Kind == syntax.KindList && len(n.Items) == 0 && isTier:
		d.found.At(n, at, "is an empty list", "write unlimited, or limits such as 1000/1m")
	default:
		d.words(n, at, &values)
		return reflect.ValueOf(values), true
	}
	return reflect.Value{}, false
}
