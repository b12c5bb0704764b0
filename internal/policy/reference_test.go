// SPDX-License-Identifier: Apache-2.0

package policy

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
)

// reference reads docs/policy.md.
func reference(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// firstCells returns what stands in backticks in the first column of the table with that heading, in order.
func firstCells(t *testing.T, text, heading string) (words []string) {
	t.Helper()
	_, table, ok := strings.Cut(text, "\n| "+heading+" |")
	if !ok {
		t.Fatalf("docs/policy.md has no table %q", heading)
	}
	for i, line := range strings.Split(table, "\n") {
		if i < 2 { // the rest of the heading, and the line below it
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

// Every word of the types has a line in its table, and every line is a word.
func TestReferenceHasEveryWord(t *testing.T) {
	text := reference(t)
	for heading, of := range map[string]reflect.Type{
		"word of the policy":             reflect.TypeFor[Document](),
		"word of identify":               reflect.TypeFor[Identify](),
		"word of jwt":                    reflect.TypeFor[IdentifyJWT](),
		"word of api_key":                reflect.TypeFor[IdentifyAPIKey](),
		"word of header":                 reflect.TypeFor[IdentifyHeader](),
		"word of cookie":                 reflect.TypeFor[IdentifyCookie](),
		"word of ip":                     reflect.TypeFor[IdentifyIP](),
		"word of user, tenant and tier":  reflect.TypeFor[Source](),
		"word of a rule":                 reflect.TypeFor[Rule](),
		"word of match":                  reflect.TypeFor[Match](),
		"word of cost":                   reflect.TypeFor[Cost](),
		"word of cost_after":             reflect.TypeFor[CostAfter](),
		"word of count_if and refund_on": reflect.TypeFor[Statuses](),
		"word of throttle":               reflect.TypeFor[Throttle](),
		"word of response":               reflect.TypeFor[Response](),
		"word of penalty":                reflect.TypeFor[Penalty](),
		"word of exempt and block":       reflect.TypeFor[Listed](),
	} {
		if diff := cmp.Diff(wordsOf(of), firstCells(t, text, heading)); diff != "" {
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

// Every word still to come is refused as such in every part of a policy that its line names.
func TestReferenceHasThePlacesOfLaterWords(t *testing.T) {
	parts := map[string]reflect.Type{"the policy": reflect.TypeFor[Document](), "a rule": reflect.TypeFor[Rule](),
		"`identify`": reflect.TypeFor[Identify](), "`match`": reflect.TypeFor[Match]()}
	_, table, _ := strings.Cut(reference(t), "\n| later word |")
	checked := 0
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 {
			break
		}
		for _, match := range inBackticks.FindAllStringSubmatch(cells[0], -1) {
			for _, where := range strings.Split(cells[1], ", ") {
				if part, ok := parts[where]; ok {
					checked++
					if !isLater(part, match[1]) {
						t.Errorf("docs/policy.md says that %s will be a word of %s, %s does not", match[1], where, part)
					}
				}
			}
		}
	}
	if checked < 1 {
		t.Errorf("docs/policy.md: only %d places of later words were found", checked)
	}
}

// The words still to come are those that the decoder refuses as such, and no others.
func TestReferenceHasEveryLaterWord(t *testing.T) {
	want := map[string]bool{}
	for _, words := range later {
		for _, word := range words {
			want[word] = true
		}
	}
	got := map[string]bool{}
	for _, word := range firstCells(t, reference(t), "later word") {
		got[word] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("table of later words (-types +docs):\n%s", diff)
	}
}

// Every limit in the table is one, and every algorithm.
func TestReferenceLimits(t *testing.T) {
	text := reference(t)
	limits := firstCells(t, text, "limit")
	if len(limits) < 5 {
		t.Errorf("the table of limits has %d lines, want at least 5", len(limits))
	}
	for _, limit := range limits {
		if _, err := core.ParseLimit(limit); err != nil {
			t.Errorf("limit %q: %v", limit, err)
		}
	}
	for _, word := range firstCells(t, text, "algorithm (alias)") {
		if _, err := core.ParseLimit("10/1m " + word); word != "burst" && err != nil {
			t.Errorf("algorithm %q: %v", word, err)
		}
	}
}

// The path patterns in the table compile, and the keys in the table are those of the first example.
func TestReferenceKeys(t *testing.T) {
	text := reference(t)
	for _, pattern := range firstCells(t, text, "pattern") {
		d := Document{Rules: []Rule{{Name: "a", Limit: Words{"1/1s"}, Match: &Match{Path: Words{pattern}}}}}
		if _, err := d.Compile(); err != nil {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
	_, example, _ := strings.Cut(text, "```yaml\n")
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
	plan.Add(ruleset, anyone{})
	got := map[string]bool{}
	for _, check := range plan.Checks() {
		got[string(check.Key)] = true
	}
	keys := firstCells(t, text, "key")
	if len(keys) != 3 {
		t.Errorf("the table of keys has %d lines, want 3", len(keys))
	}
	if shard, ok := core.ShardOf([]byte(keys[2])); !ok || shard != 3 {
		t.Errorf("key %q is shard %d", keys[2], shard)
	}
	keys[2] = string(core.AppendWholeKey(nil, []byte(keys[2])))
	for _, key := range keys {
		if !got[key] {
			t.Errorf("key %q is not one of %v", key, slices.Sorted(maps.Keys(got)))
		}
	}
}

// anyone asks for /api/cart from 192.0.2.7.
type anyone struct{}

func (anyone) Path() string                 { return "/api/cart" }
func (anyone) Method() string               { return "GET" }
func (anyone) Host() string                 { return "shop.example" }
func (anyone) Header(string) (string, bool) { return "", false }
func (anyone) Peer() netip.Addr             { return netip.MustParseAddr("192.0.2.7") }
func (anyone) Query() string                { return "" }
func (anyone) Remote() netip.Addr           { return netip.Addr{} }
func (anyone) Now() core.Micros             { return 0 }
func (anyone) Attr(string) (string, bool)   { return "", false }
