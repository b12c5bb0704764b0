// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// TestAdvise: each policy gets exactly the listed warnings about its identities. Each warning is
// listed by a text that it must contain.
func TestAdvise(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"rules: [{name: a, limit: 100/1m}]", nil},

		// These are identities that a client can invent.
		{"identify: [{header: {name: X-User, unverified: true}}, ip]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].header.name: "X-User": is a header that clients can set, so each can pose as any other`}},
		{"identify: [{cookie: {name: sid, unverified: true}}, ip]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].cookie.name: "sid": is a cookie that clients can set`}},
		{"identify: [{attr: http.request.uri.query.key}, ip]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].attr: "http.request.uri.query.key": only repeats client input: each client can pose as any other`}},
		{"identify: [{attr: http.auth.user.id}, {attr: http.request.tls.client.subject}]\nrules: [{name: a, limit: 1/1s}]", nil},
		{"tenant: {header: {name: X-T, unverified: true}}\ntier: {attr: http.request.uri.query.tier}\nrules: [{name: a, limit: 1/1s}]",
			[]string{`tenant[0].header.name: "X-T": is a header that clients can set, so each can pose as one of any tenant`,
				`tier[0].attr: "http.request.uri.query.tier": only repeats client input: each client can pose as one of any tier`}},
		{"user: [{attr: http.auth.user.id}, {attr: http.regexp.user.1}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`user[1].attr: "http.regexp.user.1": only repeats client input: each client can pose as one of any user`}},
		{"identify: [{attr: http.request.tls.server_name}, {attr: http.request.uuid}, {attr: http.request.remote.host}, {attr: http.request.duration}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].attr: "http.request.tls.server_name": only repeats`, `identify[1].attr: "http.request.uuid": changes with each request`,
				`identify[3].attr: "http.request.duration": changes with each request`}},
		{"identify: [{attr: connection.requested_server_name}, {attr: request.id}, {attr: 'metadata.filter_metadata.[a.b].sub'}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].attr: "connection.requested_server_name": only repeats`, `identify[1].attr: "request.id": changes with each request`}},
		{"rules: [{name: a, per: ['attr:[request].useragent', 'attr:source.address'], limit: 1/1s}]",
			[]string{`rules[0].per[0]: "attr:[request].useragent": only repeats`, `rules[0].per[1]: "attr:source.address": changes with each request`}},
		{"rules: [{name: a, per: ['attr:http.request.remote', 'attr:http.regexp.id.1', 'attr:http.request.remote.host/24'], limit: 1/1s}]",
			[]string{`rules[0].per[0]: "attr:http.request.remote": changes with each request`, `rules[0].per[1]: "attr:http.regexp.id.1": only repeats`}},
		{"tenant: {host_label: 1}\nrules: [{name: a, per: tenant, limit: 1/1s}]",
			[]string{`tenant[0].host_label: "1": is part of the host that the client sends, so each client can pose as one of any tenant; list the valid hosts`}},
		{"tenant: {host_label: 1}\nrules: [{name: a, per: tenant, match: {host: '*.shop.example'}, limit: 1/1s}]", nil},
		{"tenant: {host_label: 1}\nrules: [{name: a, limit: 1/1s}, {name: b, match: {tenant: x}, limit: 1/1s}]", []string{"tenant[0].host_label"}},
		{"tenant: {host_label: 1}\nexempt: {tenant: x}\nrules: [{name: a, match: {host: h.example}, limit: 1/1s}]", []string{"tenant[0].host_label"}},
		{"tier: [{attr: t}, {host_label: 2}]\nrules: [{name: a, limit: 1/1s, tiers: {gold: 2/1s}}]", []string{`tier[1].host_label: "2"`}},
		{"tenant: {attr: http.vars.tenant}\nrules: [{name: a, limit: 1/1s}]", nil},
		{"rules: [{name: a, per: ['header:X-U', 'attr:http.request.host'], unverified: true, limit: 1/1s}]",
			[]string{`rules[0].per[0]: "header:X-U": is a header that clients can set, so each request can have a new counter`,
				`rules[0].per[1]: "attr:http.request.host": only repeats`}},
	} {
		wantAdvice(t, test.text, test.want)
	}
}

// TestAdviseOnTokens tests the warnings about secrets written in the policy, and about tokens
// without an issuer or audience.
func TestAdviseOnTokens(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		// Secrets.
		{"identify: [{jwt: {audience: a, secret: hunter2-hunter2-hunter2-hunter2}}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`identify[0].jwt.secret: is visible to everyone that can read the policy`}},
		{"identify: [{jwt: {audience: a, secret: '{env.TOKEN}'}}]\nrules: [{name: a, limit: 1/1s}]", nil},
		{"identify: [{jwt: {audience: a, issuer: i, jwks_url: 'http://127.0.0.1:80/keys'}}]\nrules: [{name: a, limit: 1/1s}]", nil},
		{"identify: [{jwt: {audience: a, issuer: i, jwks_url: 'https://bob@issuer.example/keys'}}]\nrules: [{name: a, limit: 1/1s}]", nil},
		{"identify: [{jwt: {audience: a, issuer: i, jwks_url: 'https://bob:hunter2@issuer.example/keys'}}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{"identify[0].jwt.jwks_url: holds a password"}},

		// These policies accept tokens that were issued for another service.
		{"identify: [ip, {jwt: {jwks_file: k.json}}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{"identify[1].jwt: has no issuer", "identify[1].jwt: has no audience"}},
		{"identify: [{jwt: {secret_file: s}}]\nrules: [{name: a, limit: 1/1s}]", []string{"identify[0].jwt: has no audience"}},
	} {
		wantAdvice(t, test.text, test.want)
	}
}

// TestAdviseOnCosts tests the warnings about costs that a client can prevent the proxy from
// reading, or the server from stating.
func TestAdviseOnCosts(t *testing.T) {
	for cost, want := range map[string][]string{
		"{json: u, estimate: 5}":                          {"rules[0].cost_after: has neither max nor unread"},
		"{json: u, estimate: 5, max: 9}":                  {"rules[0].cost_after: charges default, 5, for a response without its cost"},
		"{json: u, estimate: 5, default: 7, max: 9}":      {"charges default, 7, for a response without its cost, which a client may be able to ask for"},
		"{json: u, estimate: 5, default: 9, max: 9}":      nil,
		"{header: X-C, estimate: 5, default: 7, max: 9}":  nil,
		"{header: X-C, estimate: 5, default: 7}":          {"rules[0].cost_after: has neither max nor unread"},
		"{json: u, estimate: 5, default: 7, unread: 500}": {"charges default, 7, for a response without its cost"},
		"{json: u, estimate: 5, default: 7, unread: 7}":   nil,
		"{header: X-C, estimate: 2, max: 199}":            nil,
		"{header: X-C, estimate: 2, max: 200}": {`rules[0].cost_after.estimate: "2": is charged before a request that may cost 200, ` +
			"so requests sent at once can use many times the limit"},
	} {
		wantAdvice(t, "rules: [{name: a, limit: 100/1m, cost_after: "+cost+"}]", want)
	}
}

// TestAdviseOnStatuses tests the warning about a status that a client can avoid.
func TestAdviseOnStatuses(t *testing.T) {
	for statuses, want := range map[string][]string{
		"200":        {`rules[0].count_if.status: "200": does not include 206, so a request with a Range is not counted; write 2xx`},
		"[200, 404]": {`rules[0].count_if.status: "200": does not include 206`},
		"[200, 206]": nil,
		"2xx":        nil,
		"401":        nil,
	} {
		wantAdvice(t, "rules: [{name: a, limit: 100/1m, count_if: {status: "+statuses+"}}]", want)
	}
}

// TestAdviseOnWords tests the warnings about exemptions, windows and tiers that are probably
// mistakes.
func TestAdviseOnWords(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		// These exemptions cover the address of a proxy in front.
		{"exempt: [{ip: [192.0.2.1, 10.1.0.0/16]}, {ip: '::1'}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{`exempt[0].ip[1]: "10.1.0.0/16": may be the address of a proxy in front`, `exempt[1].ip[0]: "::1"`}},
		{"exempt: {ip: 0.0.0.0/0}\nrules: [{name: a, limit: 1/1s}]", []string{"exempt[0].ip[0]"}},
		{"exempt: {ip: 10.0.0.0/8}\ntrusted_hops: 1\nrules: [{name: a, limit: 1/1s}]", nil},
		{"exempt: {ip: 10.0.0.0/8}\ntrusted_proxies: 10.9.0.0/16\nrules: [{name: a, limit: 1/1s}]", nil},
		{"exempt: {ip: 192.0.2.0/24}\nrules: [{name: a, limit: 1/1s}]", nil},
		{"block: {ip: 10.0.0.0/8}\nrules: [{name: a, limit: 1/1s}]", nil},
		{"rules: [{name: a, group: g, limit: 1/1s}, {name: b, group: g, priority: -1, match: {ip: 127.0.0.1}, action: allow}]",
			[]string{`rules[1].match.ip[0]: "127.0.0.1"`}},

		// The client can set this cost itself.
		{"rules: [{name: a, limit: 9/1s, cost: {header: X-C, trusted: [10.0.0.0/8, '::/0'], n: 1}}]",
			[]string{`rules[0].cost[0].trusted[1]: "::/0": includes every client`}},

		// Windows.
		{"rules: [{name: a, limit: [5/500ms, 50/1500ms]}]", []string{
			`rules[0].limit[0]: "5/500ms": has a window that header fields cannot express: they count in seconds; write whole seconds, such as 10/1s`,
			`rules[0].limit[1]: "50/1500ms"`}},
		{"rules: [{name: a, per: [], limit: 5/500ms}, {name: b, action: log_only, limit: 5/500ms}]", nil},
		{"rules: [{name: a, per: [], expose: true, limit: 5/500ms}]", []string{"rules[0].limit[0]"}},
		{"rules: [{name: a, limit: [5/1s], tiers: {gold: 9/900ms, free: unlimited}}]", []string{
			`rules[0].tiers.gold[0]: "9/900ms": has a window that header fields cannot express`,
			`rules[0].tiers.gold: has another window or algorithm than limit`}},
		{"rules: [{name: a, limit: 5000/1m sl}]", []string{`rules[0].limit[0]: "5000/1m sl": keeps up to 5000 entries`}},
		{"rules: [{name: a, limit: 4999/1m sl}]", nil},
		{"rules: [{name: a, limit: [5/day, 90/month]}]", []string{`rules[0].limit[0]: "5/day": begins by the UTC calendar`}},
		{"timezone: UTC\nrules: [{name: a, limit: 5/day}]", nil},

		// These leases have no effect.
		{"rules: [{name: a, lease: auto, limit: 9/1m burst 5, refund_on: {status: 5xx}}]",
			[]string{`rules[0].limit[0]: "9/1m burst 5": cannot be leased: leases of a token bucket would return too little`}},
		{"lease: auto\nrules: [{name: a, limit: 9/1m tb, count_if: {status: 401}}]",
			[]string{`lease: "auto": has no effect: no rule has a limit that can be leased`}},
		{"rules: [{name: a, lease: auto, limit: 9/1m, refund_on: {status: 5xx}}]", nil},
		{"lease: auto\nrules: [{name: a, limit: [9/1m, 5/1s sl]}, {name: b, action: log_only, limit: 9/1s}]", nil},
		{"rules: [{name: a, lease: auto, limit: 9/1s, tiers: {gold: 5/1m sl}}, {name: b, lease: auto, action: log_only, limit: 5/1m sl}]",
			[]string{`rules[0].tiers.gold: has another window or algorithm`,
				`rules[0].tiers.gold[0]: "5/1m sl": cannot be leased: each unit of a sliding log`,
				`rules[1].lease: "auto": has no effect: only the store knows what a log_only rule would deny`}},
		{"rules: [{name: a, per: [], lease: auto, limit: 5/500ms}, {name: b, lease: off, limit: 5/1m sl}]",
			[]string{`rules[0].limit[0]: "5/500ms": cannot be leased: its window is below 1s`}},
		{"lease: auto\nrules: [{name: a, match: {path: /a}, limit: 5/1m sl}, {name: b, match: {path: /b}, lease: off, limit: 9/1s}, {name: c, match: {path: /c}, action: block}]",
			[]string{`lease: "auto": has no effect: no rule has a limit that can be leased`}},
		{"lease: auto\npenalty: {}\nrules: [{name: a, limit: 5/1m}]", nil},

		// Tiers.
		{"rules: [{name: a, limit: 5/1s, tiers: {gold: 50/1s tb}}]", []string{"rules[0].tiers.gold: has another window or algorithm"}},
		{"rules: [{name: a, limit: [5/1s, 50/1m], tiers: {gold: 60/60s, silver: [9/1s, 90/1m, 5000/1d]}}]", nil},
	} {
		wantAdvice(t, test.text, test.want)
	}
}

// TestAdviseComparesRules tests the warnings about rules that never win because of another rule.
func TestAdviseComparesRules(t *testing.T) {
	const a, never = "{name: a, group: g, limit: 1/1s", "can never win: a matches all its requests"
	for _, test := range []struct {
		text string
		want []string
	}{
		{a + "}, {name: b, group: g, limit: 2/1s}", []string{`rules[1].name: "b": ` + never}},
		{a + "}, {name: b, group: h, limit: 1/1s}", nil},
		{a + "}, {name: b, group: g, priority: -1, limit: 2/1s}", []string{
			`rules[0].name: "a": can never win: b matches all its requests, and takes precedence; give it a lower priority`}},
		// The rule b wins because it names a path.
		{a + "}, {name: b, group: g, limit: 2/1s, match: {path: /b}}", nil},
		{a + ", priority: -1}, {name: b, group: g, limit: 2/1s, match: {path: /b}}", []string{never}},
		{a + ", priority: -1, enabled: false}, {name: b, group: g, limit: 2/1s, match: {path: /b}}", nil},
		{a + ", match: {path: /A/*}}, {name: b, group: g, limit: 2/1s, match: {path: [/a, /a/b, /a/x*/c]}}", []string{never}},
		{a + ", match: {path: /a/*}}, {name: b, group: g, limit: 2/1s, match: {path: [/a/b, /c]}}", nil},
		{a + ", match: {path: /a/**}}, {name: b, group: g, limit: 2/1s, match: {path: [/a/b, /a, /a/*/c]}}", []string{never}},
		{a + ", match: {path: /a/*, case_sensitive: true}}, {name: b, group: g, limit: 2/1s, match: {path: /a/b}}", nil},
		{a + ", match: {path: /a*}}, {name: b, group: g, limit: 2/1s, match: {path: /**/a}}", nil},
		{a + ", match: {host: '*.x.example'}}, {name: b, group: g, limit: 2/1s, match: {host: A.x.example}}", []string{never}},
		{a + ", match: {host: '*.x.example'}}, {name: b, group: g, limit: 2/1s, match: {host: x.example}}", nil},
		{a + ", match: {method: [GET, POST]}}, {name: b, group: g, limit: 2/1s, match: {method: head}}", []string{never}},
		{a + ", match: {header: {X-A: [v*]}}}, {name: b, group: g, limit: 2/1s, match: {header: {x-a: [v1], X-B: []}}}", []string{never}},
		{a + ", match: {header: {X-A: [v*]}}}, {name: b, group: g, limit: 2/1s, match: {header: {x-a: []}}}", nil},
		{a + ", match: {ip: 10.0.0.0/8}}, {name: b, group: g, limit: 2/1s, match: {ip: 10.1.0.0/16}}", []string{never}},
		{a + ", match: {tier: [x, y]}}, {name: b, group: g, limit: 2/1s, match: {tier: x}}", []string{never}},
		{a + ", match: {tier: [x]}}, {name: b, group: g, limit: 2/1s, match: {tier: [x, y]}}", nil},
		{a + ", missing: skip}, {name: b, group: g, limit: 2/1s}", nil},
		{"{name: a, action: block, match: {path: /a/*}}, {name: b, limit: 2/1s, match: {path: /a/b}}", []string{
			`rules[1].name: "b": ` + never + ", and takes precedence; leave it out, or narrow what the other blocks"}},
		{"{name: a, action: block, match: {path: /a/*}}, {name: b, action: block, match: {path: /a/b}}", nil},
	} {
		wantAdvice(t, "rules: ["+test.text+"]", test.want)
	}
}

// TestAdviseComparesLimits: a limit that another limit makes unreachable gets a warning, and a
// limit that only looks unreachable gets none.
func TestAdviseComparesLimits(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"{name: a, limit: [1000/1m, 500/1h]}", []string{`rules[0].limit[0]: "1000/1m": is never reached: 500/1h of a allows less`}},
		{"{name: a, limit: [100/1m, 500/1h]}", nil},
		// A fixed window lets up to twice its count pass around its edge, so the other limit can
		// still be reached.
		{"{name: a, limit: [6000/1h, 5000/1d fw]}", nil},
		{"{name: a, limit: [6000/1h fw, 5000/1d fw]}", []string{`"6000/1h fw": is never reached`}},
		{"{name: a, limit: [60/40s fw, 50/1m fw]}", nil},
		{"{name: a, limit: [100/40s fw, 50/1m fw]}", []string{`"100/40s fw": is never reached`}},
		{"{name: a, limit: [100/1m sl, 50/1h]}", []string{`"100/1m sl": is never reached`}},
		{"{name: a, limit: [99/1m sl, 50/1h]}", nil},
		{"{name: a, limit: [99/1m, 50/1h sl]}", []string{`"99/1m": is never reached`}},
		{"{name: a, limit: [120/1m, 100/1m tb]}", nil},
		{"{name: a, limit: [200/1m, 100/1m tb]}", []string{`"200/1m": is never reached`}},
		{"{name: a, limit: [1999/1m tb, 1000/1h]}", nil},
		{"{name: a, limit: [9/week, 5/month]}", nil},
		{"{name: a, limit: [10/week, 5/month]}", []string{`"10/week": is never reached`}},
		{"{name: a, limit: [9/day, 5/month]}", []string{`"9/day": is never reached`}},
		{"{name: a, limit: [9/30m fw, 5/day]}", []string{`"9/30m fw": is never reached`}},
		// in some time zones a day begins at half past the hour
		{"{name: a, limit: [9/1h fw, 5/day]}", nil},
		{"{name: a, limit: [9/1d fw, 5/week]}", nil},
		{"{name: a, limit: [100/1m, 100/1m fw]}", nil},
		{"{name: a, limit: [10/1s burst 2000, 1000/1h]}", []string{`"10/1s burst 2000": is never reached`}},
		{"{name: a, limit: [10/1s burst 200, 1000/1h]}", nil},
		{"{name: a, limit: [5000/1m, 10/1s burst 2000]}", []string{`"5000/1m": is never reached: 10/1s burst 2000 of a`}},
		{"{name: a, limit: 500/1h, match: {path: /a/*}}, {name: b, limit: 1000/1m, match: {path: /a/b}}",
			[]string{`rules[1].limit[0]: "1000/1m": is never reached: 500/1h of a allows less`}},
		{"{name: a, limit: 500/1h, match: {path: /a/*}}, {name: b, limit: 1000/1m, match: {path: /b}}", nil},
		{"{name: a, limit: 500/1h, match: {path: /a/*}}, {name: b, cost: 3, limit: 1000/1m, match: {path: /a/b}}", nil},
		{"{name: a, limit: 500/1h, refund_on: {status: 5xx}}, {name: b, limit: 1000/1m}", nil},
		{"{name: a, limit: 500/1h, action: log_only}, {name: b, limit: 1000/1m}", nil},
		{"{name: a, limit: 500/1h, per: host}, {name: b, limit: 1000/1m}", nil},
		{"{name: a, limit: 500/1h, per: []}, {name: b, limit: 1000/1m}", []string{"500/1h of a"}},
		{"{name: a, limit: 500/1h, per: client}, {name: b, per: [host, client], limit: 1000/1m}", []string{"500/1h of a"}},
		{"{name: a, limit: 500/1h, tiers: {gold: 9999/1h}}, {name: b, limit: 1000/1m}", nil},
		{"{name: a, limit: 500/1h, tiers: {gold: unlimited}}, {name: b, limit: 1000/1m}", nil},
		{"{name: a, limit: 500/1h, tiers: {gold: 700/1h}}, {name: b, limit: 1000/1m}", []string{"rules[1].limit[0]"}},
		{"{name: a, limit: 500/1h}, {name: b, limit: 100/1h, tiers: {gold: 900/1h, free: unlimited}}",
			[]string{`rules[1].tiers.gold[0]: "900/1h": is never reached: 500/1h of a allows less`}},
	} {
		wantAdvice(t, "timezone: UTC\nrules: ["+test.text+"]", test.want)
	}
}

func wantAdvice(t *testing.T, text string, want []string) {
	t.Helper()
	advice := Advise(decoded(t, text))
	if len(advice) != len(want) {
		t.Errorf("%s\nwarnings %v, want %d", text, advice, len(want))
		return
	}
	var reports strings.Builder
	for _, warning := range advice {
		if warning.Place == "" || warning.Why == "" || warning.Remedy == "" {
			t.Errorf("%s\na warning lacks its place, reason or remedy: %+v", text, warning)
		}
		warning.Rule = "" // this keeps the wanted lines short
		fmt.Fprintln(&reports, warning)
	}
	for _, line := range want {
		if !strings.Contains(reports.String(), line) {
			t.Errorf("%s\nwarnings\n%slack %s", text, reports.String(), line)
		}
	}
}

// TestSecretsAreNotRepeated: no error message contains a secret, whatever is wrong with the secret.
func TestSecretsAreNotRepeated(t *testing.T) {
	for _, text := range []string{
		"identify: [{jwt: {secret: 8457362911}}]",
		"identify: [{jwt: {secret: [8457362911]}}]",
		"identify: [{jwt: {secret: '8457362911', jwks_file: f}}]",
		"identify: [{jwt: {secret: '8457362911'}}]",
		"identify: [{jwt: {secret: *8457362911}}]",
		"identify: [{jwt: {secret: !8457362911 x}}]",
		"identify: [{jwt: {secret: {? 8457362911 : 1}}}]",
	} {
		d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text))
		reports := fmt.Sprint(err)
		if err == nil {
			reports = fmt.Sprint(Advise(d), d.Check())
		}
		if strings.Contains(reports, "8457362911") || !strings.Contains(reports, "p.yaml:1") {
			t.Errorf("%s\nsays %s", text, reports)
		}
	}
}

// TestAdviseManyRules: ten thousand rules with different matches get no warning.
func TestAdviseManyRules(t *testing.T) {
	if advice := Advise(manyRules(t)); len(advice) != 0 {
		t.Errorf("%d warnings, the first %v, want none", len(advice), advice[0])
	}
}

func BenchmarkAdviseManyRules(b *testing.B) {
	d := manyRules(b)
	for b.Loop() {
		Advise(d)
	}
}

func manyRules(tb testing.TB) *policyfile.Document {
	tb.Helper()
	d, err := policyfile.Decode("big.yaml", policyfile.YAML, []byte(tenThousandRules()[0]))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}
