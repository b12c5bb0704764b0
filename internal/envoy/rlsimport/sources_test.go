// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/request"
)

func sourcesOf(t testing.TB, flags ...string) Sources {
	t.Helper()
	s, err := ParseSources(flags)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// proxy decides requests by an imported policy, as a front does.
type proxy struct {
	testing.TB
	sources Sources
	rules   *core.Ruleset
	store   *memstore.Store
	now     counter.Micros
}

func proxyWith(t testing.TB, sources Sources, files ...File) *proxy {
	t.Helper()
	text, _, err := Import("edge", files, sources)
	if err != nil {
		t.Fatalf("%v\n%s", err, files)
	}
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, text)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{TB: t, sources: sources, now: 1_700_006_400 * counter.Second}
	p.now -= p.now % counter.Day
	if p.rules, err = d.Compile(); err != nil {
		t.Fatal(err)
	}
	if p.store, err = memstore.New(memstore.Options{Now: func() counter.Micros { return p.now }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.store.Close() })
	return p
}

// proxy.admits decides the request once.
func (p *proxy) admits(a *request.Attributes) bool {
	p.Helper()
	var plan core.Plan
	a.Time = p.now
	plan.Add(p.rules, a)
	if len(plan.Checks()) > 0 {
		if err := p.store.Take(p.Context(), plan.Checks(), plan.Results()); err != nil {
			p.Fatal(err)
		}
	}
	outcome := plan.Decide().Outcome
	return outcome != core.OutcomeDenied && outcome != core.OutcomeBlocked
}

// requestOf returns the request from which Envoy's actions would make these descriptors.
func (p *proxy) requestOf(r *pb.RateLimitRequest) *request.Attributes {
	a := &request.Attributes{PathText: "/", MethodText: "GET", HostText: "shop.example", Headers: map[string]string{},
		Attrs: map[string]string{}, PeerAddr: netip.MustParseAddr("192.0.2.1")}
	for _, d := range r.Descriptors {
		for _, e := range d.Entries {
			switch from := p.sources[e.Key]; from.kind {
			case "ip":
				a.PeerAddr = netip.MustParseAddr(e.Value)
			case "path":
				a.PathText = e.Value
			case "method":
				a.MethodText = e.Value
			case "host":
				a.HostText = e.Value
			case "header":
				a.Headers[from.name] = e.Value
			case "attr":
				a.Attrs[from.name] = e.Value
			}
		}
	}
	return a
}

// TestMappedDecidesAsTheRealService replays recorded answers of envoyproxy/ratelimit as requests to
// a proxy. Every decision must be the same.
func TestMappedDecidesAsTheRealService(t *testing.T) {
	for _, c := range []struct {
		configuration, recording, domain string
		sequences                        []string // the sequences in which every request has all its descriptors
		asked                            int
		entries                          []string
	}{
		{"readme/edge_proxy_per_ip.yaml", "readme.txt", "edge_proxy_per_ip", []string{"3"}, 16, []string{"remote_address=ip"}},
		{"readme/internal.yaml", "readme.txt", "internal", []string{"5"}, 107, []string{"ldap=header:X-Ldap", "azure=header:X-Azure"}},
		{"readme/example6.yaml", "readme.txt", "example6", []string{"6"}, 35, []string{"service=host", "user=header:X-User"}},
		{"readme/example10.yaml", "readme.txt", "example10", []string{"10"}, 64,
			[]string{"route=attr:request.scheme", "http_method=method", "subject_id=header:X-Subject"}},
		{"readme/example7.yaml", "readme.txt", "example7", []string{"7", "7: one replaces the other"}, 29,
			[]string{"key_1=header:X-Key-1", "key_2=header:X-Key-2", "user=header:X-User"}},
		{"readme/example8.yaml", "readme.txt", "example8", []string{"8"}, 34, []string{"key1=header:X-Key"}},
		{"readme/example9.yaml", "readme.txt", "example9", []string{"9"}, 25, []string{"key1=header:X-Key"}},
	} {
		r := readRecording(t, filepath.Join(testdata, c.recording))
		r.configurations = []string{c.configuration}
		asked := 0
		for _, s := range r.sequences {
			wanted := false
			for _, name := range c.sequences {
				wanted = wanted || s.name == name
			}
			if wanted {
				asked += proxyWith(t, sourcesOf(t, c.entries...), r.files(t)...).replay(s, c.domain)
			}
		}
		if asked != c.asked {
			t.Errorf("%s: %d requests, not %d", c.configuration, asked, c.asked)
		}
	}
}

