// SPDX-License-Identifier: Apache-2.0

package policyfile_test

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
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// policyPage is the page whose examples are all run.
const policyPage = "docs/reference/policy.md"

// fencedBlock is an example in a document: a block between two lines of three backticks.
type fencedBlock struct{ document, kind, text string }

// examples returns the examples of the README and of every page of docs.
func examples(t *testing.T) (all []fencedBlock) {
	t.Helper()
	root := filepath.Join("..", "..")
	paths := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"*.md", filepath.Join("*", "*.md")} {
		found, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		for _, found := range regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$").FindAllSubmatch(text, -1) {
			all = append(all, fencedBlock{name, string(found[1]), string(found[2])})
		}
		if strings.Count("\n"+string(text), "\n```") != 2*len(slices.DeleteFunc(slices.Clone(all), func(f fencedBlock) bool { return f.document != name })) {
			t.Errorf("%s has an example that does not end", name)
		}
	}
	return all
}

// TestEveryExampleIsRun: every example has a kind that some test runs. This test runs policies.
// TestReferenceMistakes runs mistakes, and TestReferenceKeysFile runs keys files. In package caddy,
// TestReferenceCaddyfiles runs Caddyfiles and compares the output of penstock_status. Terminal
// sessions, configurations of Envoy ("yaml envoy") and plain text outside the policy reference are
// not run.
func TestEveryExampleIsRun(t *testing.T) {
	kinds := map[string]int{}
	for _, example := range examples(t) {
		kinds[example.kind]++
		switch example.kind {
		case "yaml":
			runExample(t, example)
		case "yaml wrong":
			if example.document != policyPage {
				t.Errorf("%s has an example of %q, which is run in %s only", example.document, example.kind, policyPage)
			}
		case "toml", "caddyfile", "json":
		case "text", "console", "http", "yaml envoy":
			if example.document == policyPage && example.kind != "text" {
				t.Errorf("%s has an example that no test runs:\n%s", policyPage, example.text)
			}
		default:
			t.Errorf("%s: an example of the kind %q, which no test runs:\n%s", example.document, example.kind, example.text)
		}
	}
	if kinds["yaml"] < 18 || kinds["caddyfile"] < 4 || kinds["toml"] < 1 || kinds["yaml wrong"] != 1 {
		t.Errorf("fewer examples than there were: %v", kinds)
	}
}

// TestReferenceMistakes: the problems reported for the example with mistakes are those shown in the
// reference.
func TestReferenceMistakes(t *testing.T) {
	var wrong, reports string
	for _, example := range examples(t) {
		switch example.kind {
		case "yaml wrong":
			wrong = example.text
		case "text":
			if example.document == policyPage {
				reports = example.text
			}
		}
	}
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(wrong))
	if err == nil {
		err = d.Check()
	}
	if err == nil || err.Error()+"\n" != reports {
		t.Errorf("the reference says\n%sand this is said:\n%v", reports, err)
	}
}

// runExample makes one request for each rule of a policy, built to match that rule, and decides it.
func runExample(t *testing.T, example fencedBlock) {
	t.Helper()
	d, err := policyfile.Decode("example", policyfile.YAML, []byte(example.text))
	if err != nil {
		t.Errorf("%s: the example\n%s\n%v", example.document, example.text, err)
		return
	}
	verifiers := make([]policy.Verifier, len(d.Identify))
	for i := range d.Identify {
		if d.Identify[i].JWT != nil || d.Identify[i].APIKey != nil {
			verifiers[i] = rejectAll{}
		}
	}
	rules, err := d.CompileWith(verifiers)
	if err != nil {
		t.Errorf("%s: the example\n%s\n%v", example.document, example.text, err)
		return
	}
	const now = counter.Micros(1_800_000_000_000_000)
	store, err := memstore.New(memstore.Options{Now: func() counter.Micros { return now }})
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
		reports := plan.Explain()[0]
		if at := slices.IndexFunc(reports.Rules, func(r core.RuleExplanation) bool { return r.Name == d.Rules[i].Name }); at < 0 {
			t.Errorf("%s: no request meets rule %q: %+v\n%s", example.document, d.Rules[i].Name, reports, example.text)
		} else if blocks := d.Rules[i].Action == "block"; decision.Denied() != blocks {
			t.Errorf("%s: the first request under rule %q has status %d\n%s", example.document, d.Rules[i].Name, decision.Status, example.text)
		}
	}
}

// rejectAll is a verifier that accepts no token and no key.
type rejectAll struct{}

func (rejectAll) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialUnknown
}

// request is a request built to match a rule.
type request struct {
	method, path, host string
	header             map[string]string
	addr               netip.Addr
	now                counter.Micros
}

func fitting(r *policyfile.Rule, now counter.Micros) *request {
	out := &request{method: "GET", path: "/", host: "shop.example", addr: netip.MustParseAddr("203.0.113.9"), now: now}
	m := r.Match
	if m == nil {
		return out
	}
	first := func(words policyfile.Words, otherwise string) string {
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

func (r *request) Path() string        { return r.path }
func (r *request) Method() string      { return r.method }
func (r *request) Host() string        { return r.host }
func (r *request) Query() string       { return "" }
func (r *request) Peer() netip.Addr    { return r.addr }
func (r *request) Remote() netip.Addr  { return r.addr }
func (r *request) Now() counter.Micros { return r.now }

func (r *request) Header(name string) (string, bool) {
	value, ok := r.header[name]
	return value, ok
}

func (r *request) Attr(string) (string, bool) { return "", false }
