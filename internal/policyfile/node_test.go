// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// TestFromNode: a format without types, such as the Caddyfile, builds a tree of strings, and
// problems name the places in that tree.
func TestFromNode(t *testing.T) {
	tree := func(limit, expose string) *syntax.Node {
		rule := syntax.Map("Caddyfile:3").
			Set("name", "Caddyfile:3", syntax.Text("Caddyfile:3", "api")).
			Set("limit", "Caddyfile:4", syntax.Texts("Caddyfile:4", limit)).
			Set("per", "Caddyfile:5", syntax.List("Caddyfile:5")).
			Set("expose", "Caddyfile:6", syntax.Text("Caddyfile:6", expose)).
			Set("cost", "Caddyfile:7", syntax.List("Caddyfile:7", syntax.Map("Caddyfile:7").Set("n", "Caddyfile:7", syntax.Text("Caddyfile:7", "2"))))
		return syntax.Map("Caddyfile:2").Set("rules", "Caddyfile:3", syntax.List("Caddyfile:3", rule))
	}
	d, err := FromNode(tree("10/1m", "true"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"rules":[{"name":"api","per":[],"limit":"10/1m","cost":2,"expose":true}]}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("the document is another (-want +got):\n%s", diff)
	}
	_, err = FromNode(tree("10/1m", "maybe"))
	wantError(t, err, `Caddyfile:6: rules[0].expose: "maybe": is neither true nor false`)

	d, err = FromNode(tree("1/1m", "true"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Compile()
	wantError(t, err, `Caddyfile:7: rules[0].cost[0].n: "2": can never pass limit[0], 1/1m`)
}

// TestUnmarshalIsStrict: JSON that is decoded by encoding/json is checked as strictly as a file,
// for every part of a policy, and all problems are reported.
func TestUnmarshalIsStrict(t *testing.T) {
	var config struct {
		Policy *Document `json:"policy"`
		Rules  []Rule    `json:"rules"`
	}
	decode := func(text string) error {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		return decoder.Decode(&config)
	}
	if err := decode(`{"policy": {"identify": ["ip"]}, "rules": [{"name": "a", "limit": "10/1m", "cost": 5}]}`); err != nil {
		t.Fatal(err)
	}
	if config.Policy.Identify[0].IP == nil || config.Rules[0].Cost[0].N != 5 {
		t.Errorf("decoded %+v", config)
	}
	wantError(t, decode(`{"policy": {"headrs": "none", "rules": [{"name": "a", "limit": 10}], "on_error": "lokal"}}`),
		`headrs: is an unknown field; did you mean "headers"?`,
		`rules[0].limit: "10": is a number where a string belongs; add the window: "10/1m"`,
		`on_error: "lokal": is not a known value; did you mean "local"?`)
	wantError(t, decode(`{"rules": [{"nam": "a", "limt": "10/1m"}]}`), "nam: is an unknown field", "limt: is an unknown field")
}

func wantError(t *testing.T, err error, lines ...string) {
	t.Helper()
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) != len(lines) {
		t.Errorf("error\n%v\nwant %d problems", err, len(lines))
		return
	}
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i].Rule = "" // this keeps the expected lines short
	}
	err = problems
	for _, line := range lines {
		if !strings.Contains(err.Error(), line) {
			t.Errorf("error\n%v\nlacks %s", err, line)
		}
	}
}

// TestCompileWithoutTree: Compile finds the problems of a document that was built in Go; they have
// a path but no place in a file.
func TestCompileWithoutTree(t *testing.T) {
	d := Document{OnError: "panic", Rules: []Rule{{Name: "a", Limit: Words{"10/1m", "x"}, Action: "refuse"}}}
	_, err := d.Compile()
	wantError(t, err, `on_error: "panic": is not a known value; write allow, deny or local`,
		`rules[0].limit[1]: "x": "x" has no window; write COUNT/WINDOW, for example 100/1m`,
		`rules[0].action: "refuse": is not a known value; write reject, throttle, log_only, allow or block`)
}
