// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

const (
	hashPrefix = "sha256:"
	// hashesMax is the greatest number of keys with one name: the old and the new one during a
	// rotation, with some to spare.
	hashesMax = 8
	// idBytesMax is the greatest length of a name. A longer name would be replaced by its hash in
	// keys of the store.
	idBytesMax = 255
	// keyProblemsMax is the greatest number of problems reported for a rejected file.
	keyProblemsMax = 100
	// reasonBytesMax is the greatest length of a reason, which appears in logs and responses.
	reasonBytesMax = 500
)

// keyReader reads a list of keys.
type keyReader struct {
	table    keyTable
	hashes   map[[32]byte]string // the location of each key
	owners   map[string]*owner   // by name
	problems policy.Problems
}

// owner is the owner of all entries with one name, as the first of these entries defines it.
type owner struct {
	identity policy.Identity
	place    string
	hashes   int // the number of keys in all entries of the name
}

// readKeys reads a list of keys. The argument name is the file's name in the places of problems.
// The error is [policy.Problems]. No problem contains the value of a hash or of an unknown field,
// because it might be the key itself.
func readKeys(name string, format policyfile.Format, data []byte) (*keyTable, error) {
	r := &keyReader{hashes: map[[32]byte]string{}, owners: map[string]*owner{},
		table: keyTable{byHash: map[[32]byte]*Key{}, byName: map[string][]*Key{}, byUser: map[string][]*Key{}}}
	if len(bytes.TrimSpace(data)) == 0 {
		r.addProblem(policy.Problem{Path: "keys", Place: name, Why: "is missing: the file is empty", Remedy: "write keys: [] if there are none"})
		return nil, r.problems
	}
	tree, err := syntax.Tree(name, format, data)
	if err != nil {
		return nil, withoutKeys(err, data)
	}
	if tree == nil || tree.Kind != syntax.KindMap {
		r.addProblem(policy.Problem{Path: "keys", Place: name, Why: "is missing", Remedy: "write a list under the word keys"})
		return nil, r.problems
	}
	list := r.allowOnly(tree, "", "keys")["keys"]
	switch {
	case list == nil:
		r.at(tree, "keys", "", "is missing", "write keys: [] if there are none")
	case list.Kind != syntax.KindList:
		r.at(list, "keys", "", "is no list", "write a list of entries: penstock hash-key makes one")
	default:
		for i, item := range list.Items {
			r.entry(item, "keys["+strconv.Itoa(i)+"]")
		}
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return &r.table, nil
}

func (r *keyReader) addProblem(p policy.Problem) {
	if len(r.problems) < keyProblemsMax {
		p.Path, p.Value, p.Why = cut(valueOr(p.Path, "file")), cut(p.Value), cut(p.Why)
		r.problems = append(r.problems, p)
	}
}

// withoutKeys returns the problems of a file that cannot be parsed. withoutKeys removes text of the
// file from them, because that text might be a key or a large part of one.
func withoutKeys(err error, data []byte) error {
	var problems policy.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems {
		problems[i].Value = ""
		problems[i].Why, problems[i].Remedy = withoutWords(problems[i].Why, data), withoutWords(problems[i].Remedy, data)
	}
	return problems
}

// repeatedBytesMax is the length of the longest word of a file that a message may contain: half of
// the shortest key.
const repeatedBytesMax = KeyBytesMin / 2

// withoutWords replaces each word of a message by an ellipsis if it is longer than repeatedBytesMax
// and occurs in the file.
func withoutWords(text string, data []byte) string {
	words := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \"'*&!,;", c) })
	for _, word := range words {
		if len(word) > repeatedBytesMax && bytes.Contains(data, []byte(word)) {
			text = strings.ReplaceAll(text, word, "…")
		}
	}
	return text
}

func (r *keyReader) at(n *syntax.Node, path, value, why, remedy string) {
	r.addProblem(policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: n.Place})
}

// allowOnly accepts a map whose fields are all among the given words, and returns its values by
// field. It reports unknown fields and fields listed twice.
func (r *keyReader) allowOnly(n *syntax.Node, path string, words ...string) map[string]*syntax.Node {
	values := map[string]*syntax.Node{}
	for _, entry := range n.Entries {
		at := strings.TrimPrefix(path+"."+entry.Key, ".")
		switch {
		case !slices.Contains(words, entry.Key):
			if len(entry.Key) >= KeyBytesMin { // because it might be a key
				at = path
			}
			r.addProblem(policy.Problem{Path: at, Place: entry.Place, Why: "is an unknown field",
				Remedy: "write one of " + strings.Join(words, ", ")})
		case values[entry.Key] != nil:
			r.addProblem(policy.Problem{Path: at, Place: entry.Place, Why: "is listed twice", Remedy: "keep one of them"})
		default:
			values[entry.Key] = entry.Value
		}
	}
	return values
}

