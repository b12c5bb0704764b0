// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
)

// A front that has no types, such as the Caddyfile, builds the tree of texts, and its places come back in problems.
func TestFromNode(t *testing.T) {
	tree := func(limit, expose string) *Node {
		rule := Map("Caddyfile:3").
			Set("name", "Caddyfile:3", Text("Caddyfile:3", "api")).
			Set("limit", "Caddyfile:4", Texts("Caddyfile:4", limit)).
			Set("per", "Caddyfile:5", List("Caddyfile:5")).
			Set("expose", "Caddyfile:6", Text("Caddyfile:6", expose)).
			Set("cost", "Caddyfile:7", List("Caddyfile:7", Map("Caddyfile:7").Set("n", "Caddyfile:7", Text("Caddyfile:7", "2"))))
		return Map("Caddyfile:2").Set("rules", "Caddyfile:3", List("Caddyfile:3", rule))
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

// JSON that goes through encoding/json is read as strictly as a file, whatever part of a policy it is, and all problems
// are told.
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
		`headrs: is not a word that can stand here; did you mean "headers"?`,
		`rules[0].limit: "10": is a number where a word belongs; add the window: "10/1m"`,
		`on_error: "lokal": is not known here; did you mean "local"?`)
	wantError(t, decode(`{"rules": [{"nam": "a", "limt": "10/1m"}]}`), "nam: is not a word", "limt: is not a word")
}

func wantError(t *testing.T, err error, lines ...string) {
	t.Helper()
	var problems core.Problems
	if !errors.As(err, &problems) || len(problems) != len(lines) {
		t.Errorf("error\n%v\nwant %d problems", err, len(lines))
		return
	}
	for _, line := range lines {
		if !strings.Contains(err.Error(), line) {
			t.Errorf("error\n%v\nlacks %s", err, line)
		}
	}
}

// Compile finds problems of a document made in Go; they have a path and no place.
func TestCompileWithoutTree(t *testing.T) {
	d := Document{OnError: "panic", Rules: []Rule{{Name: "a", Limit: Words{"10/1m", "x"}, Action: "refuse"}}}
	_, err := d.Compile()
	wantError(t, err, `on_error: "panic": is not known here; write allow, deny or local`,
		`rules[0].limit[1]: "x": "x" has no window; write COUNT/WINDOW, for example 100/1m`,
		`rules[0].action: "refuse": is not known here; write reject, throttle, log_only, allow or block`)
}