// proxy.replay sends those requests of a sequence that are of the domain. It sends each
// request as many times as the request has hits.
func (p *proxy) replay(s *sequence, domain string) (asked int) {
	p.Helper()
	for _, step := range s.steps {
		switch {
		case step.wait == "second":
			p.now += counter.Second
		case step.wait == "minute":
			p.now += counter.Minute - p.now%counter.Minute
		case step.request.Domain == domain:
			for range max(1, step.request.HitsAddend) {
				asked++
				want := overallPart(step.there) == "OK"
				if got := p.admits(p.requestOf(step.request)); got != want {
					p.Errorf("%s: %s: admitted %t, by the service %t", step.where, step.text, got, want)
				}
			}
		}
	}
	return asked
}

const mappedEdge = `domain: edge
descriptors:
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 3}
- key: path
  value: /api/login
- key: path
  value: /api/*
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: generic_key
  value: keys
  descriptors:
  - key: api_key
    value: gold*
    rate_limit: {unlimited: true}
  - key: api_key
    rate_limit: {unit: minute, requests_per_unit: 1}
`

// TestMappedText compares the policy's text, which must be readable, and the notes.
func TestMappedText(t *testing.T) {
	sources := sourcesOf(t, "remote_address=ip", "path=path", "generic_key", "api_key=header:X-API-Key")
	text, notes, err := Import("edge", []File{{Name: "c.yaml", Data: []byte(mappedEdge)}}, sources)
	if err != nil {
		t.Fatal(err)
	}
	want := addresses + `rules:
  # from c.yaml:3
  - name: remote_address
    per: [ip]
    missing: share
    limit: 3/1s fixed_window
  # from c.yaml:5
  - name: path_-api-login.none
    match:
      path: "/api/login"
      case_sensitive: true
      trailing_slash: strict
    group: g1
    priority: 0
    action: allow
  # from c.yaml:7
  - name: path_-api--
    match:
      path: "/api/*"
      case_sensitive: true
      trailing_slash: strict
    group: g1
    priority: 1
    per: []
    limit: 2/1h fixed_window
    expose: true
  # from c.yaml:14
  - name: generic_key_keys.api_key_gold-
    match:
      header:
        X-API-Key: "gold*"
    group: g2
    priority: 0
    action: allow
  # from c.yaml:17
  - name: generic_key_keys.api_key
    match:
      header:
        X-API-Key: []
    group: g2
    priority: 1
    per: [header:X-API-Key]
    missing: share
    unverified: true
    limit: 1/1m fixed_window
`
	if diff := cmp.Diff("name: edge\n"+want, string(text)); diff != "" {
		t.Error(diff)
	}
	if len(notes) != 1 || notes[0].String() != `c.yaml:7: descriptors[2].value: "/api/*": matches /api too in a policy; no change is needed if it should` {
		t.Errorf("%v", notes)
	}
}

// TestMappedKeepsTheServicesOrder: without a priority, a rule that names a host would win over a
// rule that names none.
func TestMappedKeepsTheServicesOrder(t *testing.T) {
	const text = `domain: d
descriptors:
- {key: api_key, value: gold, descriptors: [{key: ":authority", rate_limit: {unlimited: true}}]}
- {key: api_key, descriptors: [{key: ":authority", value: shop.example, rate_limit: {unit: minute, requests_per_unit: 1}}]}
`
	p := proxyWith(t, sourcesOf(t, "api_key=header:X-Key", ":authority=host"), File{Name: "c.yaml", Data: []byte(text)})
	for _, key := range []string{"gold", "tin"} {
		a := &request.Attributes{PathText: "/", HostText: "shop.example", Headers: map[string]string{"X-Key": key}}
		if first, second := p.admits(a), p.admits(a); !first || second != (key == "gold") {
			t.Errorf("%s: %t, then %t", key, first, second)
		}
	}
	a := &request.Attributes{PathText: "/", HostText: "shop.example"}
	for range 2 {
		if !p.admits(a) {
			t.Error("a request without the header, which has no such descriptor, is denied")
		}
	}
}

