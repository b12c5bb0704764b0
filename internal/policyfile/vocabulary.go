// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"reflect"
	"strings"
	"sync"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

const (
	identifyRemedy = `write ip, or {header: {name: X-User, unverified: true}}, or {attr: NAME}, or {jwt: {jwks_file: FILE}}, ` +
		`or {api_key: {keys_file: FILE}}`
	sourceRemedy = `write {attr: NAME}, or {host_label: 1}, or {header: {name: X-Tenant, unverified: true}}`
)

// instead maps fields of other rate limiters to their equivalents in a Penstock policy.
var instead = map[string]string{
	"algorithm": `write the algorithm after the limit: "100/1m token_bucket"`,
	"burst":     `write the burst after the limit: "10/1s burst 20"`,
	"window":    `write the window in the limit: "100/1m"`,
	"period":    `write the window in the limit: "100/1m"`,
	"rate":      `write "limit"`,
	"requests":  `write the count in the limit: "100/1m"`,
	"count":     `write the count in the limit: "100/1m"`,
	"key":       `write "per"`,
	"keys":      `write "per"`,
	"by":        `write "per"`,
	"fail_open": `write "on_error: allow" or "on_error: deny"`,
	"whitelist": `write "exempt"`,
	"allowlist": `write "exempt"`,
	"disabled":  `write "enabled: false"`,
	"weight":    `write "cost"`,
	"log_only":  `write "action: log_only"`,
	"dry_run":   `write "action: log_only"`,
	"blacklist": `write "block"`,
	"denylist":  `write "block"`,
	"shadow": "a candidate policy is a file of its own: name it where this file is named, in a Caddyfile " +
		`"shadow policy candidate.yaml"`,
	"on_invalid":      "it belongs in jwt or api_key",
	"no_expiry":       "a token without exp would never expire: let its issuer set one",
	"watch":           "leave it out: policy files are always watched",
	"admin":           "it belongs to the proxy, not to a policy: in Caddy see the admin endpoint",
	"status_endpoint": `it belongs to the proxy, not to a policy: in a Caddyfile "penstock_status"`,
	"region": "it belongs to the process that enforces the policy: in a Caddyfile a penstock block of the global options, " +
		"in the bridge --region, in the module's configuration beside policy",
	"overrides": "the limits of one client belong to its key in the keys file, or to the claim named by limits_claim " +
		"of jwt",
}

// homes lists the parts of a document in which a misplaced field is looked up.
var homes = []struct {
	in   reflect.Type
	name string
}{
	{reflect.TypeFor[Rule](), "a rule"},
	{reflect.TypeFor[Match](), "match"},
	{reflect.TypeFor[Document](), "the policy itself, beside rules"},
}

// innerHomes are searched if none of the homes has the field. If two of innerHomes have it, no home
// is suggested.
var innerHomes = []struct {
	in   reflect.Type
	name string
}{
	{reflect.TypeFor[Throttle](), "throttle"},
	{reflect.TypeFor[Response](), "response"},
	{reflect.TypeFor[Penalty](), "penalty"},
	{reflect.TypeFor[Events](), "events"},
	{reflect.TypeFor[CostAfter](), "cost_after"},
	{reflect.TypeFor[Cost](), "cost"},
	{reflect.TypeFor[Listed](), "an entry of exempt or block"},
	{reflect.TypeFor[Identify](), "identify"},
	{reflect.TypeFor[IdentifyJWT](), "jwt"},
	{reflect.TypeFor[IdentifyAPIKey](), "api_key"},
	{reflect.TypeFor[IdentifyIP](), "ip"},
}

// homeOf returns the part of a document in which a misplaced field belongs, or "".
func homeOf(word string, notIn reflect.Type) string {
	for _, home := range homes {
		if _, ok := FieldsOf(home.in)[word]; ok && home.in != notIn {
			return home.name
		}
	}
	found := ""
	for _, home := range innerHomes {
		if _, ok := FieldsOf(home.in)[word]; ok {
			if home.in == notIn || found != "" {
				return ""
			}
			found = home.name
		}
	}
	return found
}

