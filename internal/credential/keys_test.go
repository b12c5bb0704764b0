// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

const presented = "pk_an_example_key_for_tests"

func hashOf(t testing.TB, key string) string {
	t.Helper()
	hash, err := HashKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// keysOf opens a verifier for the keys in a file.
func keysOf(t testing.TB, name, text string) *Keys {
	t.Helper()
	k, err := NewKeys(KeysOptions{File: write(t, name, text), Now: testClock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

func TestKeysInEveryFormat(t *testing.T) {
	hash := hashOf(t, presented)
	for name, text := range map[string]string{
		"keys.toml": "[[keys]]\nid = \"shop\"\nhash = \"" + hash + "\"\nuser = \"u\"\ntenant = \"t\"\ntier = \"premium\"\n" +
			"expires = 2030-01-01T00:00:00Z\nlimits = { api = [\"10/1m\", \"100/1h\"], \"*\" = \"unlimited\" }\n",
		"keys.yaml": "keys:\n  - id: shop\n    hash: " + hash + "\n    user: u\n    tenant: t\n    tier: premium\n" +
			"    expires: 2030-01-01T00:00:00Z\n    limits: { api: [10/1m, 100/1h], \"*\": unlimited }\n",
		"keys.json": `{"keys":[{"id":"shop","hash":["` + hash + `"],"user":"u","tenant":"t","tier":"premium",` +
			`"expires":"2030-01-01T01:00:00+01:00","limits":{"api":["10/1m","100/1h"],"*":["unlimited"]}}]}`,
	} {
		k := keysOf(t, name, text)
		id, state := k.Verify(presented)
		if state != policy.CredentialValid {
			t.Errorf("%s: %s", name, state)
			continue
		}
		if id.Overrides == nil {
			t.Errorf("%s: no limits", name)
		}
		got := *id
		got.Overrides = nil
		want := policy.Identity{Kind: "api_key", ID: "shop", APIKey: "shop", User: "u", Tenant: "t", Tier: "premium"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if found, _, _ := k.find(presented); found.Expires != 1893456000*counter.Second {
			t.Errorf("%s: expires at %d", name, found.Expires)
		}
	}
}

func TestStatesOfKeys(t *testing.T) {
	hash := hashOf(t, presented)
	for _, c := range []struct {
		entry, presented string
		want             policy.CredentialState
	}{
		{"", presented, policy.CredentialValid},
		{"", "", policy.CredentialAbsent},
		{"", presented + "x", policy.CredentialUnknown},
		{"", "short", policy.CredentialUnknown},
		{"", presented + " ", policy.CredentialMalformed},
		{"", presented + "\n", policy.CredentialMalformed},
		{"", "schlüssel-der-keiner-ist", policy.CredentialMalformed},
		{"", strings.Repeat("x", KeyBytesMax), policy.CredentialUnknown},
		{"", strings.Repeat("x", KeyBytesMax+1), policy.CredentialMalformed},
		{"", hash, policy.CredentialUnknown}, // the hash of a key is not accepted as the key
		{"revoked: true", presented, policy.CredentialRevoked},
		{"revoked: false", presented, policy.CredentialValid},
		{"inactive: true", presented, policy.CredentialInactive},
		// The first of these times is testNow.
		{"expires: 2023-11-14T22:13:20Z", presented, policy.CredentialLapsed},
		{"expires: 2023-11-14T22:13:21Z", presented, policy.CredentialValid},
		{"not_before: 2023-11-14T22:13:21Z", presented, policy.CredentialInactive},
		{"not_before: 2023-11-14T22:13:20Z", presented, policy.CredentialValid},
		{"revoked: true\n    inactive: true\n    expires: 2020-01-01T00:00:00Z", presented, policy.CredentialRevoked},
		{"inactive: true\n    expires: 2020-01-01T00:00:00Z", presented, policy.CredentialLapsed},
	} {
		k := keysOf(t, "k.yaml", "keys:\n  - id: a\n    hash: "+hash+"\n    reason: because\n    "+c.entry+"\n")
		id, state := k.Verify(c.presented)
		if state != c.want || (id != nil) != (state == policy.CredentialValid) {
			t.Errorf("%q with %q: %v %s, want %s", c.entry, c.presented, id, state, c.want)
		}
		if known := k.Reason(c.presented) == "because"; known != (c.presented == presented) {
			t.Errorf("%q: the reason is %q", c.entry, k.Reason(c.presented))
		}
	}
}

func TestBadKeyFiles(t *testing.T) {
	hash := hashOf(t, presented)
	good := "id: a, hash: " + hash
	for _, c := range []struct{ text, wants string }{
		{"", "is empty"},
		{"{}", "keys: is missing"},
		{"keys: 5", "write a list of entries"},
		{"keys: [5]", "keys[0]: is no entry"},
		{"key: []", "key: is an unknown field"},
		{"keys: [{id: a}]", "keys[0].hash: is missing"},
		{"keys: [{hash: " + hash + "}]", "keys[0].id: is missing"},
		{"keys: [{" + good + ", role: x}]", "keys[0].role: is an unknown field"},
		{"keys: [{" + good + ", id: b}]", "is listed twice"},
		{"keys: [{" + good + "}, {id: b, hash: " + hash + "}]", "keys[1].hash: is listed twice: the first is at k.yaml:1"},
		{"keys: [{" + good + ", tier: pro}, {id: a, tier: free, hash: sha256:" + strings.Repeat("0a", 32) + "}]",
			`keys[1].tier: "free": is not the tier "pro" of the first entry of "a", at k.yaml:1`},
		{"keys: [{" + good + "}, {id: a, limits: {api: 1/1m}, hash: sha256:" + strings.Repeat("0a", 32) + "}]",
			"keys[1].limits: are not those of the first entry"},
		{"keys: [{" + good + "}, {id: a, hash: [" + strings.Repeat("x, ", 8) + "]}]", "has 9 hashes"},
		{"keys: [{id: 7, hash: " + hash + "}]", "in quotes if it looks like a number"},
		{"keys: [{id: a, hash: " + hash[:70] + "}]", "is not the hash of a key"},
		{"keys: [{id: a, hash: sha256:" + strings.Repeat("0", 64) + "}]", "is not the hash of a key"},
		{"keys: [{id: a, hash: md5:0a0a}]", "is not the hash of a key"},
		{"keys: [{id: a, hash: []}]", "has 0 hashes"},
		{"keys: [{" + good + ", expires: tomorrow}]", "write one such as 2026-12-01T00:00:00Z"},
		{"keys: [{" + good + ", expires: 2026-12-01}]", "is not a date and time with its zone"},
		{"keys: [{" + good + ", expires: \"2026-12-01T00:00:00Z\", not_before: \"2027-12-01T00:00:00Z\"}]", "would never be good"},
		{"keys: [{" + good + ", revoked: yes}]", "write true or false"},
		{"keys: [{" + good + ", limits: {api: [0/1m]}}]", "keys[0].limits.api"},
		{"keys: [{" + good + ", limits: {api: [010/1m]}}]", `keys[0].limits.api: "010/1m"`},
		{"keys: [{" + good + ", limits: {api: []}}]", "has no limits"},
		{"keys: [{" + good + ", limits: {}}]", "is not a block of limits"},
		{"keys: [{" + good + ", reason: " + strings.Repeat("x", 501) + "}]", "at most 500 bytes"},
		{"keys: [{" + good + ", tier: " + strings.Repeat("x", 256) + "}]", "has 256 bytes"},
		{"keys: [{" + good + ", tier: ' gold'}]", "keys[0].tier: \" gold\": starts or ends with a space"},
		{"keys: [{id: 7, hash: 7}, {" + good + ", limits: {'a b': 1/1m}}]", `"a b" is not the name of a rule`},
		{"keys: [", "k.yaml:1"},
	} {
		_, err := NewKeys(KeysOptions{File: write(t, "k.yaml", c.text)})
		var problems policy.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), c.wants) || !strings.Contains(err.Error(), "k.yaml") {
			t.Errorf("%s:\n%v\nwant %q and the place", c.text, err, c.wants)
		}
	}
}

func TestNoMessageShowsAKey(t *testing.T) {
	const secret = "pk_must_never_be_shown_anywhere"
	for _, text := range []string{"keys: [{id: a, hash: " + secret + "}]", "keys: [{id: a, " + secret + ": x}]",
		"keys: [{id: a, key: " + secret + "}]", secret + ": 5", "keys: [" + secret + "]"} {
		if _, err := NewKeys(KeysOptions{File: write(t, "k.yaml", text)}); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	// Parser errors for a broken file do not contain a key either, in whole or in part.
	for _, file := range []struct{ name, text string }{
		{"k.yaml", "keys: [{id: a, hash: *" + secret + "}]"}, {"k.yaml", "keys: [{id: a, hash: !" + secret + " x}]"},
		{"k.yaml", "keys:\n- id: a\n  hash: >" + secret}, {"k.yaml", "keys:\n- id: a\n  hash: |" + secret + "\n"},
		{"k.yaml", "keys:\n- id: a\n  hash: &" + secret + " x"}, {"k.toml", "[keys." + secret + "]\n[keys." + secret + "]"},
		{"k.toml", "[[keys]]\nhash = " + secret}, {"k.json", `{"keys":[{"hash":` + secret + "}]}"},
	} {
		_, err := NewKeys(KeysOptions{File: write(t, file.name, file.text)})
		if err == nil || strings.Contains(err.Error(), secret[3:12]) || !strings.Contains(err.Error(), file.name+":") {
			t.Errorf("%s: %v", file.text, err)
		}
	}
	if _, err := HashKey(" " + secret); err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

func TestBadKeysOptions(t *testing.T) {
	for _, o := range []KeysOptions{{}, {File: "k.toml", Source: &keyList{}}, {File: "k.txt"}, {File: "/nowhere/k.toml"}} {
		if k, err := NewKeys(o); err == nil {
			k.Close()
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestManyKeys: forty thousand keys fit into a file. The error for a larger file states where so
// many keys belong.
func TestManyKeys(t *testing.T) {
	var b strings.Builder
	add := func(from, to int) {
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "[[keys]]\nid=\"%d\"\nhash=\"sha256:%064x\"\n", i, i+1)
		}
	}
	add(0, 40_000)
	path := write(t, "k.toml", b.String())
	k, err := NewKeys(KeysOptions{File: path})
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	add(40_000, 50_000)
	if _, err := NewKeys(KeysOptions{File: write(t, "k.toml", b.String())}); err == nil ||
		!strings.Contains(err.Error(), "larger than 4194304 bytes: spread the keys over several files") {
		t.Error(err)
	}
}

func TestEditsOfAKeysFile(t *testing.T) {
	log := &lines{}
	path := write(t, "k.yaml", "keys: []\n")
	k, err := newKeys(KeysOptions{File: path, Now: testClock, Logger: log.Logger()}, 2*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	edit := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stateBecomes := func(want policy.CredentialState) {
		t.Helper()
		waitUntil(t, "the key is "+want.String(), func() bool {
			_, state := k.Verify(presented)
			return state == want
		})
	}
	stateBecomes(policy.CredentialUnknown)
	edit("keys: [{id: a, hash: " + hashOf(t, presented) + "}]\n")
	stateBecomes(policy.CredentialValid)
	edit("keys: [{id: a, hash: oops}]\n")
	waitUntil(t, "the edit is refused", func() bool {
		return log.count("rejected, its previous content stays in force") > 0 && log.count("keys[0].hash") == 1
	})
	stateBecomes(policy.CredentialValid)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "it is told that the file is gone", func() bool { return log.count("cannot be read") > 0 })
	stateBecomes(policy.CredentialValid)
	edit("keys: [{id: a, hash: " + hashOf(t, presented) + ", revoked: true}]\n")
	stateBecomes(policy.CredentialRevoked)
	if log.count(presented) != 0 {
		t.Error("the log shows the key")
	}
}

func TestHashKey(t *testing.T) {
	if got, want := hashOf(t, "abcdefghijklmnop"), "sha256:f39dac6cbaba535e2c207cd0cd8f154974223c848f727f98b3564cea569b41cf"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, weak := range []string{"", "short", "fifteen-bytes-x", strings.Repeat("ab", 20), "a key with spaces in it", "ein-schlüssel-der-lang-ist",
		strings.Repeat("abcdefghij", 52)} {
		if hash, err := HashKey(weak); err == nil {
			t.Errorf("%q is accepted: %s", weak, hash)
		}
	}
}

func TestGeneratedKeys(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		k := GenerateKey()
		if len(k) != 46 || !strings.HasPrefix(k, "pk_") || seen[k] {
			t.Fatalf("%q", k)
		}
		if strings.Trim(k[3:], "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			t.Fatalf("%q has other characters", k)
		}
		seen[k] = true
		hashOf(t, k)
	}
}

func TestNewEntryIsReadBack(t *testing.T) {
	e := Entry{ID: `a "quoted" \ näme`, Hash: hashOf(t, presented), User: "u", Tenant: "t", Tier: "p", Reason: "it's\tnew",
		Limits: map[string][]string{"api": {"10/1m", "5/1s"}, "*": {"unlimited"}}, NotBefore: testNow, Expires: testNow.Add(time.Hour),
		Revoked: true, Inactive: true}
	text, err := NewEntry(e)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewEntry(Entry{ID: "b", Hash: hashOf(t, presented+"2")})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := readKeys("k.toml", policyfile.TOML, []byte(text+other))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text+other)
	}
	if len(keys.byHash) != 2 {
		t.Fatalf("%d keys", len(keys.byHash))
	}
	sum, _ := parseHash(syntax.Text("", e.Hash))
	got := *keys.byHash[sum]
	if got.Identity.ID != e.ID || got.Reason != e.Reason || !got.Revoked || !got.Inactive || got.Identity.Overrides == nil ||
		got.NotBefore != counter.Micros(testNow.UnixMicro()) || got.Expires != got.NotBefore+counter.Hour {
		t.Errorf("%+v", got)
	}
	for _, bad := range []Entry{{ID: "a"}, {Hash: e.Hash}, {ID: "a\nb", Hash: e.Hash},
		{ID: "a", Hash: e.Hash, Limits: map[string][]string{"x": {"many"}}}} {
		if text, err := NewEntry(bad); err == nil {
			t.Errorf("accepted:\n%s", text)
		}
	}
}

func TestLookupOfAKeyAllocatesNothing(t *testing.T) {
	k := keysOf(t, "k.yaml", "keys: [{id: a, hash: "+hashOf(t, presented)+"}]")
	if n := testing.AllocsPerRun(100, func() { k.Verify(presented); k.Verify("pk_nobody_has_this_one") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkKeys(b *testing.B) {
	k := keysOf(b, "k.yaml", "keys: [{id: a, hash: "+hashOf(b, presented)+"}]")
	for b.Loop() {
		k.Verify(presented)
	}
}

func FuzzKeysFile(f *testing.F) {
	hash := hashOf(f, presented)
	f.Add("keys: [{id: a, hash: "+hash+", limits: {api: [1/1m]}, expires: 2026-12-01T00:00:00Z}]", uint8(0))
	f.Add("[[keys]]\nid = \"a\"\nhash = \""+hash+"\"\nexpires = 2026-12-01 00:00:00Z", uint8(1))
	f.Add(`{"keys":[{"id":"a","hash":["`+hash+`"],"revoked":true}]}`, uint8(2))
	f.Fuzz(func(t *testing.T, text string, format uint8) {
		keys, err := readKeys("k", policyfile.Format(format%3), []byte(text))
		if (keys == nil) == (err == nil) {
			t.Fatalf("%v and %v", keys, err)
		}
		for sum, k := range byHash(keys) {
			if sum == [32]byte{} || k.Identity.ID == "" || len(k.Identity.ID) > idBytesMax || k.Identity.Kind != "api_key" {
				t.Fatalf("%x %+v", sum, k)
			}
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, one := range readSpoofs(f) {
		f.Add(one.token(f))
	}
	j := openTest(f, JWTOptions{JWKSFile: write(f, "k.json", theIssuer.set)})
	f.Fuzz(func(t *testing.T, token string) {
		id, state := j.Verify(token)
		if (id != nil) != (state == policy.CredentialValid) {
			t.Fatalf("%v with %s", id, state)
		}
		again, same := j.Verify(strings.Clone(token))
		if same != state || !cmp.Equal(again, id) {
			t.Fatalf("%v %s, and then %v %s", id, state, again, same)
		}
		if state == policy.CredentialValid && strings.Count(token, ".") != 2 {
			t.Fatalf("%q", token)
		}
	})
}

// TestAnEntryAppendedForARotation: `hash-key ID >> keys.toml` adds a key to the client of that
// name. Both keys are valid and have the client's tier and limits, and each has its own expiry.
func TestAnEntryAppendedForARotation(t *testing.T) {
	const next = "pk_the_key_that_replaces_it"
	first, err := NewEntry(Entry{ID: "acme", Hash: hashOf(t, presented), User: "u", Tier: "pro", Limits: map[string][]string{"api": {"9/1m"}},
		Expires: testNow.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewEntry(Entry{ID: "acme", Hash: hashOf(t, next)})
	if err != nil {
		t.Fatal(err)
	}
	k := keysOf(t, "keys.toml", first+second)
	id, state := k.Verify(next)
	if state != policy.CredentialValid || id.ID != "acme" || id.User != "u" || id.Tier != "pro" || id.Overrides == nil {
		t.Errorf("the new key: %s, %+v", state, id)
	}
	if _, state := k.Verify(presented); state != policy.CredentialLapsed {
		t.Errorf("the old key: %s, want lapsed: the expiry is of one key", state)
	}
	keys, ok := k.Named("acme")
	if !ok || len(keys) != 2 || k.State(keys[0]) != policy.CredentialValid || k.State(keys[1]) != policy.CredentialLapsed {
		t.Errorf("the keys of the name: %t %d, want the good one first", ok, len(keys))
	}
	if ofUser, _ := k.OfUser("u"); len(ofUser) != 2 {
		t.Errorf("%d keys of the user, want 2", len(ofUser))
	}
	if none, ok := k.Named("nobody"); !ok || len(none) != 0 {
		t.Errorf("a name that is not there: %t %v", ok, none)
	}
}

// byHash returns the keys of a table, or none if there is no table.
func byHash(table *keyTable) map[[32]byte]*Key {
	if table == nil {
		return nil
	}
	return table.byHash
}

// fromDirectory stands for a directory with one key. The field named read says whether the
// directory has read that key already.
type fromDirectory struct {
	key  string
	who  *policy.Identity
	read bool
}

func (d *fromDirectory) FindKey(hash [32]byte, _ counter.Micros) (*policy.Identity, policy.CredentialState, bool) {
	switch {
	case !d.read:
		return nil, policy.CredentialUnknown, false
	case hash != sha256.Sum256([]byte(d.key)):
		return nil, policy.CredentialUnknown, true
	}
	return d.who, policy.CredentialValid, true
}

// TestKeysOfADirectory tests that the file decides about a key that it contains, that the directory
// decides about all other keys, and that a key is invalid as long as the directory cannot read it.
// A known key costs no allocation.
func TestKeysOfADirectory(t *testing.T) {
	const other = "pk_another_key_of_the_directory"
	who := &policy.Identity{Kind: "user", ID: "ann", User: "ann", APIKey: "k"}
	k, err := NewKeys(KeysOptions{File: write(t, "keys.toml", "[[keys]]\nid = \"shop\"\nrevoked = true\nhash = \""+hashOf(t, presented)+"\"\n"),
		Directory: true, Now: testClock})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, c := range []struct {
		name, key string
		d         *fromDirectory
		state     policy.CredentialState
		unread    bool
	}{
		{"revoked in the file, valid in the directory", presented, &fromDirectory{presented, who, true}, policy.CredentialRevoked, false},
		{"in the directory only", other, &fromDirectory{other, who, true}, policy.CredentialValid, false},
		{"in neither", other, &fromDirectory{presented, who, true}, policy.CredentialUnknown, false},
		{"not read", other, &fromDirectory{other, who, false}, policy.CredentialInvalid, true},
		{"too short to be a key", "short", &fromDirectory{"short", who, true}, policy.CredentialUnknown, false},
	} {
		var unread []policy.ClientName
		asker := &policy.Asker{Keys: c.d, Unread: &unread}
		got, state := k.VerifyFor(asker, c.key)
		sum := sha256.Sum256([]byte(c.key))
		if state != c.state || (got == who) != (c.state == policy.CredentialValid) ||
			slices.Contains(unread, policy.ClientName{Kind: policy.KindKey, ID: hex.EncodeToString(sum[:])}) != c.unread {
			t.Errorf("%s: %v, %v, unread %q", c.name, got, state, unread)
		}
		if n := testing.AllocsPerRun(100, func() { k.VerifyFor(asker, c.key) }); n != 0 && !c.unread {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
	if _, state := k.VerifyFor(new(policy.Asker), other); state != policy.CredentialInvalid {
		t.Errorf("without a directory: %v", state)
	}
	if _, err := NewKeys(KeysOptions{}); err == nil {
		t.Error("keys from nowhere are accepted")
	}
}
