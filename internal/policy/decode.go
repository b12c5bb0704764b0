// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

// FromNode decodes a document's tree. The error is [core.Problems], with every problem that can be found in the tree, in
// the words it holds and in the policy they make.
func FromNode(n *Node) (*Document, error) { return fromNode(n, &report{}) }

func fromNode(n *Node, found *report) (*Document, error) {
	d := &Document{}
	if n != nil {
		decodeInto(n, d, found)
		d.tree = n
		d.addFollowing(found)
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	return d, nil
}

// decodeInto reads a tree into a pointer to one of the document's types.
func decodeInto(n *Node, into any, found *report) {
	d := decoder{found: found}
	d.value(n, "", reflect.ValueOf(into).Elem())
}

// decoder reads nodes into the document's types by their json tags: there is one decoder, whatever the format. It goes
// on after a problem and leaves the value zero.
type decoder struct{ found *report }

func (d *decoder) value(n *Node, path string, into reflect.Value) {
	if n.Kind == KindNull {
		d.found.at(n, path, "has no value", "write one, or leave the word out")
		return
	}
	switch target := into.Addr().Interface().(type) {
	case *Words:
		if d.someItems(n, path) {
			d.words(n, path, target)
		}
		return
	case **Words: // per, of which an empty list says something
		*target = new(Words)
		d.words(n, path, *target)
		return
	case *Costs:
		d.costs(n, path, target)
		return
	case *Lists, *Sources, *Numbers:
		d.oneOrList(n, path, into)
		return
	case *StatusWords:
		d.statuses(n, path, target)
		return
	case *Date:
		*target = d.date(n, path)
		return
	case *Source:
		d.fields(n, path, into)
		d.oneWord(n, path, sourceRemedy)
		return
	case *[]Identify:
		d.identify(n, path, target)
		return
	case *Identify:
		*target = d.identifyEntry(n, path)
		return
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.value(n, path, into.Elem())
	case reflect.Struct:
		d.fields(n, path, into)
	case reflect.Slice:
		d.list(n, path, into)
	case reflect.Map:
		d.named(n, path, into)
	case reflect.Bool:
		d.flag(n, path, into)
	case reflect.Int, reflect.Int64:
		d.number(n, path, into)
	default:
		if text, ok := d.word(n, path); ok {
			into.SetString(text)
		}
	}
}

// saysNothing holds the blocks that, with nothing in them, are as if left out. The others lack a word that is required, or
// say something, as an empty ip does.
var saysNothing = map[reflect.Type]bool{reflect.TypeFor[Match](): true, reflect.TypeFor[Listed](): true,
	reflect.TypeFor[Response](): true}

// fields reads a map into a struct, and reports keys that are unknown, belong to a later version, or stand twice.
func (d *decoder) fields(n *Node, path string, into reflect.Value) {
	if n.Kind != KindMap {
		d.found.at(n, path, "is "+n.Kind.String()+" where words with values belong", remedyForBlock(path))
		return
	}
	if len(n.Entries) == 0 && saysNothing[into.Type()] {
		d.found.at(n, path, "is an empty block", "leave the word out")
	}
	fields := fieldsOf(into.Type())
	seen := make(map[string]string, len(n.Entries))
	for _, entry := range n.Entries {
		at := join(path, entry.Key)
		if place, twice := seen[entry.Key]; twice {
			d.twice(entry, at, place)
			continue
		}
		seen[entry.Key] = entry.Place
		if index, ok := fields[entry.Key]; ok {
			d.value(entry.Value, at, into.Field(index))
			continue
		}
		d.unknown(entry, at, into.Type())
	}
}

func (d *decoder) twice(entry Entry, path, first string) {
	why := "stands here twice"
	if first != "" {
		why += ": it was first written at " + first
	}
	d.found.add(core.Problem{Path: path, Why: why, Remedy: "keep one of them", Place: entry.Place})
}

func (d *decoder) unknown(entry Entry, path string, in reflect.Type) {
	if d.found.full() {
		d.found.more++
		return
	}
	problem := core.Problem{Path: path, Why: "is not a word that can stand here", Place: entry.Place}
	if isLater(in, entry.Key) {
		problem.Why = notYet
	} else if remedy, ok := instead[entry.Key]; ok {
		problem.Remedy = remedy
	} else if home := homeOf(entry.Key, in); home != "" {
		problem.Remedy = "it belongs in " + home
	} else if near := nearest(entry.Key, wordsOf(in)); near != "" {
		problem.Remedy = fmt.Sprintf("did you mean %q?", near)
	} else {
		problem.Remedy = "the words are " + strings.Join(wordsOf(in), ", ")
	}
	d.found.add(problem)
}

// someItems reports lists without an item: to some readers they mean everything, to others nothing.
func (d *decoder) someItems(n *Node, path string) bool {
	if n.Kind != KindList || len(n.Items) > 0 {
		return true
	}
	remedy := "leave the word out"
	if strings.Contains(path, ".match.") {
		remedy += " to mean everything"
	}
	switch lastWord(path) {
	case "headers":
		remedy = "write none for no headers, or leave the word out for all"
	case "limit":
		remedy = "write COUNT/WINDOW, for example 100/1m"
	}
	d.found.at(n, path, "is an empty list", remedy)
	return false
}

func (d *decoder) list(n *Node, path string, into reflect.Value) {
	if n.Kind != KindList {
		d.found.at(n, path, "is "+n.Kind.String()+" where a list belongs", "write a list, even of one")
		return
	}
	if len(n.Items) == 0 {
		d.found.at(n, path, "is an empty list", "leave the word out")
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(n.Items), len(n.Items)))
	for i, item := range n.Items {
		d.value(item, index(path, i), into.Index(i))
	}
}

