// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/internal/policyfile"
)

// unseen maps fields of a policy to the reason why no story can test them.
var unseen = map[string]string{
	"Document.name":        "namespaces are seen between stories: two of them share one",
	"Listed.reason":        "clients are not told",
	"IdentifyJWT.refresh":  "a key set does not change here",
	"Throttle.max_waiting": "needs requests at the same time",
	"Document.lease":       "what is taken in advance changes no answer",
	"Rule.lease":           "what is taken in advance changes no answer",
	"Rule.retry_jitter":    "is drawn by lot, and may be nothing",
	"Rule.quota":           "is for requests with several descriptors: core's TestQuota has them",
	"IdentifyCookie.name":  "required",
	"IdentifyHeader.name":  "required",
}

// elsewhere maps words of the policy language that no story can contain to the tests that contain
// them.
var elsewhere = map[string]string{
	"Document.directory":  "needs records in Redis: TestClientsAsData, TestDirectoryBehindEnvoy and core's TestOrderOfForce",
	"IdentifyAPIKey.keys": "needs records in Redis: TestKeysAsData",
	"Document.regions":    regionsElsewhere,
	"Document.across":     regionsElsewhere,
	"Rule.across":         regionsElsewhere,
	"Rule.gossip":         "changes no answer of one region: TestRegionsTellEachOther",
	"Document.events":     eventsElsewhere,
	"Rule.events":         eventsElsewhere,
	"Events.admitted":     eventsElsewhere,
	"Events.denied":       eventsElsewhere,
	"Events.ip":           eventsElsewhere,
	"Events.path":         eventsElsewhere,
}

const regionsElsewhere = "needs a process in a region: TestRegionsDivideEveryKind and policyfile's TestRegions"

const eventsElsewhere = "changes no answer: TestCaddyReportsDenials and enforce's TestReport"

// place is one occurrence of a word of the policy language in a decoded policy.
type place struct {
	word   string // "Rule.limit"
	parent map[string]any
	key    string
}

// places returns all places of words in a policy.
func places(value any, t reflect.Type) (all []place) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		for _, item := range value {
			all = append(all, places(item, t)...)
		}
	case map[string]any:
		if t.Kind() == reflect.Slice {
			t = t.Elem() // a single value instead of a list
		}
		if t.Kind() != reflect.Struct {
			return nil // the keys are names that the policy chooses: headers, tiers, attributes
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			field, ok := fieldOf(t, key)
			if !ok {
				continue
			}
			all = append(all, place{t.Name() + "." + key, value, key})
			all = append(all, places(value[key], field.Type)...)
		}
	}
	return all
}

func fieldOf(t reflect.Type, word string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == word {
			return t.Field(i), true
		}
	}
	return reflect.StructField{}, false
}

// vocabulary adds every word of the policy language to the set named words.
func vocabulary(t reflect.Type, words map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" || words[t.Name()+"."+name] {
			continue
		}
		words[t.Name()+"."+name] = true
		vocabulary(t.Field(i).Type, words)
	}
}

// changedRun is a run of one story with a changed policy.
type changedRun struct {
	t        *testing.T
	story    *Story
	dir      string
	document map[string]any
	set      Setting
}

func newTelling(t *testing.T, s *Story, set Setting) *changedRun {
	t.Helper()
	w := &changedRun{t: t, story: s, dir: t.TempDir(), set: set}
	s.Write(t, w.dir, set)
	if err := yaml.Unmarshal([]byte(s.Text(set)), &w.document); err != nil {
		t.Fatal(err)
	}
	return w
}

// hasEffect reports whether the changed policy is rejected or leads to another answer.
func (w *changedRun) hasEffect() bool {
	w.t.Helper()
	text, err := json.Marshal(w.document)
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.dir, "policy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	document, err := policyfile.Load(file)
	if err != nil {
		return true
	}
	f := newCoreFront(w.t)
	f.store.SetAway(w.story.Away)
	ruleset, closeAll, err := f.open(document)
	if err != nil {
		return true
	}
	defer closeAll()
	for i := range w.story.Exchanges {
		e := &w.story.Exchanges[i]
		want := e.For("core")
		for range e.Times {
			answer := f.ask(w.t, ruleset, &e.Request)
			if len(want.Problems(&answer)) > 0 {
				return true
			}
		}
	}
	return false
}

