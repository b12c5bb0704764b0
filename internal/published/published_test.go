// SPDX-License-Identifier: Apache-2.0

package published

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// keyOf returns a key that is the same in each run.
func keyOf(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func publicOf(keys ...ed25519.PrivateKey) (all []ed25519.PublicKey) {
	for _, key := range keys {
		all = append(all, key.Public().(ed25519.PublicKey))
	}
	return all
}

func document(t testing.TB, text string) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func seal(t testing.TB, m *Message, key ed25519.PrivateKey) []byte {
	t.Helper()
	text, err := m.Seal(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestOnlyWhatIsSignedIsOpened tests that a message is read back, and that a message with a changed
// byte, or of another key, policy or generation, is rejected.
func TestOnlyWhatIsSignedIsOpened(t *testing.T) {
	now, next := document(t, "name: shop\nrules: [{name: api, limit: 3/1m}]"), document(t, "name: shop\nrules: [{name: api, limit: 4/1m}]")
	m := &Message{Policy: "shop", Generation: 7, Now: Content{1, now}, Candidate: &Candidate{Content: Content{2, next}, Share: 1000}}
	text := seal(t, m, keyOf(1))
	read, err := Open(text, "shop", publicOf(keyOf(2), keyOf(1)))
	if err != nil || read.Generation != 7 || read.Now.Document.Hash() != now.Hash() || read.Candidate.Document.Hash() != next.Hash() || read.Candidate.Share != 1000 {
		t.Fatalf("%+v, %v", read, err)
	}
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		if m, err := Open(changed, "shop", publicOf(keyOf(1))); err == nil && (m.Generation != 7 || m.Now.Document.Hash() != now.Hash()) {
			t.Errorf("with byte %d changed, the message is opened as %+v", i, m)
		}
	}
	for what, c := range map[string]struct {
		text   []byte
		policy string
		want   string
	}{
		"another key":        {seal(t, m, keyOf(3)), "shop", "not signed by a key that this node trusts"},
		"another policy":     {text, "other", `is "shop" and not "other"`},
		"another generation": {bytes.Replace(text, []byte(`"generation":7`), []byte(`"generation":8`), 1), "shop", "not signed"},
		"nothing":            {nil, "shop", "broken"},
		"a part":             {text[:len(text)-9], "shop", "not signed"},
		"too much":           {append(bytes.Clone(text), make([]byte, TextBytesMax)...), "shop", "at most"},
		"a form for clients": {bytes.Replace(text, []byte(`"v":1`), []byte(`"v":2`), 1), "shop", "not signed"},
		"another form":       {bytes.Replace(text, []byte(`"v":1`), []byte(`"v":3`), 1), "shop", "the release of the control plane"},
	} {
		if _, err := Open(c.text, c.policy, publicOf(keyOf(1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
		if IsSigned(c.text, c.policy, publicOf(keyOf(1))) {
			t.Errorf("%s: it counts as signed", what)
		}
	}
	for text, want := range map[string]int64{string(text): 7, "": 0, "nonsense\n": 0, strings.Repeat(" ", headerBytesMax) + string(text): 0} {
		if got := Generation([]byte(text)); got != want {
			t.Errorf("the generation of %.40q is %d, want %d", text, got, want)
		}
	}
	if !IsSigned(text, "shop", publicOf(keyOf(2), keyOf(1))) || IsSigned(text, "shop", nil) {
		t.Error("the signature counts without its key, or not with it")
	}
	if _, err := Open(text, "shop", nil); err == nil {
		t.Error("without a key, a message is opened")
	}
}

// TestALargePolicy tests that 10,000 rules fit into a message, and that Seal returns an error for a
// policy that does not fit.
func TestALargePolicy(t *testing.T) {
	d := &policyfile.Document{Name: "shop"}
	for i := range 10_000 {
		d.Rules = append(d.Rules, policyfile.Rule{Name: fmt.Sprintf("rule-%d", i), Match: &policyfile.Match{Path: policyfile.Words{fmt.Sprintf("/api/%d/*", i)}},
			Limit: policyfile.Words{fmt.Sprintf("%d/1m", i+1)}})
	}
	m := &Message{Policy: "shop", Generation: 1, Now: Content{1, d}, Candidate: &Candidate{Content: Content{2, d}}}
	text := seal(t, m, keyOf(1))
	if read, err := Open(text, "shop", publicOf(keyOf(1))); err != nil || len(read.Now.Document.Rules) != 10_000 {
		t.Errorf("%d bytes: %v", len(text), err)
	}
	d.Rules[0].Response = &policyfile.Response{Body: strings.Repeat("x", 2*messageBytesMax)}
	if _, err := m.Seal(keyOf(1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a message of %d bytes: %v", 2*messageBytesMax, err)
	}
}

// TestSharesOfNodes tests that a share has about its part of the nodes, that a greater share has
// all nodes of a smaller one, and which revision each node has.
func TestSharesOfNodes(t *testing.T) {
	now, next := document(t, "name: shop\nrules: [{name: api, limit: 3/1m}]"), document(t, "name: shop\nrules: [{name: api, limit: 4/1m}]")
	m := &Message{Policy: "shop", Now: Content{1, now}, Candidate: &Candidate{Content: Content{2, next}}}
	if c, ok := m.Trial(); !ok || c.Revision != 2 || m.For("n").Revision != 1 {
		t.Errorf("in shadow: %+v, %t", c, ok)
	}
	before := map[string]bool{}
	for _, share := range []int32{500, 1000, 5000, 9000} {
		m.Candidate.Share = share
		if _, ok := m.Trial(); ok {
			t.Error("a candidate of a share is tried")
		}
		n := int32(0)
		for i := range 2000 {
			node := fmt.Sprintf("node-%d", i)
			has := m.For(node).Revision == 2
			if has {
				n++
			}
			if before[node] && !has {
				t.Errorf("%s has the candidate at a smaller share than %d, and not at this one", node, share)
			}
			before[node] = has
		}
		if got := n * shareAll / 2000; got < share-300 || got > share+300 {
			t.Errorf("a share of %d has %d of ten thousand nodes", share, got)
		}
	}
}

// TestSharesOfClients tests a candidate that is in force for a share of the clients. The message
// has a format version of its own, and opening it restores the candidate. The candidate is neither
// evaluated as a shadow policy nor in force for all clients of a node. If only the share changes,
// the salt that chooses the clients stays the same; another revision has another salt.
func TestSharesOfClients(t *testing.T) {
	now, next := document(t, "name: shop\nrules: [{name: api, limit: 3/1m}]"), document(t, "name: shop\nrules: [{name: api, limit: 4/1m}]")
	m := &Message{Policy: "shop", Generation: 7, Now: Content{1, now}, Candidate: &Candidate{Content: Content{2, next}, Share: 9999, Clients: true}}
	text := seal(t, m, keyOf(1))
	if !bytes.HasPrefix(text, []byte(`{"v":2,`)) {
		t.Errorf("an earlier release would read %.60s", text)
	}
	read, err := Open(text, "shop", publicOf(keyOf(1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := read.Trial(); ok || read.For("n").Revision != 1 {
		t.Error("a node has the candidate for all its clients, or compares it")
	}
	first := read.ForClients()
	if first == nil || first.Share != 9999 || first.Document.Hash() != next.Hash() {
		t.Fatalf("the candidate is %+v", first)
	}
	m.Generation, m.Candidate.Share = 8, 1
	if c := m.ForClients(); c.Share != 1 || c.Salt != first.Salt {
		t.Error("another step of the revision has other clients")
	}
	m.Candidate.Revision = 3
	if m.ForClients().Salt == first.Salt {
		t.Error("another revision has the same clients first")
	}
	m.Candidate.Share = 0
	if _, err := Open(seal(t, m, keyOf(1)), "shop", publicOf(keyOf(1))); err == nil {
		t.Error("a share of no clients is opened")
	}
	m.Candidate = nil
	if m.ForClients() != nil {
		t.Error("there is a candidate without one")
	}
}

// TestKeysAsText tests that keys are read back, and that a private key is not taken for a public
// one.
func TestKeysAsText(t *testing.T) {
	key := keyOf(1)
	if read, err := ParsePublic(PublicText(key.Public().(ed25519.PublicKey))); err != nil || !read.Equal(key.Public()) {
		t.Error(err)
	}
	if read, err := ParsePrivate(PrivateText(key) + "\n"); err != nil || !read.Equal(key) {
		t.Error(err)
	}
	if _, err := ParsePublic(PrivateText(key)); err == nil || !strings.Contains(err.Error(), "make a new pair") || strings.Contains(err.Error(), PrivateText(key)) {
		t.Error(err)
	}
	for _, text := range []string{"", "ed25519:", "ed25519:AAAA", "rsa:x"} {
		if _, err := ParsePublic(text); err == nil {
			t.Errorf("%q is read as a key", text)
		}
	}
}

// FuzzOpen tests that no text makes Open panic.
func FuzzOpen(f *testing.F) {
	m := &Message{Policy: "shop", Generation: 7, Now: Content{1, document(f, "name: shop\nrules: [{name: api, limit: 3/1m}]")}}
	f.Add(seal(f, m, keyOf(1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		if m, err := Open(text, "shop", publicOf(keyOf(1))); err == nil && (m.Now.Document == nil || m.Policy != "shop") {
			t.Errorf("%+v", m)
		}
	})
}