// remedyForWord returns what to write in place of a number or bool where a word is expected.
func remedyForWord(path, text string) string {
	word := syntax.LastWord(path)
	if plain, ok := plainNumber(text); ok && word == "limit" {
		return `add the window: "` + plain + `/1m"`
	}
	if word == "per" && text == "false" {
		return "write [] for one counter for all clients"
	}
	if plain, ok := plainNumber(text); ok && spanWords[word] {
		return "add the unit: " + plain + "s"
	}
	return `write it in quotes: "` + syntax.Cut(text) + `"`
}

// spanWords are the fields that hold a duration.
var spanWords = map[string]bool{"leeway": true, "refresh": true, "max_delay": true, "retry_after": true, "retry_jitter": true,
	"window": true, "max": true, "gossip": true}

// remedyForNamed returns what to write where names with values are expected.
func remedyForNamed(path string) string {
	switch syntax.LastWord(path) {
	case "tiers":
		return "write {premium: 1000/1m, enterprise: unlimited}"
	case "regions":
		return "write the share of each region: {us: 50, eu: 30, ap: 20}"
	}
	return "write {X-Name: value}"
}

// remedyForBlock returns what to write where a map is expected.
func remedyForBlock(path string) string {
	switch syntax.LastWord(path) {
	case "match":
		return "write {path: /api/*}"
	case "exempt":
		return "write {ip: [10.0.0.0/8]}"
	case "block":
		return "write {ip: [192.0.2.7]}"
	case "user", "tenant", "tier":
		return sourceRemedy
	case "count_if", "refund_on":
		return "write {status: [401, 5xx]}"
	case "throttle":
		return "write {max_delay: 2s, max_waiting: 1000}"
	case "events":
		return "write {denied: all}"
	case "penalty":
		return "write {window: 1h, threshold: 3}"
	case "cost_after":
		return "write {header: X-Cost, estimate: 10}"
	case "response":
		return "write {message: TEXT}"
	case "jwt":
		return "write {jwks_file: FILE}"
	case "api_key":
		return "write {keys_file: FILE}"
	case "cookie":
		return "write {name: session, unverified: true}"
	case "rules":
		return `write {name: api, limit: 100/1m}`
	case "cost":
		return `write {match: {path: /search}, n: 5}`
	case "ip":
		return `write {ipv6_prefix: 64}, or just ip`
	case "header":
		return `write {name: X-User, unverified: true}`
	default:
		return ""
	}
}

// fieldSet holds the keys of a struct, in order and by name, with the index of the struct's field.
type fieldSet struct {
	order  []string
	fields map[string]int
}

var vocabulary sync.Map // reflect.Type → *fieldSet

func vocabularyOf(t reflect.Type) *fieldSet {
	if known, ok := vocabulary.Load(t); ok {
		return known.(*fieldSet)
	}
	w := &fieldSet{fields: make(map[string]int, t.NumField())}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			w.order = append(w.order, name)
			w.fields[name] = i
		}
	}
	vocabulary.Store(t, w)
	return w
}

// FieldsOf returns the indexes of a type's fields by their names in documents.
func FieldsOf(t reflect.Type) map[string]int { return vocabularyOf(t).fields }

// FieldNames returns the names of a type's fields in documents, in their order.
func FieldNames(t reflect.Type) []string { return vocabularyOf(t).order }

// nearestWord returns the word that was probably meant, or "": one with the same beginning, or one
// in which at most a third of the letters differ.
func nearestWord(word string, among []string) string {
	best, bestDistance := "", len(word)/3+1
	if len(word) > 32 { // longer than any known word plus the allowed distance
		return ""
	}
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	for _, candidate := range among {
		if len(word) >= 3 && strings.HasPrefix(candidate, word) {
			return candidate
		}
		if d := distance(word, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance returns the number of insertions, deletions, changes and swaps of adjacent letters from
// a to b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(last[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
