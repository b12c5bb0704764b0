// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/request"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// compileRules compiles a policy that has these rules and identifies clients by a
// header.
func compileRules(t testing.TB, rules ...policy.Rule) *Ruleset {
	t.Helper()
	for i := range rules {
		rules[i].Name = fmt.Sprint("r", i)
		if rules[i].Action == policy.ActionReject || rules[i].Action == policy.ActionLogOnly {
			l, err := counter.ParseLimit("100/1m")
			if err != nil {
				t.Fatal(err)
			}
			rules[i].Limits = []counter.Limit{l}
		}
	}
	rs, err := Compile(policy.Policy{Name: "shop", Rules: rules, Identify: []policy.Identify{
		{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}, {Kind: policy.IdentifyIP}}})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestOversizedRequests: a request is denied if a field is too long to be compared, but only if
// an enforced rule compares it.
func TestOversizedRequests(t *testing.T) {
	long := strings.Repeat("a", match.FieldBytesMax+1)
	paths, headers := policy.Match{Path: []string{"/api/*"}}, policy.Match{Header: []policy.HeaderMatch{{Name: "X-Kind", Values: []string{"a"}}}}
	makeRequest := func(path string, header ...string) *request.Attributes {
		a := &request.Attributes{PathText: path, MethodText: "GET", HostText: "h", PeerAddr: netip.MustParseAddr("192.0.2.1"), Headers: map[string]string{}}
		for i := 0; i < len(header); i += 2 {
			a.Headers[header[i]] = header[i+1]
		}
		return a
	}
	host, method := makeRequest("/"), makeRequest("/")
	host.HostText, method.MethodText = long, long
	perDevice := policy.Rule{Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "X-Device"}}, Unverified: true}
	shadowDevice := perDevice
	shadowDevice.Action = policy.ActionLogOnly
	for name, c := range map[string]struct {
		rules   []policy.Rule
		request *request.Attributes
		status  int
		outcome Outcome
	}{
		"a path":                         {[]policy.Rule{{Match: paths}}, makeRequest("/" + long), 414, OutcomeOversized},
		"a path of the longest":          {[]policy.Rule{{Match: paths}}, makeRequest("/api/" + long[:policy.PathBytesMax-5]), 0, OutcomeNone},
		"many segments":                  {[]policy.Rule{{Match: paths}}, makeRequest(strings.Repeat("/a", match.PathPiecesMax+1)), 414, OutcomeOversized},
		"a path that a cost compares":    {[]policy.Rule{{Cost: []policy.Cost{{N: 2, Match: paths}, {N: 1}}}}, makeRequest("/" + long), 414, OutcomeOversized},
		"a path that an allow rule has":  {[]policy.Rule{{Group: "g"}, {Match: paths, Action: policy.ActionAllow, Group: "g"}}, makeRequest("/" + long), 414, OutcomeOversized},
		"a path that a block rule has":   {[]policy.Rule{{Match: paths, Action: policy.ActionBlock}}, makeRequest("/" + long), 414, OutcomeOversized},
		"a path that nothing compares":   {[]policy.Rule{{}}, makeRequest("/" + long), 0, OutcomeNone},
		"a path for log_only":            {[]policy.Rule{{Match: paths, Action: policy.ActionLogOnly}}, makeRequest("/" + long), 0, OutcomeNone},
		"a header to compare":            {[]policy.Rule{{Match: headers}}, makeRequest("/", "X-Kind", long), 431, OutcomeOversized},
		"a list to compare":              {[]policy.Rule{{Match: headers}}, makeRequest("/", "X-Kind", strings.Repeat("b,", 1000)), 431, OutcomeOversized},
		"a list that ends in the value":  {[]policy.Rule{{Match: headers}}, makeRequest("/", "X-Kind", strings.Repeat(",", 2000)+"a"), 431, OutcomeOversized},
		"a header for log_only":          {[]policy.Rule{{Match: headers, Action: policy.ActionLogOnly}}, makeRequest("/", "X-Kind", long), 0, OutcomeNone},
		"a header that nothing compares": {[]policy.Rule{{}}, makeRequest("/", "X-Other", long), 0, OutcomeNone},
		"a client":                       {[]policy.Rule{{}}, makeRequest("/", "X-User", long), 431, OutcomeOversized},
		"a client that no rule is for":   {[]policy.Rule{{Match: paths}}, makeRequest("/", "X-User", long), 0, OutcomeNone},
		"a dimension":                    {[]policy.Rule{perDevice}, makeRequest("/", "X-Device", long), 431, OutcomeOversized},
		"a dimension of log_only":        {[]policy.Rule{shadowDevice}, makeRequest("/", "X-Device", long), 0, OutcomeAllowed},
		"a host":                         {[]policy.Rule{{}}, host, 431, OutcomeOversized},
		"a method":                       {[]policy.Rule{{}}, method, 431, OutcomeOversized},
	} {
		t.Run(name, func(t *testing.T) {
			rs := compileRules(t, c.rules...)
			var p Plan
			p.Add(rs, c.request)
			checks := len(p.Checks())
			d := p.Decide()
			if d.Status != c.status || c.status != 0 && checks > 0 {
				t.Errorf("%+v, %d checks", d, checks)
			}
			if c.status != 0 && d.Outcome != c.outcome || c.outcome == OutcomeAllowed && d.Denied() {
				t.Errorf("the outcome is %s", d.Outcome)
			}
			if d.Status != 0 && !strings.Contains(string(ProblemOf(nil, &p, &d)), fmt.Sprintf(`"status":%d`, c.status)) {
				t.Errorf("the body is %s", ProblemOf(nil, &p, &d))
			}
			if n := testing.AllocsPerRun(10, func() {
				p.Reset()
				p.Add(rs, c.request)
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestOversizedAttributes: a request is denied if an attribute is too long to be compared with a
// value that has stars, even if no other rule applies.
func TestOversizedAttributes(t *testing.T) {
	a := &request.Attributes{PathText: "/", MethodText: "GET", PeerAddr: netip.MustParseAddr("192.0.2.1"),
		Attrs: map[string]string{"agent": "a bot " + strings.Repeat("a", match.FieldBytesMax)}}
	for _, c := range []struct {
		action policy.Action
		value  string
		status int
	}{{policy.ActionReject, "*bot*", 431}, {policy.ActionReject, "a bot*", 431}, {policy.ActionBlock, "*bot*", 431},
		{policy.ActionLogOnly, "*bot*", 0}, {policy.ActionReject, "bot", 0}} {
		rs := compileRules(t, policy.Rule{Action: c.action, Match: policy.Match{Attr: []policy.AttrMatch{{Name: "agent", Values: []string{"x", c.value}}}}})
		var p Plan
		p.Add(rs, a)
		if d := p.Decide(); d.Status != c.status || len(p.Checks()) > 0 {
			t.Errorf("%v for %q: status %d, want %d", c.action, c.value, d.Status, c.status)
		}
	}
}

// TestJoinedLinesAreBounded: if there are too many lines, the leftmost are dropped, and the rest is
// still too long to be read.
func TestJoinedLinesAreBounded(t *testing.T) {
	lines := make([]string, 100_000)
	for i := range lines {
		lines[i] = "192.0.2.1"
	}
	lines[len(lines)-1] = "203.0.113.9"
	for _, name := range []string{"X-Forwarded-For", "Cookie"} {
		joined := policy.JoinLines(name, lines)
		if len(joined) <= policy.CarrierBytesMax || len(joined) > policy.CarrierBytesMax+20 || !strings.HasSuffix(joined, " 203.0.113.9") {
			t.Errorf("%s: %d bytes, … %s", name, len(joined), joined[len(joined)-30:])
		}
	}
	if got := policy.JoinLines("X-A", []string{"", "b", ""}); got != ", b, " {
		t.Errorf("joined as %q", got)
	}
}