// keyReader.entry reads one entry.
func (r *keyReader) entry(n *syntax.Node, path string) {
	if n.Kind != syntax.KindMap {
		r.at(n, path, "", "is no entry", "write id and hash: penstock hash-key makes an entry")
		return
	}
	values := r.allowOnly(n, path, "id", "hash", "user", "tenant", "tier", "limits", "expires", "not_before", "revoked", "inactive",
		"reason")
	get := func(word string) (*syntax.Node, string) { return values[word], path + "." + word }
	k := &Key{}
	k.Identity.Kind = "api_key"
	k.Identity.ID = r.text(get("id"))
	k.Identity.APIKey = k.Identity.ID
	k.Identity.User, k.Identity.Tenant, k.Identity.Tier = r.text(get("user")), r.text(get("tenant")), r.text(get("tier"))
	k.Identity.Overrides = r.limits(get("limits"))
	k.NotBefore, k.Expires = r.instant(get("not_before")), r.instant(get("expires"))
	k.Revoked, k.Inactive = r.flag(get("revoked")), r.flag(get("inactive"))
	if reason, at := get("reason"); reason != nil {
		if k.Reason = reason.Text; !isScalar(reason) || k.Reason == "" || len(k.Reason) > reasonBytesMax {
			r.at(reason, at, "", "is no reason", fmt.Sprintf("write a sentence of at most %d bytes", reasonBytesMax))
		}
	}
	if k.NotBefore != 0 && k.Expires != 0 && k.Expires <= k.NotBefore {
		r.at(values["expires"], path+".expires", values["expires"].Text, "is not after not_before: the key would never be good",
			"mend one of them")
	}
	if values["id"] == nil {
		r.at(n, path+".id", "", "is missing", "write a name for the key, which logs and rules may show")
	}
	o := r.ownerOf(k, n, values, path)
	r.hash(values["hash"], n, path+".hash", k, o)
	r.table.byName[k.Identity.ID] = append(r.table.byName[k.Identity.ID], k)
	if k.Identity.User != "" {
		r.table.byUser[k.Identity.User] = append(r.table.byUser[k.Identity.User], k)
	}
}

// ownerOf sets the owner of an entry and returns it. Several entries with the same name belong to
// one client, whose key is being replaced. A later entry has the owner of the first one, and can
// omit the owner's fields. If a later entry defines another owner, this is a problem.
func (r *keyReader) ownerOf(k *Key, n *syntax.Node, values map[string]*syntax.Node, path string) *owner {
	id := &k.Identity
	first := r.owners[id.ID]
	if first == nil {
		first = &owner{identity: *id, place: valueOr(n.Place, "another entry")}
		if id.ID != "" {
			r.owners[id.ID] = first
		}
		return first
	}
	for _, field := range []struct {
		word         string
		value, known string
	}{{"user", id.User, first.identity.User}, {"tenant", id.Tenant, first.identity.Tenant}, {"tier", id.Tier, first.identity.Tier}} {
		if field.value != "" && field.value != field.known {
			r.at(values[field.word], path+"."+field.word, field.value, fmt.Sprintf("is not the %s %q of the first entry of %q, at %s",
				field.word, field.known, id.ID, first.place), "entries of one id are one client: write the same, or leave it out")
		}
	}
	if limits := values["limits"]; limits != nil && !sameLimits(id.Overrides, first.identity.Overrides) {
		r.at(limits, path+".limits", "", fmt.Sprintf("are not those of the first entry of %q, at %s", id.ID, first.place),
			"entries of one id are one client: write the same, or leave them out")
	}
	*id = first.identity
	return first
}

// sameLimits reports whether two clients have the same limits of their own.
func sameLimits(a, b *policy.Overrides) bool {
	if !slices.Equal(a.Rules(), b.Rules()) {
		return false
	}
	for _, rule := range a.Rules() {
		x, _ := a.Of(rule)
		y, _ := b.Of(rule)
		if x.Unlimited != y.Unlimited || !slices.EqualFunc(x.Limits, y.Limits, func(l, m counter.Limit) bool { return l.String() == m.String() }) {
			return false
		}
	}
	return true
}

