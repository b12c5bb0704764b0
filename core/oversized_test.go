// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// ruled compiles a policy with these rules, of clients by a header.
func ruled(t testing.TB, rules ...Rule) *Ruleset {
	t.Helper()
	for i := range rules {
		rules[i].Name = fmt.Sprint("r", i)
		if rules[i].Action == ActionReject || rules[i].Action == ActionLogOnly {
			l, err := ParseLimit("100/1m")
			if err != nil {
				t.Fatal(err)
			}
			rules[i].Limits = []Limit{l}
		}
	}
	rs, err := Compile(Policy{Name: "shop", Rules: rules, Identify: []Identify{
		{Kind: IdentifyHeader, Name: "X-User", Unverified: true}, {Kind: IdentifyIP}}})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestOversizedRequests: what a policy would have to read and does not is refused, by enforced rules alone.
func TestOversizedRequests(t *testing.T) {
	long := strings.Repeat("a", fieldBytesMax+1)
	paths, headers := Match{Path: []string{"/api/*"}}, Match{Header: []HeaderMatch{{Name: "X-Kind", Values: []string{"a"}}}}
	request := func(path string, header ...string) *fakeAttributes {
		a := &fakeAttributes{path: path, method: "GET", host: "h", peer: netip.MustParseAddr("192.0.2.1"), headers: map[string]string{}}
		for i := 0; i < len(header); i += 2 {
			a.headers[header[i]] = header[i+1]
		}
		return a
	}
	host, method := request("/"), request("/")
	host.host, method.method = long, long
	perDevice := Rule{Per: []Dimension{{Kind: PerHeader, Name: "X-Device"}}, Unverified: true}
	shadowDevice := perDevice
	shadowDevice.Action = ActionLogOnly
	for name, c := range map[string]struct {
		rules   []Rule
		request *fakeAttributes
		status  int
		outcome Outcome
	}{
		"a path":                         {[]Rule{{Match: paths}}, request("/" + long), 414, OutcomeOversized},
		"a path of the longest":          {[]Rule{{Match: paths}}, request("/api/" + long[:PathBytesMax-5]), 0, OutcomeNone},
		"many segments":                  {[]Rule{{Match: paths}}, request(strings.Repeat("/a", pathPiecesMax+1)), 414, OutcomeOversized},
		"a path that a cost compares":    {[]Rule{{Cost: []Cost{{N: 2, Match: paths}, {N: 1}}}}, request("/" + long), 414, OutcomeOversized},
		"a path that an allow rule has":  {[]Rule{{Group: "g"}, {Match: paths, Action: ActionAllow, Group: "g"}}, request("/" + long), 414, OutcomeOversized},
		"a path that a block rule has":   {[]Rule{{Match: paths, Action: ActionBlock}}, request("/" + long), 414, OutcomeOversized},
		"a path that nothing compares":   {[]Rule{{}}, request("/" + long), 0, OutcomeNone},
		"a path for log_only":            {[]Rule{{Match: paths, Action: ActionLogOnly}}, request("/" + long), 0, OutcomeNone},
		"a header to compare":            {[]Rule{{Match: headers}}, request("/", "X-Kind", long), 431, OutcomeOversized},
		"a list to compare":              {[]Rule{{Match: headers}}, request("/", "X-Kind", strings.Repeat("b,", 1000)), 431, OutcomeOversized},
		"a list that ends in the value":  {[]Rule{{Match: headers}}, request("/", "X-Kind", strings.Repeat(",", 2000)+"a"), 431, OutcomeOversized},
		"a header for log_only":          {[]Rule{{Match: headers, Action: ActionLogOnly}}, request("/", "X-Kind", long), 0, OutcomeNone},
		"a header that nothing compares": {[]Rule{{}}, request("/", "X-Other", long), 0, OutcomeNone},
		"a client":                       {[]Rule{{}}, request("/", "X-User", long), 431, OutcomeOversized},
		"a client that no rule is for":   {[]Rule{{Match: paths}}, request("/", "X-User", long), 0, OutcomeNone},
		"a dimension":                    {[]Rule{perDevice}, request("/", "X-Device", long), 431, OutcomeOversized},
		"a dimension of log_only":        {[]Rule{shadowDevice}, request("/", "X-Device", long), 0, OutcomeAllowed},
		"a host":                         {[]Rule{{}}, host, 431, OutcomeOversized},
		"a method":                       {[]Rule{{}}, method, 431, OutcomeOversized},
	} {
		t.Run(name, func(t *testing.T) {
			rs := ruled(t, c.rules...)
			var p Plan
			p.Add(rs, c.request)
			checks := len(p.Checks())
			d := p.Decide()
			if d.Status != c.status || c.status != 0 && checks > 0 {
				t.Errorf("%+v, %d checks", d, checks)
			}
			if c.status != 0 && d.Outcome != c.outcome || c.outcome == OutcomeAllowed && d.Refused() {
				t.Errorf("the outcome is %s", d.Outcome)
			}
			if d.Status != 0 && !strings.Contains(string(p.AppendProblem(nil, &d)), fmt.Sprintf(`"status":%d`, c.status)) {
				t.Errorf("the body is %s", p.AppendProblem(nil, &d))
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

// TestManyElementsMeetManyValues: an element is looked up, and not compared with each value.
func TestManyElementsMeetManyValues(t *testing.T) {
	m := Match{Header: []HeaderMatch{{Name: "X-Kind"}}}
	for i := range 1000 {
		m.Header[0].Values = append(m.Header[0].Values, fmt.Sprintf("value-%d", i), fmt.Sprintf("prefix-%d-*", i))
	}
	m.Header[0].Values = m.Header[0].Values[:1000]
	c := compiledMatch(t, m)
	if c.headers[0].table == nil {
		t.Fatal("the values are compared one by one")
	}
	padding := strings.Repeat("x,", 900)
	for value, want := range map[string]bool{"value-499": true, "value-500": false, "value-4990": false, "prefix-3-x": true,
		"prefix-3": false, "": false, "prefix-499-": true, padding + "value-7": true, padding + "value": false} {
		if got := c.headers[0].matches(value); got != want {
			t.Errorf("%.20q … matches: %v", value, got)
		}
	}
}

// TestJoinedLinesAreBounded: what is left out stands left of all that is read, and what is left is too long all the same.
func TestJoinedLinesAreBounded(t *testing.T) {
	lines := make([]string, 100_000)
	for i := range lines {
		lines[i] = "192.0.2.1"
	}
	lines[len(lines)-1] = "203.0.113.9"
	for _, name := range []string{"X-Forwarded-For", "Cookie"} {
		joined := JoinLines(name, lines)
		if len(joined) <= carrierBytesMax || len(joined) > carrierBytesMax+20 || !strings.HasSuffix(joined, " 203.0.113.9") {
			t.Errorf("%s: %d bytes, … %s", name, len(joined), joined[len(joined)-30:])
		}
	}
	if got := JoinLines("X-A", []string{"", "b", ""}); got != ", b, " {
		t.Errorf("joined as %q", got)
	}
}
