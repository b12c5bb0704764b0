// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
)

var formatsByExt = []string{"yaml", "toml", "json"}

// TestFormatsAgreeOnExamples: the example policies mean the same in all three formats.
func TestFormatsAgreeOnExamples(t *testing.T) {
	for name, rules := range map[string]int{"policy": 9, "tiers": 5} {
		policies := make([]policy.Policy, len(formatsByExt))
		for i, ext := range formatsByExt {
			path := filepath.Join("..", "..", "examples", name+"."+ext)
			d, err := Load(path)
			if err != nil {
				t.Fatalf("Load(%q):\n%v", path, err)
			}
			if policies[i], err = d.Policy(); err != nil {
				t.Fatalf("%s: Policy:\n%v", path, err)
			}
			if err := d.Check(); err != nil {
				t.Errorf("%s: Check:\n%v", path, err)
			}
		}
		if len(policies[0].Rules) != rules {
			t.Fatalf("the example %s has %d rules, want %d", name, len(policies[0].Rules), rules)
		}
		for i, ext := range formatsByExt[1:] {
			comparePolicies(t, "examples/"+name+"."+ext, policies[0], policies[i+1])
		}
	}
}

// TestFormatsAgree: each row of the table is one document in the three formats.
func TestFormatsAgree(t *testing.T) {
	for _, documents := range [][3]string{
		{"name: a", "name = 'a'", `{"name": "a"}`},
		{"name: shop\nenabled: false", "name = 'shop'\nenabled = false", `{"name": "shop", "enabled": false}`},
		{"identify: [ip]", "identify = ['ip']", `{"identify": ["ip"]}`},
		{"identify: ip", "identify = 'ip'", `{"identify": "ip"}`},
		{"identify: [{ip: {ipv4_prefix: 24}}]", "[[identify]]\nip.ipv4_prefix = 24", `{"identify": [{"ip": {"ipv4_prefix": 24}}]}`},
		{"identify: [{header: {name: x-user, unverified: true}}]", "[[identify]]\n[identify.header]\nname = \"x-user\"\nunverified = true",
			`{"identify": [{"header": {"name": "x-user", "unverified": true}}]}`},
		{"rules: [{name: a, per: [], limit: 1/1s}]", "[[rules]]\nname = \"a\"\nper = []\nlimit = \"1/1s\"",
			`{"rules": [{"name": "a", "per": [], "limit": "1/1s"}]}`},
		{"lease: auto\nrules: [{name: a, lease: off, limit: 1/1s}]", "lease = 'auto'\n[[rules]]\nname = \"a\"\nlease = \"off\"\nlimit = \"1/1s\"",
			`{"lease": "auto", "rules": [{"name": "a", "lease": "off", "limit": "1/1s"}]}`},
		{"rules: [{name: a, shards: 4, limit: 8/1s}]", "[[rules]]\nname = \"a\"\nshards = 4\nlimit = \"8/1s\"",
			`{"rules": [{"name": "a", "shards": 4, "limit": "8/1s"}]}`},
		{"rules:\n- name: a\n  cost: 1000\n  limit: 5000/1s", "[[rules]]\nname = \"a\"\ncost = 1_000\nlimit = \"5000/1s\"",
			`{"rules": [{"name": "a", "cost": 1000, "limit": ["5000/1s"]}]}`},
		{"rules:\n- {name: a, cost: {n: 2}, limit: 5/1s}", "rules = [{name = 'a', cost = {n = 2}, limit = '5/1s'}]",
			`{"rules": [{"name": "a", "cost": [{"n": 2}], "limit": "5/1s"}]}`},
		{"identify: [{api_key: {keys_file: k.toml, keys: directory}}]", "[[identify]]\napi_key = {keys_file = 'k.toml', keys = 'directory'}",
			`{"identify": [{"api_key": {"keys_file": "k.toml", "keys": "directory"}}]}`},
		{"exempt: {ip: 10.0.0.0/8}", "[exempt]\nip = \"10.0.0.0/8\"", `{"exempt": {"ip": ["10.0.0.0/8"]}}`},
		{"rules:\n- name: a\n  limit: 1/1s\n  match:\n    header:\n      x-a.b: [c*, d]\n    trailing_slash: strict\n    case_sensitive: true",
			"[[rules]]\nname='a'\nlimit='1/1s'\n[rules.match]\nheader.\"x-a.b\" = ['c*', 'd']\ntrailing_slash = 'strict'\ncase_sensitive = true",
			`{"rules":[{"name":"a","limit":"1/1s","match":{"header":{"x-a.b":["c*","d"]},"trailing_slash":"strict","case_sensitive":true}}]}`},
		{"\ufeffname: bom\r\nheaders: none\r\n", "\ufeffname = 'bom'\r\nheaders = 'none'\r\n", "\ufeff{\r\n\"name\": \"bom\", \"headers\": \"none\"}"},
		{"rules: [{name: a, per: [client, header:X-User, attr:a:b], unverified: true, limit: 1/1s, match: {ip: [2001:db8::/32, fe80::1]}}]",
			"[[rules]]\nname='a'\nper=['client', 'header:X-User', 'attr:a:b']\nunverified=true\nlimit='1/1s'\nmatch.ip=['2001:db8::/32', 'fe80::1']",
			`{"rules":[{"name":"a","per":["client","header:X-User","attr:a:b"],"unverified":true,"limit":"1/1s",` +
				`"match":{"ip":["2001:db8::/32","fe80::1"]}}]}`},
		{"name: on\nrules:\n- {name: no, limit: 1/1s}", "name = 'on'\n[[rules]]\nname = 'no'\nlimit = '1/1s'",
			`{"name": "on", "rules": [{"name": "no", "limit": "1/1s"}]}`},
		{"exempt: [{ip: 10.0.0.1}, {user: [a, b], until: 2026-12-01T00:00:00+01:00}]",
			"[[exempt]]\nip = '10.0.0.1'\n[[exempt]]\nuser = ['a', 'b']\nuntil = 2026-12-01 00:00:00+01:00",
			`{"exempt": [{"ip": "10.0.0.1"}, {"user": ["a", "b"], "until": "2026-12-01T00:00:00+01:00"}]}`},
		{"tier: {host_label: 2}", "tier.host_label = 2", `{"tier": [{"host_label": 2}]}`},
		{"penalty: {}", "[penalty]", `{"penalty": {}}`},
		{"penalty: {multipliers: 3}", "penalty.multipliers = [3]", `{"penalty": {"multipliers": [3]}}`},
		{"rules: [{name: a, limit: 1/1s, count_if: {status: 401}, refund_on: {status: [5XX, '404']}}]",
			"[[rules]]\nname = 'a'\nlimit = '1/1s'\ncount_if.status = '401'\nrefund_on.status = ['5xx', 404]",
			`{"rules": [{"name": "a", "limit": "1/1s", "count_if": {"status": [401]}, "refund_on": {"status": ["5xx", "404"]}}]}`},
		{"rules: [{name: a, limit: 1/1s, tiers: {Gold: 2/1s, gold: [3/1s, 4/1m], '*': unlimited}}]",
			"[[rules]]\nname = 'a'\nlimit = '1/1s'\n[rules.tiers]\nGold = '2/1s'\ngold = ['3/1s', '4/1m']\n'*' = ['unlimited']",
			`{"rules": [{"name": "a", "limit": "1/1s", "tiers": {"Gold": ["2/1s"], "gold": ["3/1s", "4/1m"], "*": "unlimited"}}]}`},
		{"rules: [{name: a, limit: 1/1s, cost: {header: x-cost, trusted: 10.0.0.0/8, max: 9, n: 2}}]",
			"[[rules]]\nname = 'a'\nlimit = '1/1s'\ncost = [{header = 'X-Cost', trusted = '10.0.0.0/8', max = 9, n = 2}]",
			`{"rules": [{"name": "a", "limit": "1/1s", "cost": {"header": "X-COST", "trusted": ["10.0.0.0/8"], "max": 9, "n": 2}}]}`},
	} {
		var first policy.Policy
		for format, text := range documents {
			d, err := Decode("policy."+formatsByExt[format], Format(format), []byte(text))
			if err != nil {
				t.Errorf("Decode %s:\n%s\n%v", formatsByExt[format], text, err)
				continue
			}
			p, err := d.Policy()
			if err != nil {
				t.Errorf("Policy of %q: %v", text, err)
			}
			if format == 0 {
				first = p
				continue
			}
			comparePolicies(t, text, first, p)
		}
	}
}

