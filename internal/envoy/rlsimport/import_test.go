// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// d returns a descriptor. The argument pairs alternates keys and values.
func d(pairs ...string) (list [][2]string) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, [2]string{pairs[i], pairs[i+1]})
	}
	return list
}

// TestEdge checks what the documentation of envoyproxy/ratelimit promises for such configurations.
func TestEdge(t *testing.T) {
	text, err := os.ReadFile("testdata/edge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		descriptors [][][2]string
		passes      int // how many in a row pass; -1 means all
	}{
		{"an address has the limit of all", [][][2]string{d("remote_address", "203.0.113.4")}, 10},
		{"the most specific entry counts", [][][2]string{d("remote_address", "203.0.113.5")}, 0},
		{"nested", [][][2]string{d("mail", "newsletter", "to", "1")}, 2},
		{"both descriptors count", [][][2]string{d("mail", "newsletter", "to", "1"), d("to", "1")}, 2},
		{"the one without nesting alone", [][][2]string{d("mail", "other", "to", "1"), d("to", "1")}, 3},
		{"as deep as the descriptor only", [][][2]string{d("to", "1", "more", "1")}, -1},
		{"the order of entries counts", [][][2]string{d("to", "1", "mail", "newsletter")}, -1},
		{"another domain's key", [][][2]string{d("nothing", "1")}, -1},
		{"a pattern", [][][2]string{d("path", "/api/a")}, 2},
		{"a value without a limit is let through", [][][2]string{d("path", "/api/login")}, -1},
		{"and does not give way to less specific ones", [][][2]string{d("path", "/api/login", "method", "GET")}, -1},
		{"below a pattern", [][][2]string{d("path", "/api/a", "method", "GET")}, 1},
		{"below the key", [][][2]string{d("path", "/b", "method", "GET")}, 5},
		{"shadow", [][][2]string{d("user", "ann")}, -1},
		{"unlimited", [][][2]string{d("internal", "x")}, -1},
		{"one limit", [][][2]string{d("plan", "free")}, 1},
		{"replaced by another", [][][2]string{d("plan", "free"), d("campaign", "spring")}, 3},
	} {
		s := importAll(t, string(text))
		for i := range 12 {
			response := s.ask("edge", 1, c.descriptors...)
			want := c.passes < 0 || i < c.passes
			if got := response.OverallCode == pb.RateLimitResponse_OK; got != want {
				t.Errorf("%s: request %d passes: %t, want %t: %v", c.name, i, got, want, response)
				break
			}
		}
		if len(s.notes) > 0 {
			t.Fatalf("%v", s.notes)
		}
		if s.ask("other", 1, c.descriptors...).OverallCode != pb.RateLimitResponse_OK {
			t.Errorf("%s: another domain is limited", c.name)
		}
	}
}

// TestCounters checks which descriptors share a counter, and the header fields of responses.
func TestCounters(t *testing.T) {
	text, err := os.ReadFile("testdata/edge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := importAll(t, string(text))
	left := func(want uint32, descriptor [][2]string) {
		t.Helper()
		if got := s.ask("edge", 1, descriptor).Statuses[0]; got.LimitRemaining != want || got.CurrentLimit == nil {
			t.Errorf("%v: %v, want %d left", descriptor, got, want)
		}
	}
	left(1, d("path", "/api/a")) // share_threshold
	left(0, d("path", "/api/b"))
	left(9, d("remote_address", "203.0.113.1"))
	left(9, d("remote_address", "203.0.113.2"))
	left(8, d("remote_address", "203.0.113.2"))
	left(4, d("path", "/b", "method", "GET"))
	left(4, d("path", "/c", "method", "GET"))
	left(4, d("path", "/b", "method", ""))
	if got := s.ask("edge", 1, d("internal", "x")).Statuses[0]; got.LimitRemaining != math.MaxUint32 {
		t.Errorf("%v", got)
	}
	left(0, d("plan", "free"))
	for range 3 { // a replaced limit is neither charged nor checked
		if s.ask("edge", 1, d("plan", "free"), d("campaign", "spring")).OverallCode != pb.RateLimitResponse_OK {
			t.Error("a limit that is replaced refuses")
		}
	}
	s.now += counter.Day - s.now%counter.Day - 1
	left(2, d("to", "5"))
	left(1, d("to", "5"))
	s.now++ // to midnight UTC
	left(2, d("to", "5"))
}

// TestOnlyEnvoyWritesLimitHeaders: with enable_x_ratelimit_headers, Envoy writes rate limit fields
// from the limits in the answer. The imported policy adds no other rate limit fields.
func TestOnlyEnvoyWritesLimitHeaders(t *testing.T) {
	s := importAll(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1}}]\n")
	for range 2 {
		got := s.ask("d", 1, d("k", "v"))
		if got.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 1 {
			t.Errorf("the answer does not say the limit, of which Envoy writes its fields: %v", got)
		}
		for _, h := range got.ResponseHeadersToAdd {
			if name := strings.ToLower(h.GetKey()); strings.Contains(name, "ratelimit") {
				t.Errorf("%s beside what Envoy writes", name)
			}
		}
	}
}

