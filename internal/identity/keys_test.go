// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
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

// keysOf opens a verifier of a file.
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
		if state != core.CredentialValid {
			t.Errorf("%s: %s", name, state)
			continue
		}
		if id.Overrides == nil {
			t.Errorf("%s: no limits", name)
		}
		got := *id
		got.Overrides = nil
		want := core.Identity{Kind: "api_key", ID: "shop", APIKey: "shop", User: "u", Tenant: "t", Tier: "premium"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if found, _ := k.find(presented); found.Expires != 1893456000*core.Second {
			t.Errorf("%s: expires at %d", name, found.Expires)
		}
	}
}

func TestStatesOfKeys(t *testing.T) {
	hash := hashOf(t, presented)
	for _, c := range []struct {
		entry, presented string
		want             core.CredentialState
	}{
		{"", presented, core.CredentialValid},
		{"", "", core.CredentialAbsent},
		{"", presented + "x", core.CredentialUnknown},
		{"", "short", core.CredentialUnknown},
		{"", presented + " ", core.CredentialMalformed},
		{"", presented + "\n", core.CredentialMalformed},
		{"", "schlüssel-der-keiner-ist", core.CredentialMalformed},
		{"", strings.Repeat("x", KeyBytesMax), core.CredentialUnknown},
		{"", strings.Repeat("x", KeyBytesMax+1), core.CredentialMalformed},
		{"", hash, core.CredentialUnknown}, // the hash does not open what it locks
		{"revoked: true", presented, core.CredentialRevoked},
		{"revoked: false", presented, core.CredentialValid},
		{"inactive: true", presented, core.CredentialInactive},
		{"expires: 2023-11-14T22:13:20Z", presented, core.CredentialLapsed}, // testNow to the second
		{"expires: 2023-11-14T22:13:21Z", presented, core.CredentialValid},
		{"not_before: 2023-11-14T22:13:21Z", presented, core.CredentialInactive},
		{"not_before: 2023-11-14T22:13:20Z", presented, core.CredentialValid},
		{"revoked: true\n    inactive: true\n    expires: 2020-01-01T00:00:00Z", presented, core.CredentialRevoked},
		{"inactive: true\n    expires: 2020-01-01T00:00:00Z", presented, core.CredentialLapsed},
	} {
		k := keysOf(t, "k.yaml", "keys:\n  - id: a\n    hash: "+hash+"\n    reason: because\n    "+c.entry+"\n")
		id, state := k.Verify(c.presented)
		if state != c.want || (id != nil) != (state == core.CredentialValid) {
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
		{"key: []", "key: is not a word"},
		{"keys: [{id: a}]", "keys[0].hash: is missing"},
		{"keys: [{hash: " + hash + "}]", "keys[0].id: is missing"},
		{"keys: [{" + good + ", role: x}]", "keys[0].role: is not a word that can stand here"},
		{"keys: [{" + good + ", id: b}]", "stands here twice"},
		{"keys: [{" + good + "}, {id: b, hash: " + hash + "}]", "keys[1].hash: stands here twice: it was first written at k.yaml:1"},
		{"keys: [{" + good + "}, {id: a, hash: sha256:" + strings.Repeat("0a", 32) + "}]", "keys[1].id: \"a\": stands here twice"},
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
		var problems core.Problems
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
	// Nor what the parsers say of a file that cannot be read, in whole or in part.
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

// TestManyKeys: forty thousand keys fit a file; of one that is larger it is said where the others go.
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
	stateBecomes := func(want core.CredentialState) {
		t.Helper()
		eventually(t, "the key is "+want.String(), func() bool {
			_, state := k.Verify(presented)
			return state == want
		})
	}
	stateBecomes(core.CredentialUnknown)
	edit("keys: [{id: a, hash: " + hashOf(t, presented) + "}]\n")
	stateBecomes(core.CredentialValid)
	edit("keys: [{id: a, hash: oops}]\n")
	eventually(t, "the edit is refused", func() bool {
		return log.count("refused, what it held before stays in force") > 0 && log.count("keys[0].hash") == 1
	})
	stateBecomes(core.CredentialValid)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told that the file is gone", func() bool { return log.count("cannot be read") > 0 })
	stateBecomes(core.CredentialValid)
	edit("keys: [{id: a, hash: " + hashOf(t, presented) + ", revoked: true}]\n")
	stateBecomes(core.CredentialRevoked)
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
	keys, err := readKeys("k.toml", policy.TOML, []byte(text+other))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text+other)
	}
	if len(keys) != 2 {
		t.Fatalf("%d keys", len(keys))
	}
	sum, _ := parseHash(policy.Text("", e.Hash))
	got := *keys[sum]
	if got.Identity.ID != e.ID || got.Reason != e.Reason || !got.Revoked || !got.Inactive || got.Identity.Overrides == nil ||
		got.NotBefore != core.Micros(testNow.UnixMicro()) || got.Expires != got.NotBefore+core.Hour {
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
		keys, err := readKeys("k", policy.Format(format%3), []byte(text))
		if (keys == nil) == (err == nil) {
			t.Fatalf("%v and %v", keys, err)
		}
		for sum, k := range keys {
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
		if (id != nil) != (state == core.CredentialValid) {
			t.Fatalf("%v with %s", id, state)
		}
		again, same := j.Verify(strings.Clone(token))
		if same != state || !cmp.Equal(again, id) {
			t.Fatalf("%v %s, and then %v %s", id, state, again, same)
		}
		if state == core.CredentialValid && strings.Count(token, ".") != 2 {
			t.Fatalf("%q", token)
		}
	})
}