func comparePolicies(t *testing.T, what string, want, got policy.Policy) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Errorf("%s means something else than in YAML (-yaml +got):\n%s", what,
			cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })))
	}
}

// TestMarshalRoundTrip: MarshalJSON writes a document with the same meaning, and writes a list of
// one item as that item.
func TestMarshalRoundTrip(t *testing.T) {
	original, err := Load(filepath.Join("..", "..", "examples", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(original)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"match":{"path":"/api/*"},"limit":["100/1m","5000/1d"]`; !strings.Contains(string(data), want) {
		t.Errorf("Marshal wrote\n%s\nwithout %s", data, want)
	}
	if want := `{"name":"everyone","per":[],"limit":"10000/1s fixed_window"}`; !strings.Contains(string(data), want) {
		t.Errorf("Marshal wrote\n%s\nwithout %s", data, want)
	}
	var again Document
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatalf("Unmarshal of %s:\n%v", data, err)
	}
	sameDocument(t, original, &again)

	if original, err = Load(filepath.Join("..", "..", "examples", "tiers.toml")); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(original); err != nil {
		t.Fatal(err)
	}
	again = Document{}
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatalf("Unmarshal of %s:\n%v", data, err)
	}
	sameDocument(t, original, &again)
}

func sameDocument(t *testing.T, want, got *Document) {
	t.Helper()
	a, b := *want, *got
	a.tree, b.tree, a.folder, b.folder = nil, nil, "", ""
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the document changed (-want +got):\n%s", cmp.Diff(a, b, cmp.Exporter(func(reflect.Type) bool { return true })))
	}
}

// TestLoadRejectsWhatItCannotRead: errors name the file by the path that was given, and Load lists
// the extensions that it accepts.
func TestLoadRejectsWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		"policy.ini":  `the extension must be .yaml, .yml, .toml or .json`,
		"absent.yaml": "no such file or directory; create it, or name another",
	} {
		if _, err := Load(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want %q", name, err, want)
		}
	}
	path := filepath.Join(dir, "policy.yml")
	if err := os.WriteFile(path, []byte("name: a\nlimits: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	if err == nil || !strings.HasPrefix(err.Error(), "policy.yml:2: limits: is an unknown field") {
		t.Errorf("Load = %v, want a problem at policy.yml:2", err)
	}
}