// TestFiles imports domains from several files. One domain has two parts.
func TestFiles(t *testing.T) {
	one := func(domain, key, value string, count string) string {
		return "domain: " + domain + "\ndescriptors: [{key: " + key + ", value: " + value +
			", rate_limit: {unit: minute, requests_per_unit: " + count + "}}]"
	}
	s := importAll(t, one("a", "k", `"1"`, "1"), one("b", "k", `""`, "2"), one("a", "k", `""`, "3"))
	for _, c := range []struct {
		domain, value string
		want          uint32
	}{{"a", "1", 1}, {"a", "2", 3}, {"b", "1", 2}, {"b", "2", 2}} {
		got := s.ask(c.domain, 1, d("k", c.value)).Statuses[0]
		if got.CurrentLimit.GetRequestsPerUnit() != c.want || got.LimitRemaining != c.want-1 {
			t.Errorf("%s %s: %v", c.domain, c.value, got)
		}
	}
	if got := s.ask("c", 1, d("k", "1")).Statuses[0]; got.CurrentLimit != nil {
		t.Errorf("%v", got)
	}
}

// TestNotes: each note has a location and a remedy.
func TestNotes(t *testing.T) {
	s := importAll(t, `domain: d
descriptors:
  - key: a
    detailed_metric: true
    value_to_metric: true
    metadata: {x: {y: [1]}}
    rate_limit:
      unit: year
      requests_per_unit: 1
      replaces: [{name: nobody}]
  - key: b
    detailed_metric: no
    rate_limit: {unit: minute, requests_per_unit: 1}
`)
	want := []string{
		"0.yaml:4: descriptors[0].detailed_metric: is left out: metrics are by rule",
		"0.yaml:5: descriptors[0].value_to_metric: is left out",
		"0.yaml:6: descriptors[0].metadata: is left out: answers carry no dynamic metadata; let another filter",
		`rate_limit.unit: "year": is a calendar year here`,
		`rate_limit.replaces: "nobody": names no limit`,
	}
	got := s.notes.Error()
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	if len(s.notes) != len(want) {
		t.Errorf("%d notes, want %d:\n%s", len(s.notes), len(want), got)
	}
	if !strings.HasSuffix(s.text, "\ntimezone: UTC\n") {
		t.Errorf("the policy does not say whose year it is:\n%s", s.text)
	}
}

