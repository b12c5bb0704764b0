// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

const (
	hashPrefix = "sha256:"
	// hashesMax is how many keys an entry may have: the old and the new one while a client changes over, and some to spare.
	hashesMax = 8
	// idBytesMax is how long a name may be: one that is longer would stand in keys of the store by its hash.
	idBytesMax = 255
	// keyProblemsMax is how many problems one refused file names.
	keyProblemsMax = 100
	// reasonBytesMax bounds what goes into logs and answers.
	reasonBytesMax = 500
)

// keyReader reads a list of keys.
type keyReader struct {
	keys     map[[32]byte]*Key
	hashes   map[[32]byte]string // where each stands
	names    map[string]string
	problems core.Problems
}

// readKeys reads a list of keys; name is how its places are called. The error is [core.Problems]. No problem repeats what
// stands in the place of a hash, or under a word that is not known: it may be the key itself.
func readKeys(name string, format policy.Format, data []byte) (map[[32]byte]*Key, error) {
	r := &keyReader{keys: map[[32]byte]*Key{}, hashes: map[[32]byte]string{}, names: map[string]string{}}
	if len(bytes.TrimSpace(data)) == 0 {
		r.add(core.Problem{Path: "keys", Place: name, Why: "is missing: the file is empty", Remedy: "write keys: [] if there are none"})
		return nil, r.problems
	}
	tree, err := policy.Tree(name, format, data)
	if err != nil {
		return nil, withoutKeys(err, data)
	}
	if tree == nil || tree.Kind != policy.KindMap {
		r.add(core.Problem{Path: "keys", Place: name, Why: "is missing", Remedy: "write a list under the word keys"})
		return nil, r.problems
	}
	list := r.only(tree, "", "keys")["keys"]
	switch {
	case list == nil:
		r.at(tree, "keys", "", "is missing", "write keys: [] if there are none")
	case list.Kind != policy.KindList:
		r.at(list, "keys", "", "is no list", "write a list of entries: penstock hash-key makes one")
	default:
		for i, item := range list.Items {
			r.entry(item, "keys["+strconv.Itoa(i)+"]")
		}
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.keys, nil
}

func (r *keyReader) add(p core.Problem) {
	if len(r.problems) < keyProblemsMax {
		p.Path, p.Value, p.Why = cut(orElse(p.Path, "file")), cut(p.Value), cut(p.Why)
		r.problems = append(r.problems, p)
	}
}

// withoutKeys returns the problems of a file that cannot be read without what they repeat of it: it may be a key, or most
// of one.
func withoutKeys(err error, data []byte) error {
	var problems core.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems {
		problems[i].Value = ""
		problems[i].Why, problems[i].Remedy = withoutWords(problems[i].Why, data), withoutWords(problems[i].Remedy, data)
	}
	return problems
}

// repeatedBytesMax is how much of a file a message may repeat in one word: half of the shortest key.
const repeatedBytesMax = KeyBytesMin / 2

// withoutWords puts an ellipsis in the place of the longer words of a message that stand in the file.
func withoutWords(text string, data []byte) string {
	words := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \"'*&!,;", c) })
	for _, word := range words {
		if len(word) > repeatedBytesMax && bytes.Contains(data, []byte(word)) {
			text = strings.ReplaceAll(text, word, "…")
		}
	}
	return text
}

func (r *keyReader) at(n *policy.Node, path, value, why, remedy string) {
	r.add(core.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: n.Place})
}

// only returns the values of a map by word, and reports words that cannot stand there or stand twice.
func (r *keyReader) only(n *policy.Node, path string, words ...string) map[string]*policy.Node {
	values := map[string]*policy.Node{}
	for _, entry := range n.Entries {
		at := strings.TrimPrefix(path+"."+entry.Key, ".")
		switch {
		case !slices.Contains(words, entry.Key):
			if len(entry.Key) >= KeyBytesMin { // it may be a key
				at = path
			}
			r.add(core.Problem{Path: at, Place: entry.Place, Why: "is not a word that can stand here",
				Remedy: "write one of " + strings.Join(words, ", ")})
		case values[entry.Key] != nil:
			r.add(core.Problem{Path: at, Place: entry.Place, Why: "stands here twice", Remedy: "keep one of them"})
		default:
			values[entry.Key] = entry.Value
		}
	}
	return values
}

func (r *keyReader) entry(n *policy.Node, path string) {
	if n.Kind != policy.KindMap {
		r.at(n, path, "", "is no entry", "write id and hash: penstock hash-key makes an entry")
		return
	}
	values := r.only(n, path, "id", "hash", "user", "tenant", "tier", "limits", "expires", "not_before", "revoked", "inactive",
		"reason")
	get := func(word string) (*policy.Node, string) { return values[word], path + "." + word }
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
	id, place := k.Identity.ID, n.Place
	switch {
	case values["id"] == nil:
		r.at(n, path+".id", "", "is missing", "write a name for the key, which logs and rules may show")
	case id != "" && r.names[id] != "":
		r.at(values["id"], path+".id", id, "stands here twice: it was first written at "+r.names[id],
			"give each entry its own; an entry may have a list of hashes")
	default:
		r.names[id] = orElse(place, "another entry")
	}
	r.hash(values["hash"], n, path+".hash", k)
}

