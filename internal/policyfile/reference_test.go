// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
)

// reference returns the text of all pages of docs/reference.
func reference(t *testing.T) string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "reference", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/reference has no pages: %v", err)
	}
	var text strings.Builder
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(data)
	}
	return text.String()
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// firstCells returns the texts in backticks in the first column of the table with the given
// heading, in order.
func firstCells(t *testing.T, text, heading string) (words []string) {
	t.Helper()
	_, table, ok := strings.Cut(text, "\n| "+heading+" |")
	if !ok {
		t.Fatalf("docs/reference has no table %q", heading)
	}
	for i, line := range strings.Split(table, "\n") {
		if i < 2 { // these are the rest of the heading, and the separator below it
			continue
		}
		if !strings.HasPrefix(line, "| ") {
			break
		}
		for _, match := range inBackticks.FindAllStringSubmatch(strings.Split(line, " | ")[0], -1) {
			words = append(words, match[1])
		}
	}
	return words
}

// TestReferenceHasEveryWord: the tables list every field of the types, and no others.
func TestReferenceHasEveryWord(t *testing.T) {
	text := reference(t)
	for heading, of := range map[string]reflect.Type{
		"field of the policy":             reflect.TypeFor[Document](),
		"field of identify":               reflect.TypeFor[Identify](),
		"field of jwt":                    reflect.TypeFor[IdentifyJWT](),
		"field of api_key":                reflect.TypeFor[IdentifyAPIKey](),
		"field of header":                 reflect.TypeFor[IdentifyHeader](),
		"field of cookie":                 reflect.TypeFor[IdentifyCookie](),
		"field of ip":                     reflect.TypeFor[IdentifyIP](),
		"field of user, tenant and tier":  reflect.TypeFor[Source](),
		"field of a rule":                 reflect.TypeFor[Rule](),
		"field of match":                  reflect.TypeFor[Match](),
		"field of cost":                   reflect.TypeFor[Cost](),
		"field of cost_after":             reflect.TypeFor[CostAfter](),
		"field of count_if and refund_on": reflect.TypeFor[Statuses](),
		"field of throttle":               reflect.TypeFor[Throttle](),
		"field of response":               reflect.TypeFor[Response](),
		"field of penalty":                reflect.TypeFor[Penalty](),
		"field of events":                 reflect.TypeFor[Events](),
		"field of exempt and block":       reflect.TypeFor[Listed](),
	} {
		if diff := cmp.Diff(FieldNames(of), firstCells(t, text, heading)); diff != "" {
			t.Errorf("table %q (-types +docs):\n%s", heading, diff)
		}
	}
	for heading, want := range map[string][]string{
		"action":   choiceWords(actions),
		"missing":  choiceWords(missings),
		"on_error": choiceWords(onErrors),
		"per":      append(choiceWords(dimensions), "header:NAME", "attr:NAME"),
	} {
		if diff := cmp.Diff(want, firstCells(t, text, heading)); diff != "" {
			t.Errorf("table %q (-types +docs):\n%s", heading, diff)
		}
	}
}

func choiceWords[T any](among []choice[T]) (words []string) {
	for _, c := range among {
		words = append(words, c.word)
	}
	return words
}

// TestReferenceLimits: every limit in the table is valid, and the table has every algorithm.
func TestReferenceLimits(t *testing.T) {
	text := reference(t)
	limits := firstCells(t, text, "limit")
	if len(limits) < 5 {
		t.Errorf("the table of limits has %d lines, want at least 5", len(limits))
	}
	for _, limit := range limits {
		if _, err := counter.ParseLimit(limit); err != nil {
			t.Errorf("limit %q: %v", limit, err)
		}
	}
	for _, word := range firstCells(t, text, "algorithm (alias)") {
		if _, err := counter.ParseLimit("10/1m " + word); word != "burst" && err != nil {
			t.Errorf("algorithm %q: %v", word, err)
		}
	}
}

// TestReferenceKeys: the path patterns in the table compile, and the keys in the table are those of
// the first example.
func TestReferenceKeys(t *testing.T) {
	text := reference(t)
	for _, pattern := range firstCells(t, text, "pattern") {
		d := Document{Rules: []Rule{{Name: "a", Limit: Words{"1/1s"}, Match: &Match{Path: Words{pattern}}}}}
		if _, err := d.Compile(); err != nil {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
	_, example, _ := strings.Cut(text, "# Policy reference\n")
	_, example, _ = strings.Cut(example, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	d, err := Decode("example", YAML, []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	ruleset, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var plan core.Plan
	plan.Reset()
	plan.Add(ruleset, cartRequest{})
	got := map[string]bool{}
	for _, check := range plan.Checks() {
		got[string(check.Key)] = true
	}
	keys := firstCells(t, text, "key")
	if len(keys) != 3 {
		t.Errorf("the table of keys has %d lines, want 3", len(keys))
	}
	if shard, ok := counter.ShardOf([]byte(keys[2])); !ok || shard != 3 {
		t.Errorf("key %q is shard %d", keys[2], shard)
	}
	keys[2] = string(counter.AppendUnshardedKey(nil, []byte(keys[2])))
	for _, key := range keys {
		if !got[key] {
			t.Errorf("key %q is not one of %v", key, slices.Sorted(maps.Keys(got)))
		}
	}
}

// cartRequest is a request for /api/cart from 192.0.2.7.
type cartRequest struct{}

func (cartRequest) Path() string                 { return "/api/cart" }
func (cartRequest) Method() string               { return "GET" }
func (cartRequest) Host() string                 { return "shop.example" }
func (cartRequest) Header(string) (string, bool) { return "", false }
func (cartRequest) Peer() netip.Addr             { return netip.MustParseAddr("192.0.2.7") }
func (cartRequest) Query() string                { return "" }
func (cartRequest) Remote() netip.Addr           { return netip.Addr{} }
func (cartRequest) Now() counter.Micros          { return 0 }
func (cartRequest) Attr(string) (string, bool)   { return "", false }