// TestEveryWordMatters tests that each word of the policy language occurs in a story in which an
// answer changes if the word is removed.
func TestEveryWordMatters(t *testing.T) {
	words, matters := map[string]bool{}, map[string]bool{}
	vocabulary(reflect.TypeFor[policyfile.Document](), words)
	stories := Load(t)
	set := newCoreFront(t).set
	for i := range stories {
		w := newTelling(t, &stories[i], set)
		for _, p := range places(w.document, reflect.TypeFor[policyfile.Document]()) {
			if matters[p.word] {
				continue
			}
			said := p.parent[p.key]
			delete(p.parent, p.key)
			matters[p.word] = w.hasEffect()
			p.parent[p.key] = said
		}
	}
	for _, word := range slices.Sorted(maps.Keys(words)) {
		seen, used := matters[word]
		_, excused := unseen[word]
		switch {
		case !used && elsewhere[word] != "":
		case !used:
			t.Errorf("%s stands in no story", word)
		case !seen && !excused:
			t.Errorf("%s: every story is told the same without it", word)
		}
	}
	for word := range unseen {
		if !words[word] {
			t.Errorf("%s is excused and is no word", word)
		}
	}
}

// choices returns, by word, the possible values of the words that have a fixed set of values.
func choices(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	onError := firstCells(t, string(text), "on_error")
	all := map[string][]string{
		"Rule.action":       firstCells(t, string(text), "action"),
		"Rule.missing":      firstCells(t, string(text), "missing"),
		"Rule.on_error":     onError,
		"Document.on_error": onError,
		// the later rows are dimensions that contain a name, such as header:NAME, and are left out
		"Rule.per":                  firstCells(t, string(text), "per")[:9],
		"Document.enforce":          {"all", "first"},
		"Document.headers":          {"x-ratelimit", "ietf", "none"},
		"IdentifyJWT.on_invalid":    {"next", "deny"},
		"IdentifyAPIKey.on_invalid": {"next", "deny"},
	}
	for word, values := range all {
		if len(values) < 2 {
			t.Fatalf("%s has the values %q", word, values)
		}
	}
	return all
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// firstCells returns the texts in backticks in the first column of a table. The argument heading is
// the heading of this column.
func firstCells(t *testing.T, text, heading string) (words []string) {
	t.Helper()
	_, table, ok := strings.Cut(text, "\n| "+heading+" |")
	if !ok {
		t.Fatalf("docs/reference/policy.md has no table %q", heading)
	}
	for i, line := range strings.Split(table, "\n") {
		if i >= 2 && !strings.HasPrefix(line, "| ") {
			break
		}
		if i < 2 {
			continue
		}
		for _, found := range inBackticks.FindAllStringSubmatch(strings.Split(line, " | ")[0], -1) {
			words = append(words, found[1])
		}
	}
	return words
}

// TestEveryChoiceMatters tests that for each two values of a field with fixed values, there is a
// story whose outcome depends on which of the two is set. The default counts as a value.
func TestEveryChoiceMatters(t *testing.T) {
	defaults := map[string]string{"Rule.per": "client", "Rule.action": "reject", "Rule.missing": "client", "Document.on_error": "allow",
		"Document.enforce": "all", "IdentifyJWT.on_invalid": "next", "IdentifyAPIKey.on_invalid": "next"}
	told := map[string]bool{}
	stories, set, all := Load(t), newCoreFront(t).set, choices(t)
	for i := range stories {
		w := newTelling(t, &stories[i], set)
		for _, p := range places(w.document, reflect.TypeFor[policyfile.Document]()) {
			from, one := p.parent[p.key].(string)
			if values := all[p.word]; one && slices.Contains(values, from) {
				w.compare(p, from, values, told)
			}
		}
		for _, p := range ownerPlaces(w.document) { // the places that the policy omits
			if _, said := p.parent[p.key]; !said {
				w.compare(p, defaults[p.word], all[p.word], told)
				delete(p.parent, p.key)
			}
		}
	}
	for word, values := range all {
		for _, from := range values {
			for _, to := range values {
				if from != to && !told[fmt.Sprint(word, from, to)] {
					t.Errorf("%s: no story tells %s from %s", word, from, to)
				}
			}
		}
	}
}

// changedRun.compare runs the story once for each of the other values, which it puts at the place.
// It records in the map told which pairs of values lead to different outcomes.
func (w *changedRun) compare(p place, from string, values []string, told map[string]bool) {
	for _, to := range values {
		pair := fmt.Sprint(p.word, from, to)
		if to == from || told[pair] {
			continue
		}
		p.parent[p.key] = to
		told[pair] = w.hasEffect()
		p.parent[p.key] = from
	}
}

// ownerPlaces returns the places of those fields with fixed values that exist in every policy or
// rule.
func ownerPlaces(document map[string]any) (all []place) {
	all = append(all, place{"Document.on_error", document, "on_error"}, place{"Document.enforce", document, "enforce"})
	rules, _ := document["rules"].([]any)
	for _, rule := range rules {
		rule := rule.(map[string]any)
		all = append(all, place{"Rule.missing", rule, "missing"}, place{"Rule.action", rule, "action"},
			place{"Rule.per", rule, "per"})
	}
	return all
}

// algorithms are the algorithm names in a limit, the default first.
var algorithms = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket"}

// TestEveryAlgorithmMatters tests that for each two algorithms, there is a story in which they
// decide differently.
func TestEveryAlgorithmMatters(t *testing.T) {
	told := map[string]bool{}
	stories, set := Load(t), newCoreFront(t).set
	for i := range stories {
		w := newTelling(t, &stories[i], set)
		for _, p := range places(w.document, reflect.TypeFor[policyfile.Document]()) {
			limit, one := p.parent[p.key].(string)
			if p.word != "Rule.limit" || !one || strings.Contains(limit, "burst") {
				continue
			}
			amount, from, said := strings.Cut(limit, " ")
			if !said {
				from = algorithms[0]
			}
			for _, to := range algorithms {
				if pair := from + " " + to; from != to && !told[pair] {
					p.parent[p.key] = amount + " " + to
					told[pair] = w.hasEffect()
				}
			}
			p.parent[p.key] = limit
		}
	}
	for _, from := range algorithms {
		for _, to := range algorithms {
			if from != to && !told[from+" "+to] {
				t.Errorf("no story tells %s from %s", from, to)
			}
		}
	}
}

// TestEveryAlgorithmAndDimensionIsUsed tests that the corpus uses each algorithm and each dimension
// under each of its names.
func TestEveryAlgorithmAndDimensionIsUsed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	var policies strings.Builder
	for _, s := range Load(t) {
		policies.WriteString(s.Policy)
	}
	for _, name := range firstCells(t, string(text), "algorithm (alias)") {
		if !regexp.MustCompile(`limit: \S+ ` + name + `\b`).MatchString(policies.String()) {
			t.Errorf("no limit is a %s", name)
		}
	}
	for _, name := range firstCells(t, string(text), "per") {
		name = strings.TrimSuffix(name, "NAME")
		if !regexp.MustCompile(`per: \[?[^\]]*` + name).MatchString(policies.String()) {
			t.Errorf("nothing is per %s", name)
		}
	}
}

