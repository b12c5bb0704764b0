// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
)

// fenced is an example in a document: what stands between ``` and ```.
type fenced struct{ document, kind, text string }

// examples are all that stand in the documents that show policies.
func examples(t *testing.T) (all []fenced) {
	t.Helper()
	for _, name := range []string{"README.md", "docs/policy.md", "docs/operations.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$").FindAllSubmatch(text, -1) {
			all = append(all, fenced{name, string(found[1]), string(found[2])})
		}
		if strings.Count("\n"+string(text), "\n```") != 2*len(slices.DeleteFunc(slices.Clone(all), func(f fenced) bool { return f.document != name })) {
			t.Errorf("%s has an example that does not end", name)
		}
	}
	return all
}

// Every example says what it is, and that is something that a test runs: policies here, mistakes in TestReferenceMistakes,
// keys files in TestReferenceKeysFile, Caddyfiles and the answer of penstock_status in TestReferenceCaddyfiles of package
// caddy. The others are what a terminal shows.
func TestEveryExampleIsRun(t *testing.T) {
	kinds := map[string]int{}
	for _, example := range examples(t) {
		kinds[example.kind]++
		switch example.kind {
		case "yaml":
			runExample(t, example)
		case "yaml wrong", "text", "toml", "caddyfile", "json":
			if example.document != "docs/policy.md" && example.kind != "caddyfile" {
				t.Errorf("%s has an example of %q, which is run in docs/policy.md only", example.document, example.kind)
			}
		case "console", "http":
			if example.document == "docs/policy.md" {
				t.Errorf("docs/policy.md has an example that nothing runs:\n%s", example.text)
			}
		default:
			t.Errorf("%s: an example of the kind %q, which no test runs:\n%s", example.document, example.kind, example.text)
		}
	}
	if kinds["yaml"] < 18 || kinds["caddyfile"] < 4 || kinds["toml"] < 1 || kinds["yaml wrong"] != 1 || kinds["text"] != 1 {
		t.Errorf("fewer examples than there were: %v", kinds)
	}
}

// What is said of the policy that is wrong is what the reference says.
func TestReferenceMistakes(t *testing.T) {
	var wrong, said string
	for _, example := range examples(t) {
		switch example.kind {
		case "yaml wrong":
			wrong = example.text
		case "text":
			said = example.text
		}
	}
	d, err := policy.Decode("policy.yaml", policy.YAML, []byte(wrong))
	if err == nil {
		err = d.Check()
	}
	if err == nil || err.Error()+"\n" != said {
		t.Errorf("the reference says\n%sand this is said:\n%v", said, err)
	}
}

// runExample lets a policy decide a request for each of its rules, which has what the rule's match names.
func runExample(t *testing.T, example fenced) {
	t.Helper()
	d, err := policy.Decode("example", policy.YAML, []byte(example.text))
	if err != nil {
		t.Errorf("%s: the example\n%s\n%v", example.document, example.text, err)
		return
	}
	verifiers := make([]core.Verifier, len(d.Identify))
	for i := range d.Identify {
		if d.Identify[i].JWT != nil || d.Identify[i].APIKey != nil {
			verifiers[i] = nobodys{}
		}
	}
	rules, err := d.CompileWith(verifiers)
	if err != nil {
		t.Errorf("%s: the example\n%s\n%v", example.document, example.text, err)
		return
	}
	const now = core.Micros(1_800_000_000_000_000)
	store, err := memstore.New(memstore.Options{Now: func() core.Micros { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range d.Rules {
		var plan core.Plan
		plan.Trace()
		plan.Add(rules, fitting(&d.Rules[i], now))
		if err := store.Take(t.Context(), plan.Checks(), plan.Results()); err != nil {
			t.Fatal(err)
		}
		decision := plan.Decide()
		said := plan.Explain()[0]
		if at := slices.IndexFunc(said.Rules, func(r core.RuleExplanation) bool { return r.Name == d.Rules[i].Name }); at < 0 {
			t.Errorf("%s: no request meets rule %q: %+v\n%s", example.document, d.Rules[i].Name, said, example.text)
		} else if blocks := d.Rules[i].Action == "block"; decision.Refused() != blocks {
			t.Errorf("%s: the first request under rule %q has status %d\n%s", example.document, d.Rules[i].Name, decision.Status, example.text)
		}
	}
}

// nobodys has no token and no key.
type nobodys struct{}

func (nobodys) Verify(string) (*core.Identity, core.CredentialState) {
	return nil, core.CredentialUnknown
}

// request has what the match of a rule names.
type request struct {
	method, path, host string
	header             map[string]string
	addr               netip.Addr
	now                core.Micros
}

func fitting(r *policy.Rule, now core.Micros) *request {
	out := &request{method: "GET", path: "/", host: "shop.example", addr: netip.MustParseAddr("203.0.113.9"), now: now}
	m := r.Match
	if m == nil {
		return out
	}
	first := func(words policy.Words, otherwise string) string {
		if len(words) == 0 {
			return otherwise
		}
		return strings.ReplaceAll(words[0], "*", "x")
	}
	out.method, out.path, out.host = first(m.Method, out.method), first(m.Path, out.path), first(m.Host, out.host)
	if len(m.IP) > 0 {
		address, _, _ := strings.Cut(m.IP[0], "/")
		out.addr = netip.MustParseAddr(address)
	}
	out.header = map[string]string{}
	for name, values := range m.Header {
		out.header[name] = cmp.Or(first(values, ""), "x")
	}
	return out
}

func (r *request) Path() string       { return r.path }
func (r *request) Method() string     { return r.method }
func (r *request) Host() string       { return r.host }
func (r *request) Query() string      { return "" }
func (r *request) Peer() netip.Addr   { return r.addr }
func (r *request) Remote() netip.Addr { return r.addr }
func (r *request) Now() core.Micros   { return r.now }

func (r *request) Header(name string) (string, bool) {
	value, ok := r.header[name]
	return value, ok
}

func (r *request) Attr(string) (string, bool) { return "", false }
