// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// FromNode decodes a document's tree. The error is [policy.Problems], which contains every problem
// of the tree, of the values in the tree, and of the resulting policy.
func FromNode(n *syntax.Node) (*Document, error) { return decodeDocument(n, &syntax.Report{}) }

func decodeDocument(n *syntax.Node, found *syntax.Report) (*Document, error) {
	d := &Document{}
	found.Finish = d.NameRules
	if n != nil {
		decodeInto(n, d, found)
		d.tree = n
		d.addFollowing(found)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// decodeInto decodes a tree into the value to which the pointer refers, which has one of the
// document's types.
func decodeInto(n *syntax.Node, into any, found *syntax.Report) {
	d := decoder{found: found}
	d.value(n, "", reflect.ValueOf(into).Elem())
}

// decoder decodes nodes into the document's types by their json tags; all formats use it. After a
// problem it continues, and sets the value to zero.
type decoder struct{ found *syntax.Report }

func (d *decoder) value(n *syntax.Node, path string, into reflect.Value) {
	if n.Kind == syntax.KindNull {
		d.found.At(n, path, "has no value", "write one, or leave it out")
		return
	}
	switch target := into.Addr().Interface().(type) {
	case *Words:
		if d.someItems(n, path) {
			d.words(n, path, target)
		}
		return
	case **Words: // the field per, whose empty list has a meaning
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
	case *Share:
		*target = d.share(n, path)
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
		d.decodeNamed(n, path, into)
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

// saysNothing lists the blocks that mean the same when empty as when omitted. Other blocks have a
// required field, or have a meaning of their own when empty, such as ip.
var saysNothing = map[reflect.Type]bool{reflect.TypeFor[Match](): true, reflect.TypeFor[Listed](): true,
	reflect.TypeFor[Response](): true}

// decoder.fields decodes a map into a struct. It reports keys that are unknown, or duplicate.
func (d *decoder) fields(n *syntax.Node, path string, into reflect.Value) {
	if n.Kind != syntax.KindMap {
		d.found.At(n, path, "is "+n.Kind.String()+" where a block of fields belongs", remedyForBlock(path))
		return
	}
	if len(n.Entries) == 0 && saysNothing[into.Type()] {
		d.found.At(n, path, "is an empty block", "leave it out")
	}
	fields := FieldsOf(into.Type())
	seen := make(map[string]string, len(n.Entries))
	for _, entry := range n.Entries {
		at := Join(path, entry.Key)
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

func (d *decoder) twice(entry syntax.Entry, path, first string) {
	why := "is listed twice"
	if first != "" {
		why += ": the first is at " + first
	}
	d.found.Add(policy.Problem{Path: path, Why: why, Remedy: "keep one of them", Place: entry.Place})
}

func (d *decoder) unknown(entry syntax.Entry, path string, in reflect.Type) {
	if d.found.Full() {
		d.found.More++
		return
	}
	problem := policy.Problem{Path: path, Why: "is an unknown field", Place: entry.Place}
	if remedy, ok := instead[entry.Key]; ok {
		problem.Remedy = remedy
	} else if home := homeOf(entry.Key, in); home != "" {
		problem.Remedy = "it belongs in " + home
	} else if near := nearestWord(entry.Key, FieldNames(in)); near != "" {
		problem.Remedy = fmt.Sprintf("did you mean %q?", near)
	} else {
		problem.Remedy = "the fields are " + strings.Join(FieldNames(in), ", ")
	}
	d.found.Add(problem)
}

// someItems reports empty lists, which could mean everything or nothing.
func (d *decoder) someItems(n *syntax.Node, path string) bool {
	if n.Kind != syntax.KindList || len(n.Items) > 0 {
		return true
	}
	remedy := "leave it out"
	if strings.Contains(path, ".match.") {
		remedy += " to mean everything"
	}
	switch syntax.LastWord(path) {
	case "headers":
		remedy = "write none for no headers, or leave it out for all"
	case "limit":
		remedy = "write COUNT/WINDOW, for example 100/1m"
	}
	d.found.At(n, path, "is an empty list", remedy)
	return false
}

func (d *decoder) list(n *syntax.Node, path string, into reflect.Value) {
	if n.Kind != syntax.KindList {
		d.found.At(n, path, "is "+n.Kind.String()+" where a list belongs", "write a list, even of one")
		return
	}
	if len(n.Items) == 0 {
		d.found.At(n, path, "is an empty list", "leave it out")
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(n.Items), len(n.Items)))
	for i, item := range n.Items {
		d.value(item, Index(path, i), into.Index(i))
	}
}

// decoder.words decodes one word or a list. An invalid word becomes empty, so that the other words
// keep their indexes.
func (d *decoder) words(n *syntax.Node, path string, into *Words) {
	items := []*syntax.Node{n}
	if n.Kind == syntax.KindList {
		items = n.Items
	}
	*into = make(Words, 0, len(items))
	for i, item := range items {
		at := path
		if n.Kind == syntax.KindList {
			at = Index(path, i)
		}
		text, _ := d.word(item, at)
		*into = append(*into, text)
	}
}

// decoder.word reads one word.
func (d *decoder) word(n *syntax.Node, path string) (string, bool) {
	switch n.Kind {
	case syntax.KindWord, syntax.KindText:
		if n.Text == "" {
			d.found.At(n, path, "is empty", "write something, or leave it out")
			return "", false
		}
		return n.Text, true
	case syntax.KindNumber, syntax.KindBool, syntax.KindDate:
		d.found.At(n, path, "is "+n.Kind.String()+" where a string belongs", remedyForWord(path, n.Text))
	case syntax.KindNull:
		d.found.At(n, path, "has no value", "write one, or leave it out")
	default:
		d.found.At(n, path, "is "+n.Kind.String()+" where a string belongs", "")
	}
	return "", false
}

// decoder.flag reads true or false.
func (d *decoder) flag(n *syntax.Node, path string, into reflect.Value) {
	typed := n.Kind == syntax.KindBool || n.Kind == syntax.KindText
	if typed && (n.Text == "true" || n.Text == "false") {
		into.SetBool(n.Text == "true")
		return
	}
	remedy := "write true or false"
	switch strings.ToLower(n.Shown()) {
	case "yes", "on", "y", "true", "1":
		remedy = "write true"
	case "no", "off", "n", "false", "0":
		remedy = "write false"
	}
	if n.Kind == syntax.KindWord && (n.Text == "true" || n.Text == "false") {
		remedy += ", without quotes"
	}
	d.found.At(n, path, "is neither true nor false", remedy)
}

// decoder.number decodes a whole number in decimal digits. Forms that parsers interpret
// differently, such as 010 and 1e3, are rejected.
func (d *decoder) number(n *syntax.Node, path string, into reflect.Value) {
	if n.Kind != syntax.KindNumber && n.Kind != syntax.KindText {
		remedy := "write a number"
		if _, err := strconv.ParseInt(n.Shown(), 10, 64); err == nil {
			remedy = "write it without quotes"
		} else if plain, ok := plainNumber(n.Shown()); ok {
			remedy = "write " + plain
		}
		d.found.At(n, path, "is "+n.Kind.String()+" where a whole number belongs", remedy)
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
	d.found.At(n, path, "is not a whole number in decimal digits", remedy)
}

// plainNumber converts 1_000, +5, 1e3 and 2.0 to decimal digits. plainNumber rejects 010, which
// some parsers read as eight.
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

// Join returns the path of a key in a block. A key that contains characters of the path syntax is
// quoted.
func Join(path, key string) string {
	key = syntax.Cut(key)
	if key == "" || strings.ContainsAny(key, " \t\r\n\"[]:") {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index returns the path of an entry in a list.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// DecodePart decodes a tree into the struct to which the pointer refers. The struct's fields have
// json tags. The struct is a Document that is not checked as a whole, or holds settings that are
// written beside a Document.
func DecodePart(n *syntax.Node, into any, found *syntax.Report) { decodeInto(n, into, found) }