// requestsMin is the minimum number of requests in the corpus.
const requestsMin = 150

// TestCorpusIsLarge tests that the corpus has enough requests, and that at least a third of them
// belong to sequences.
func TestCorpusIsLarge(t *testing.T) {
	stories := Load(t)
	asked, inSequence := Requests(stories), 0
	ids := map[string]bool{}
	for i := range stories {
		if ids[stories[i].ID] {
			t.Errorf("two stories are %s", stories[i].ID)
		}
		ids[stories[i].ID] = true
		if n := Requests(stories[i : i+1]); sequence(&stories[i]) {
			inSequence += n
		}
	}
	if asked < requestsMin || inSequence*3 < asked {
		t.Errorf("%d requests, %d of them in sequences: want at least %d, and a third", asked, inSequence, requestsMin)
	}
	t.Logf("%d requests in %d stories, %d requests in sequences", asked, len(stories), inSequence)
}

// sequence reports whether later answers of the story depend on earlier requests. This is the case
// if an answer expects a settlement, or if the story has several clients and the remaining units of
// a limit decrease.
func sequence(s *Story) bool {
	settled, consumed, clients, left := false, false, map[string]bool{}, map[string]int64{}
	for i := range s.Exchanges {
		e := &s.Exchanges[i]
		settled = settled || e.Want.Settled != nil
		clients[fmt.Sprint(e.Request.Header)] = true
		if shown := e.Want.Shown; shown != nil {
			before, again := left[shown.Name]
			consumed = consumed || again && shown.Remaining < before
			left[shown.Name] = shown.Remaining
		}
	}
	return consumed && len(clients) > 1 || settled
}
