// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// costs reads a number or a list of costs.
func (d *decoder) costs(n *Node, path string, into *Costs) {
	if !d.someItems(n, path) {
		return
	}
	if n.Kind == KindList {
		d.list(n, path, reflect.ValueOf(into).Elem())
		return
	}
	if n.Kind == KindMap {
		*into = make(Costs, 1)
		d.value(n, path, reflect.ValueOf(&(*into)[0]).Elem())
		return
	}
	*into = make(Costs, 1)
	d.value(n, path, reflect.ValueOf(&(*into)[0].N).Elem())
}

// identify reads a list of ways to identify, or one of them.
func (d *decoder) identify(n *Node, path string, into *[]Identify) {
	if !d.someItems(n, path) {
		return
	}
	if n.Kind != KindList {
		*into = []Identify{d.identifyEntry(n, path)}
		return
	}
	*into = make([]Identify, len(n.Items))
	for i, item := range n.Items {
		(*into)[i] = d.identifyEntry(item, index(path, i))
	}
}

// identifyEntry reads one way to identify: the plain word ip, or a map with exactly one word.
func (d *decoder) identifyEntry(n *Node, path string) (entry Identify) {
	kind := reflect.TypeFor[Identify]()
	switch n.Kind {
	case KindWord, KindText:
		switch {
		case n.Text == "ip":
			entry.IP = &IdentifyIP{}
		case isLater(kind, n.Text):
			d.found.at(n, path, notYet, "")
		case slices.Contains(wordsOf(kind), n.Text):
			d.found.at(n, path, "needs to be told more", identifyRemedy)
		default:
			d.found.at(n, path, "is not a way to identify a client", identifyRemedy)
		}
	case KindMap:
		d.fields(n, path, reflect.ValueOf(&entry).Elem())
		d.oneWord(n, path, identifyRemedy)
	default:
		d.found.at(n, path, "is "+n.Kind.String()+" where a way to identify belongs", identifyRemedy)
	}
	return entry
}

// oneWord reports a map that must say one thing and says none or several.
func (d *decoder) oneWord(n *Node, path, remedy string) {
	if n.Kind == KindMap && len(n.Entries) != 1 {
		d.found.at(n, path, fmt.Sprintf("must have exactly one word, not %d", len(n.Entries)), remedy)
	}
}

// oneOrList reads a list, of which a single item may stand without the list.
func (d *decoder) oneOrList(n *Node, path string, into reflect.Value) {
	if n.Kind == KindList {
		d.list(n, path, into)
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), 1, 1))
	if n.Kind == KindMap { // as everything that is found later calls it
		path = index(path, 0)
	}
	d.value(n, path, into.Index(0))
}

// statuses reads response statuses, which are numbers as well as words.
func (d *decoder) statuses(n *Node, path string, into *StatusWords) {
	if n.Kind != KindList {
		*into = StatusWords{d.status(n, path)}
		return
	}
	if len(n.Items) == 0 {
		d.found.at(n, path, "is an empty list", "write statuses such as 401 and 5xx")
		return
	}
	for i, item := range n.Items {
		*into = append(*into, d.status(item, index(path, i)))
	}
}

func (d *decoder) status(n *Node, path string) string {
	if n.Kind == KindNumber {
		return n.Text
	}
	text, _ := d.word(n, path)
	return text
}

// date reads a date, which some formats have a type of its own for.
func (d *decoder) date(n *Node, path string) Date {
	if n.Kind == KindDate {
		return Date(strings.Replace(n.Text, " ", "T", 1)) // TOML may write a space
	}
	text, _ := d.word(n, path)
	return Date(text)
}

// named reads a map whose keys are names that the user chose. Of headers, upper and lower case are one.
func (d *decoder) named(n *Node, path string, into reflect.Value) {
	_, exact := into.Interface().(Tiers)
	if n.Kind != KindMap {
		d.found.at(n, path, "is "+n.Kind.String()+" where names with values belong", remedyForNamed(path))
		return
	}
	if len(n.Entries) == 0 {
		remedy := "leave the word out"
		if lastWord(path) == "header" {
			remedy += " to mean everything"
		}
		d.found.at(n, path, "is an empty block", remedy)
	}
	into.Set(reflect.MakeMapWithSize(into.Type(), len(n.Entries)))
	seen := make(map[string]string, len(n.Entries))
	for _, entry := range n.Entries {
		at, key := join(path, entry.Key), entry.Key
		if !exact {
			key = strings.ToLower(key)
		}
		if place, twice := seen[key]; twice {
			d.twice(entry, at, place)
			continue
		}
		seen[key] = entry.Place
		if value, ok := d.namedValue(entry, at, exact, into.Type().Elem()); ok {
			into.SetMapIndex(reflect.ValueOf(entry.Key), value)
		}
	}
}

// namedValue reads the value of a name: the values that a header may have, the limits of a tier, the value of a response's
// header.
func (d *decoder) namedValue(entry Entry, at string, isTier bool, of reflect.Type) (value reflect.Value, ok bool) {
	if of.Kind() == reflect.String {
		text, ok := d.word(entry.Value, at)
		return reflect.ValueOf(text), ok
	}
	var values Words
	switch n := entry.Value; {
	case n.Kind == KindNull && isTier:
		d.found.at(n, at, "has no value", "write unlimited, or limits such as 1000/1m")
	case n.Kind == KindNull:
		d.found.at(n, at, "has no value", `write "*" for any value`)
	case n.Kind == KindList && len(n.Items) == 0 && isTier:
		d.found.at(n, at, "is an empty list", "write unlimited, or limits such as 1000/1m")
	default:
		d.words(n, at, &values)
		return reflect.ValueOf(values), true
	}
	return reflect.Value{}, false
}