// TestMappedPathsOverlap: in a policy, /api/* matches /api, so an entry that admits /api must come
// first.
func TestMappedPathsOverlap(t *testing.T) {
	const text = `domain: d
descriptors:
- {key: path, value: /api}
- {key: path, value: /api/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	p := proxyWith(t, sourcesOf(t, "path=path"), File{Name: "c.yaml", Data: []byte(text)})
	for _, c := range []struct {
		path string
		want bool
	}{{"/api", true}, {"/api", true}, {"/api/x", true}, {"/api/y", false}, {"/API/z", true}, {"/api", true}} {
		if got := p.admits(&request.Attributes{PathText: c.path}); got != c.want {
			t.Errorf("%s: admitted %t", c.path, got)
		}
	}
}

// TestMappedRejects checks that Import returns an error, with its place, for what a proxy cannot
// express.
func TestMappedRejects(t *testing.T) {
	limited := func(entry string) string {
		return "domain: d\ndescriptors:\n- {" + entry + ", rate_limit: {unit: day, requests_per_unit: 1}}\n"
	}
	for _, c := range []struct{ flags, text, want string }{
		{"k=ip", limited("key: user"), `f:3: descriptors[0].key: "user": has no source, and a proxy sees no descriptors; add --entry user=SOURCE`},
		{"k=ip zip=path", limited("key: k"), `--entry: "zip": is the key of no entry with a limit; leave it out`},
		{"k", limited("key: k"), `f:3: descriptors[0]: "k": stands for any value`},
		{"k", limited(`key: k, value: "a*"`), `f:3: descriptors[0]: "a*": stands for any value`},
		{"k=ip", limited(`key: k, value: "10.*"`), `"10.*": is not an address in its usual form`},
		{"k=ip", limited(`key: k, value: "2001:DB8::1"`), `is not an address in its usual form`},
		{"masked_remote_address=ip", limited("key: masked_remote_address"), `is a network, and ip is an address`},
		{"k=path", limited("key: k"), `f:3: descriptors[0]: "k": has a counter for each path`},
		{"k=path", limited(`key: k, value: "/a/*"`), `"/a/*": has a counter for each path`},
		{"k=path", limited(`key: k, share_threshold: true, value: "/a/*/b"`), `has a star before its end`},
		{"k=path", limited(`key: k, value: "/a?b=1"`), `f:3: rules[0] "k_-a-b-1".match.path[0]: "/a?b=1": holds a query`},
		{"k=method", limited(`key: k, value: get`), `"get": is not a method in capital letters`},
		{"k=method", limited(`key: k, value: HEAD`), `"HEAD": counts as GET`},
		{"k=host", limited(`key: k, value: "a*.example"`), `is a pattern that policies do not have for hosts`},
		{"k=host", limited(`key: k, value: A.example`), `"A.example": is not a host in its usual form`},
		{"k=host", limited(`key: k, value: a.example.`), `"a.example.": is not a host in its usual form`},
		{"k=header:K", limited(`key: k, value: "a*b"`), `has a star before its end, which policies do not have for headers`},
		{"a=header:X b=header:x", "domain: d\ndescriptors:\n- {key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}",
			`f:3: descriptors[0].descriptors[0]: "a.b": has two entries from header:x, which has one value`},
		{"k=ip", limited("key: k, quota_mode: true"), `has quota_mode, which compares the descriptors of one request`},
		{"k=ip", "domain: d\ndescriptors:\n- {key: k, shadow_mode: true, rate_limit: {unit: day}}", `denies everything, and nothing in shadow_mode`},
		{"k=ip", "domain: d\ndescriptors:\n- {key: k, value: 192.0.2.1}\n- {key: k, rate_limit: {unit: day}}", `f:4: descriptors[1]: "k": denies what another entry may admit`},
		{"k=ip l=host", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, name: n}}\n" +
			"- {key: l, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: n}]}}", `f:3: descriptors[0]: "k": denies everything, and another limit replaces it`},
	} {
		_, _, err := Import("p", []File{{Name: "f", Data: []byte(c.text)}}, sourcesOf(t, strings.Fields(c.flags)...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %q:\n%v\nwant %q", c.flags, c.text, err, c.want)
		}
	}
	_, _, err := Import("p", []File{{Name: "f", Data: []byte(limited("key: k"))}, {Name: "g", Data: []byte("domain: e\n")}}, sourcesOf(t, "k=ip"))
	if err == nil || !strings.Contains(err.Error(), `g:1: domain: "e": is a second domain`) {
		t.Errorf("%v", err)
	}
}

// TestParseSources checks what --entry takes.
func TestParseSources(t *testing.T) {
	if s, err := ParseSources(nil); s != nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
	s, err := ParseSources([]string{"a", "b=ip", "c=d=header:X-Key", "e=attr:request.url_path"})
	want := Sources{"a": {constant, ""}, "b": {"ip", ""}, "c=d": {"header", "X-Key"}, "e": {"attr", "request.url_path"}}
	if diff := cmp.Diff(want, s, cmp.AllowUnexported(source{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, wrong := range [][]string{{""}, {"=ip"}, {"a=usr"}, {"a="}, {"a=header"}, {"a=header:"}, {"a=ip:x"}, {"a=constant"}, {"a", "a=ip"}} {
		if _, err := ParseSources(wrong); err == nil || !strings.Contains(err.Error(), "--entry ") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