// words reads one word or a list of words. One that cannot be read is empty: the others keep their numbers.
func (d *decoder) words(n *Node, path string, into *Words) {
	items := []*Node{n}
	if n.Kind == KindList {
		items = n.Items
	}
	*into = make(Words, 0, len(items))
	for i, item := range items {
		at := path
		if n.Kind == KindList {
			at = index(path, i)
		}
		text, _ := d.word(item, at)
		*into = append(*into, text)
	}
}

// word reads one word.
func (d *decoder) word(n *Node, path string) (string, bool) {
	switch n.Kind {
	case KindWord, KindText:
		if n.Text == "" {
			d.found.at(n, path, "is empty", "write something, or leave the word out")
			return "", false
		}
		return n.Text, true
	case KindNumber, KindBool, KindDate:
		d.found.at(n, path, "is "+n.Kind.String()+" where a word belongs", remedyForWord(path, n.Text))
	case KindNull:
		d.found.at(n, path, "has no value", "write one, or leave the word out")
	default:
		d.found.at(n, path, "is "+n.Kind.String()+" where a word belongs", "")
	}
	return "", false
}

// flag reads true or false.
func (d *decoder) flag(n *Node, path string, into reflect.Value) {
	typed := n.Kind == KindBool || n.Kind == KindText
	if typed && (n.Text == "true" || n.Text == "false") {
		into.SetBool(n.Text == "true")
		return
	}
	remedy := "write true or false"
	switch strings.ToLower(n.shown()) {
	case "yes", "on", "y", "true", "1":
		remedy = "write true"
	case "no", "off", "n", "false", "0":
		remedy = "write false"
	}
	if n.Kind == KindWord && (n.Text == "true" || n.Text == "false") {
		remedy += ", without quotes"
	}
	d.found.at(n, path, "is neither true nor false", remedy)
}

// number reads a whole number in decimal digits. Whatever a format may read as a number, 010 and 1e3 are not ones that
// everybody reads alike.
func (d *decoder) number(n *Node, path string, into reflect.Value) {
	if n.Kind != KindNumber && n.Kind != KindText {
		remedy := "write a number"
		if _, err := strconv.ParseInt(n.shown(), 10, 64); err == nil {
			remedy = "write it without quotes"
		} else if plain, ok := plainNumber(n.shown()); ok {
			remedy = "write " + plain
		}
		d.found.at(n, path, "is "+n.Kind.String()+" where a whole number belongs", remedy)
		return
	}
	value, err := strconv.ParseInt(n.Text, 10, 64)
	if err == nil && strconv.FormatInt(value, 10) == n.Text {
		into.SetInt(value)
		return
	}
	remedy := ""
	if plain, ok := plainNumber(n.Text); ok {
		remedy = "write " + plain
	}
	d.found.at(n, path, "is not a whole number in decimal digits", remedy)
}

// plainNumber writes 1_000, +5, 1e3 and 2.0 in decimal digits. A number in another base is ambiguous: 010 is eight to
// some readers.
func plainNumber(text string) (string, bool) {
	text = strings.ReplaceAll(text, "_", "")
	value, err := strconv.ParseFloat(text, 64)
	digits := strings.TrimLeft(text, "+-")
	ambiguous := len(digits) > 1 && digits[0] == '0' && digits[1] != '.'
	if err != nil || ambiguous || value != math.Trunc(value) || math.Abs(value) > 1<<53 {
		return "", false
	}
	return strconv.FormatInt(int64(value), 10), true
}

// join adds a key to a path. A key that could not be told from the path's own signs is quoted.
func join(path, key string) string {
	key = cut(key)
	if key == "" || strings.ContainsAny(key, " \t\r\n\"[]:") {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