// hash reads one hash or a list of them, and enters the key under each.
func (r *keyReader) hash(n, entry *policy.Node, path string, k *Key) {
	const remedy = "write what penstock hash-key prints: sha256: and 64 digits"
	if n == nil {
		r.at(entry, path, "", "is missing", remedy)
		return
	}
	items := []*policy.Node{n}
	if n.Kind == policy.KindList {
		items = n.Items
	}
	if len(items) == 0 || len(items) > hashesMax {
		r.at(n, path, "", fmt.Sprintf("has %d hashes", len(items)), fmt.Sprintf("write 1 to %d", hashesMax))
		return
	}
	for _, item := range items {
		sum, ok := parseHash(item)
		switch {
		case !ok:
			r.at(item, path, "", "is not the hash of a key (what stands there is not shown, it may be the key itself)", remedy)
		case r.hashes[sum] != "":
			r.at(item, path, "", "stands here twice: it was first written at "+r.hashes[sum], "keep one of them")
		default:
			r.hashes[sum] = orElse(item.Place, "another entry")
			r.keys[sum] = k
		}
	}
}

func parseHash(n *policy.Node) (sum [32]byte, ok bool) {
	digits, ok := strings.CutPrefix(n.Text, hashPrefix)
	if !isScalar(n) || !ok || len(digits) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(digits))
	return sum, err == nil && sum != [32]byte{}
}

func isScalar(n *policy.Node) bool {
	return n.Kind == policy.KindWord || n.Kind == policy.KindText
}

// text reads a name; nil is none.
func (r *keyReader) text(n *policy.Node, path string) string {
	switch {
	case n == nil:
		return ""
	case !isScalar(n) || n.Text == "":
		r.at(n, path, n.Text, "is not a word", "write a name, in quotes if it looks like a number")
	case len(n.Text) > idBytesMax:
		r.at(n, path, "", fmt.Sprintf("has %d bytes", len(n.Text)), fmt.Sprintf("write at most %d", idBytesMax))
	case strings.ContainsFunc(n.Text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.at(n, path, "", "has control characters", "leave them out")
	case strings.TrimSpace(n.Text) != n.Text: // no match and no list of a policy can name it
		r.at(n, path, n.Text, "starts or ends with a space", "leave the space out: values are compared exactly")
	default:
		return n.Text
	}
	return ""
}

func (r *keyReader) flag(n *policy.Node, path string) bool {
	if n == nil {
		return false
	}
	if n.Kind != policy.KindBool {
		r.at(n, path, n.Text, "is neither true nor false", "write true or false, without quotes")
	}
	return n.Text == "true"
}

// instant reads a date and time; nil is none.
func (r *keyReader) instant(n *policy.Node, path string) core.Micros {
	if n == nil {
		return 0
	}
	when, err := time.Parse(time.RFC3339, strings.Replace(n.Text, " ", "T", 1)) // TOML may write a space
	if !isScalar(n) && n.Kind != policy.KindDate || err != nil || when.UnixMicro() <= 0 {
		r.at(n, path, n.Text, "is not a date and time with its zone", "write one such as 2026-12-01T00:00:00Z")
		return 0
	}
	return core.Micros(when.UnixMicro())
}

// limits reads a map of rule names to limits; nil is none.
func (r *keyReader) limits(n *policy.Node, path string) *core.Overrides {
	if n == nil {
		return nil
	}
	if n.Kind != policy.KindMap || len(n.Entries) == 0 || len(n.Entries) > core.OverridesMax {
		r.at(n, path, n.Text, "is not a block of limits by rule", `write for example { api: [100/1m], "*": [1000/1h] }`)
		return nil
	}
	before, sets := len(r.problems), make(map[string]core.LimitSet, len(n.Entries))
	for _, entry := range n.Entries {
		at := path + "." + entry.Key
		if _, twice := sets[entry.Key]; twice {
			r.add(core.Problem{Path: at, Place: entry.Place, Why: "stands here twice", Remedy: "keep one of them"})
			continue
		}
		sets[entry.Key] = r.limitSet(entry.Value, at)
	}
	overrides, err := core.NewOverrides(sets)
	if err != nil && len(r.problems) == before {
		r.at(n, path, "", "cannot be: "+err.Error(), "")
	}
	return overrides
}

func (r *keyReader) limitSet(n *policy.Node, path string) core.LimitSet {
	items := []*policy.Node{n}
	if n.Kind == policy.KindList {
		items = n.Items
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if item.Kind != policy.KindWord {
			r.at(item, path, item.Text, "is not a limit", "write COUNT/WINDOW, for example 100/1m, or "+unlimited)
			return core.LimitSet{}
		}
		texts[i] = item.Text
	}
	set, err := parseLimits(texts)
	if err != nil {
		r.at(n, path, strings.Join(texts, ", "), err.Error(), "")
	}
	return set
}