// keyReader.hash reads one hash or a list of hashes, and adds the key under each hash.
func (r *keyReader) hash(n, entry *syntax.Node, path string, k *Key, o *owner) {
	const remedy = "write what penstock hash-key prints: sha256: and 64 digits"
	if n == nil {
		r.at(entry, path, "", "is missing", remedy)
		return
	}
	items := []*syntax.Node{n}
	if n.Kind == syntax.KindList {
		items = n.Items
	}
	if o.hashes += len(items); len(items) == 0 || o.hashes > hashesMax {
		r.at(n, path, "", fmt.Sprintf("has %d hashes", o.hashes), fmt.Sprintf("write 1 to %d for one id", hashesMax))
		return
	}
	for _, item := range items {
		sum, ok := parseHash(item)
		switch {
		case !ok:
			r.at(item, path, "", "is not the hash of a key (the value is not shown: it may be the key itself)", remedy)
		case r.hashes[sum] != "":
			r.at(item, path, "", "is listed twice: the first is at "+r.hashes[sum], "keep one of them")
		default:
			r.hashes[sum] = valueOr(item.Place, "another entry")
			r.table.byHash[sum] = k
		}
	}
}

func parseHash(n *syntax.Node) (sum [32]byte, ok bool) {
	digits, ok := strings.CutPrefix(n.Text, hashPrefix)
	if !isScalar(n) || !ok || len(digits) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(digits))
	return sum, err == nil && sum != [32]byte{}
}

func isScalar(n *syntax.Node) bool {
	return n.Kind == syntax.KindWord || n.Kind == syntax.KindText
}

// keyReader.text reads a name. For a nil node it returns an empty name.
func (r *keyReader) text(n *syntax.Node, path string) string {
	switch {
	case n == nil:
		return ""
	case !isScalar(n) || n.Text == "":
		r.at(n, path, n.Text, "is not a word", "write a name, in quotes if it looks like a number")
	case len(n.Text) > idBytesMax:
		r.at(n, path, "", fmt.Sprintf("has %d bytes", len(n.Text)), fmt.Sprintf("write at most %d", idBytesMax))
	case strings.ContainsFunc(n.Text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.at(n, path, "", "has control characters", "leave them out")
	case strings.TrimSpace(n.Text) != n.Text: // because a match or list of a policy could not name it
		r.at(n, path, n.Text, "starts or ends with a space", "leave the space out: values are compared exactly")
	default:
		return n.Text
	}
	return ""
}

func (r *keyReader) flag(n *syntax.Node, path string) bool {
	if n == nil {
		return false
	}
	if n.Kind != syntax.KindBool {
		r.at(n, path, n.Text, "is neither true nor false", "write true or false, without quotes")
	}
	return n.Text == "true"
}

// keyReader.instant reads a date and time. For a nil node it returns 0.
func (r *keyReader) instant(n *syntax.Node, path string) counter.Micros {
	if n == nil {
		return 0
	}
	// TOML allows a space.
	when, err := time.Parse(time.RFC3339, strings.Replace(n.Text, " ", "T", 1))
	if !isScalar(n) && n.Kind != syntax.KindDate || err != nil || when.UnixMicro() <= 0 {
		r.at(n, path, n.Text, "is not a date and time with its zone", "write one such as 2026-12-01T00:00:00Z")
		return 0
	}
	return counter.Micros(when.UnixMicro())
}

// keyReader.limits reads a map of rule names to limits. For a nil node it returns no limits.
func (r *keyReader) limits(n *syntax.Node, path string) *policy.Overrides {
	if n == nil {
		return nil
	}
	if n.Kind != syntax.KindMap || len(n.Entries) == 0 || len(n.Entries) > policy.OverridesMax {
		r.at(n, path, n.Text, "is not a block of limits by rule", `write for example { api: [100/1m], "*": [1000/1h] }`)
		return nil
	}
	before, sets := len(r.problems), make(map[string]policy.LimitSet, len(n.Entries))
	for _, entry := range n.Entries {
		at := path + "." + entry.Key
		if _, twice := sets[entry.Key]; twice {
			r.addProblem(policy.Problem{Path: at, Place: entry.Place, Why: "is listed twice", Remedy: "keep one of them"})
			continue
		}
		sets[entry.Key] = r.limitSet(entry.Value, at)
	}
	overrides, err := policy.NewOverrides(sets)
	if err != nil && len(r.problems) == before {
		r.at(n, path, "", "cannot be: "+err.Error(), "")
	}
	return overrides
}

func (r *keyReader) limitSet(n *syntax.Node, path string) policy.LimitSet {
	items := []*syntax.Node{n}
	if n.Kind == syntax.KindList {
		items = n.Items
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if item.Kind != syntax.KindWord {
			r.at(item, path, item.Text, "is not a limit", "write COUNT/WINDOW, for example 100/1m, or "+policy.Unlimited)
			return policy.LimitSet{}
		}
		texts[i] = item.Text
	}
	set, err := policy.ParseLimitSet(texts)
	if err != nil {
		r.at(n, path, strings.Join(texts, ", "), err.Error(), "")
	}
	return set
}