// TestErrors: configurations that the service rejects are rejected here too, and so are those that
// a policy cannot express.
func TestErrors(t *testing.T) {
	limited := func(rest string) string { return "domain: d\ndescriptors:\n  - {key: a, " + rest + "}\n" }
	for text, want := range map[string]string{
		"":                                     "is empty",
		"- a":                                  "is not a configuration",
		"descriptors: []":                      "domain: is missing",
		"domain: d\ncolour: red":               `f:2: configuration: "colour": is an unknown field`,
		"domain: [d]":                          "domain: is a list where a single value belongs",
		"domain: d\ndescriptors: x":            `descriptors: "x": is a string where a list belongs`,
		"domain: d\ndescriptors: [x]":          "descriptors[0]: \"x\": is a string where a mapping",
		"domain: d\ndescriptors: [{value: x}]": "descriptors[0].key: is missing",
		"domain: d\ndescriptors: [{key: a}, {key: a, value: \"\"}]":                                                       `descriptors: "a": is listed twice`,
		"domain: d\ndescriptors: [{key: envoy.domain}]":                                                                   "is reserved by the service",
		limited("share_threshold: true"):                                                                                  "needs a value with a star",
		limited("shadow_mode: maybe"):                                                                                     `shadow_mode: "maybe": is neither true nor false`,
		limited("rate_limit: {requests_per_unit: 1}"):                                                                     "rate_limit.unit: is not a unit",
		limited("rate_limit: {unit: fortnight, requests_per_unit: 1}"):                                                    `unit: "fortnight": is not a unit`,
		limited("rate_limit: {unit: day, unlimited: true}"):                                                               "conflicts with unlimited",
		limited("rate_limit: {unit: day, requests_per_unit: -1}"):                                                         `"-1": is not an integer from 0`,
		limited("rate_limit: {unit: day, requests_per_unit: 4294967296}"):                                                 "is not an integer from 0",
		limited("rate_limit: {unit: day, requests_per_unit: 010}"):                                                        `requests_per_unit: "010": begins with 0`,
		limited("rate_limit: {unit: day, name: n, replaces: [{name: n}]}"):                                                "is the limit itself",
		limited("rate_limit: {unit: day, replaces: [{}]}"):                                                                "name the limit that is replaced",
		limited("rate_limit: {unit: day, requests_per_unit: 1e3}"):                                                        `"1e3": is not an integer from 0`,
		limited("rate_limit: {unit: day, requests_per_unit: 0_10}"):                                                       `"0_10": begins with 0`,
		limited("quota_mode: true, rate_limit: {unit: day}"):                                                              "f:3: descriptors[0].quota_mode: \"true\": needs a count above 0",
		limited(`value: "a*b*c*d*e*f*g*h*i*j", rate_limit: {unit: day, requests_per_unit: 1}`):                            `f:3: rules[0] "a_a-b-c-d-e-f-g-h-i-j".match.attr.a`,
		"domain: d\ndescriptors:\n  - {key: b}\n  - key: \"a*\"\n    rate_limit: {unit: day}":                             `f:4: descriptors[1].key: "a*": is a pattern of keys, which policies do not have; write an entry for each key`,
		"domain: d\ndescriptors: [{key: a, key: b}]":                                                                      `f:2: descriptors[0]: "key": is listed twice, and the service takes the last; leave one of them out`,
		"domain: d\ndescriptors: []\n---\ndomain: e":                                                                      `f:4: yaml: is a second document`,
		"domain: d\ndescriptors: [*a]":                                                                                    `f:2: yaml: "*a": is an alias of no anchor before it`,
		"domain: d\ndescriptors: [{key: !mine a}]":                                                                        `f:2: yaml: "!mine": is a tag`,
		"domain: d\ndescriptors:\n- &a {key: a}\n- {key: b, <<: *a}":                                                      `f:4: yaml: "key": is before <<`,
		"domain: d\ndescriptors:\n- &a {key: a, rate_limit: {unit: day}}\n- {<<: *a, key: b,\n rate_limit: {unit: hour}}": `f:5: yaml: "rate_limit": is a block that << merges as well`,
		"domain: d\nunit: day\ndescriptors: []":                                                                           `f:2: configuration: "unit": is an unknown field`,
		limited(strings.Repeat("descriptors: [{key: a, ", 14) + "rate_limit: {unit: day, requests_per_unit: 1}" +
			strings.Repeat("}]", 14)): `f:3: rules[0] "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a".per: "15": are more than 8 dimensions`,
	} {
		_, _, err := Import("p", []File{{Name: "f", Data: []byte(text)}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n%v\nwant %q", text, err, want)
		}
		if problems := (policy.Problems)(nil); err != nil && !errors.As(err, &problems) {
			t.Errorf("%q: the error is a %T", text, err)
		}
	}
}

// TestAliases: nested aliases do not expand beyond the limit.
func TestAliases(t *testing.T) {
	text := "domain: d\ndescriptors:\n- &a0 {key: a}\n"
	for i := range 9 {
		text += fmt.Sprintf("- &a%d {key: k%d, descriptors: [%s]}\n", i+1, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	_, _, err := Import("p", []File{{Name: "f", Data: []byte(text)}}, nil)
	if err == nil || !strings.Contains(err.Error(), "is one alias too many: all together expand to more than 100000 values") {
		t.Errorf("%v", err)
	}
}

// TestText compares the policy's text, which must be readable.
func TestText(t *testing.T) {
	s := importAll(t, "domain: d\ndescriptors: [{key: \"x y\", value: \"true\", rate_limit: {unit: minute, requests_per_unit: 2}}]")
	want := `name: envoy
# Envoy writes X-RateLimit-* itself where its filter has enable_x_ratelimit_headers. To have the bridge
# write the rate limit headers, leave that setting out and remove this line.
headers: none
rules:
  # from 0.yaml:2
  - name: x-y_true
    match:
      attr:
        envoy.domain: d
        envoy.descriptor: "x y"
        "x y": "true"
    per: []
    limit: 2/1m fixed_window
    expose: true
`
	if diff := cmp.Diff(want, s.text); diff != "" {
		t.Error(diff)
	}
	d, err := policyfile.Decode("p", policyfile.YAML, []byte(strings.Replace(s.text, "# headers", "headers", 1)))
	if err != nil || len(d.Headers) != 1 || d.Headers[0] != "none" {
		t.Errorf("with the line uncommented: %v, %v", d, err)
	}
}

// TestNames: rules that would have equal names get different names.
func TestNames(t *testing.T) {
	text := "domain: d\ndescriptors:\n"
	for _, value := range []string{"a b", "a/b", "a-b", strings.Repeat("z", 80) + "1", strings.Repeat("z", 80) + "2"} {
		text += "  - {key: k, value: \"" + value + "\", rate_limit: {unit: minute, requests_per_unit: 1}}\n"
	}
	s := importAll(t, text)
	for _, name := range []string{"k_a-b\n", "k_a-b-2\n", "k_a-b-3\n", strings.Repeat("z", 20) + "-2\n"} {
		if !strings.Contains(s.text, name) {
			t.Errorf("no rule is called %q:\n%s", name, s.text)
		}
	}
}
