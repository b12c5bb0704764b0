// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hashOf returns the SHA-256 of a key's text.
func hashOf(key string) (sum [32]byte, text string) {
	sum = sha256.Sum256([]byte(key))
	return sum, hex.EncodeToString(sum[:])
}

// creation returns the edit that creates a key.
func creation(name, client, key string) directory.KeyEdit {
	_, hash := hashOf(key)
	return directory.KeyEdit{Action: directory.KeyCreate, Name: name, Hash: hash, Record: &directory.KeyRecord{Name: name, Client: client}}
}

// editKeys makes a change of keys, and fails the test if it does not succeed.
func editKeys(t *testing.T, source directory.Source, edit directory.KeyEdit) *directory.KeysShown {
	t.Helper()
	edit.Actor, edit.Reason = "tester", "a test"
	editor := directory.Editor{Source: source}
	shown, err := editor.ApplyKey(t.Context(), edit)
	if err != nil {
		t.Fatalf("%s of %q: %v", edit.Action, edit.Name, err)
	}
	return shown
}

// askKey returns the owner and the state of a key, after the directory has read the key.
func askKey(t *testing.T, d *directory.Directory, key string) (*policy.Identity, policy.CredentialState) {
	t.Helper()
	hash, name := hashOf(key)
	for range 50 {
		if who, state, ok := d.FindKey(hash, now()); ok {
			return who, state
		}
		d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: policy.KindKey, ID: name}})
	}
	t.Fatalf("the key %q is not read", key)
	return nil, 0
}

// awaitState waits until a remembered key has the given state.
func awaitState(t *testing.T, d *directory.Directory, key string, want policy.CredentialState) {
	t.Helper()
	eventually.Until(t, 20*time.Second, fmt.Sprintf("the key %q is %s", key, want), func() bool {
		_, state := askKey(t, d, key)
		return state == want
	})
}

// TestKeyEditsAreInForce tests that each edit of a key takes effect in a process that has used the
// key before. The edits are create, rotate with an overlap, disable, enable, revoke and forget.
func TestKeyEditsAreInForce(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		d := open(t, directory.Options{Source: source})
		awaitState(t, d, "first", policy.CredentialUnknown)
		before, err := source.Changes(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		create := creation("acme", "user:u_42", "first")
		create.Record.Tier, create.Record.Limits = "gold", map[string][]string{"api": {"7/1m"}}
		editKeys(t, source, create)
		awaitState(t, d, "first", policy.CredentialValid)
		who, _ := askKey(t, d, "first")
		if who.Kind != "user" || who.ID != "u_42" || who.User != "u_42" || who.APIKey != "acme" || who.Tier != "gold" {
			t.Errorf("the owner is %+v", who)
		}
		_, name := hashOf("first")
		changes, err := source.Changes(t.Context(), before.Position)
		if want := (policy.ClientName{Kind: policy.KindKey, ID: name}); err != nil || !slices.Contains(changes.Names, want) {
			t.Errorf("a process that was not told finds %v, %v; want %v", changes.Names, err, want)
		}
		if set, ok := who.Overrides.Of("api"); !ok || set.Limits[0].Count() != 7 {
			t.Errorf("the limits are %+v", set)
		}
		_, second := hashOf("second")
		rotated := editKeys(t, source, directory.KeyEdit{Action: directory.KeyRotate, Name: "acme", Hash: second, Until: time.Now().Add(time.Hour)})
		if len(rotated.Keys) != 2 || rotated.Changed != 2 {
			t.Errorf("after the rotation: %+v", rotated)
		}
		awaitState(t, d, "second", policy.CredentialValid)
		if next, _ := askKey(t, d, "second"); next.Tier != "gold" || next.ID != "u_42" {
			t.Errorf("the next key has the owner %+v", next)
		}
		hash, _ := hashOf("first")
		eventually.Until(t, 20*time.Second, "the key before ends with the overlap", func() bool {
			_, state, _ := d.FindKey(hash, now()+2*3600*counter.Second)
			_, present, _ := d.FindKey(hash, now())
			return state == policy.CredentialLapsed && present == policy.CredentialValid
		})
		editKeys(t, source, directory.KeyEdit{Action: directory.KeyDisable, Name: "acme"})
		awaitState(t, d, "second", policy.CredentialInactive)
		editKeys(t, source, directory.KeyEdit{Action: directory.KeyEnable, Name: "acme"})
		awaitState(t, d, "second", policy.CredentialValid)
		editKeys(t, source, directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme", Hash: second[:8]})
		awaitState(t, d, "second", policy.CredentialRevoked)
		awaitState(t, d, "first", policy.CredentialValid)
		editKeys(t, source, directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"})
		awaitState(t, d, "first", policy.CredentialRevoked)
		editKeys(t, source, directory.KeyEdit{Action: directory.KeyForget, Name: "acme"})
		awaitState(t, d, "first", policy.CredentialUnknown)
		if page, err := (&directory.Editor{Source: source}).KeyPage(t.Context(), directory.KeyQuery{Most: 10}); err != nil || len(page.Keys) != 0 {
			t.Errorf("after all is forgotten: %+v, %v", page, err)
		}
		history, err := source.History(t.Context(), policy.ClientName{Kind: "user", ID: "u_42"}, 100)
		if err != nil || len(history) != 11 || history[10].Action != "key create acme tier gold api 7/1m" {
			t.Errorf("the history of the client has %d entries, %v: %+v", len(history), err, history)
		}
	})
}

// TestWrongKeyEdits tests that an invalid edit is rejected, with the reason, and changes nothing.
func TestWrongKeyEdits(t *testing.T) {
	source := new(directory.Memory)
	editKeys(t, source, creation("acme", "api_key:acme", "first"))
	_, other := hashOf("other")
	change := func(edit directory.KeyEdit, with func(*directory.KeyEdit)) directory.KeyEdit {
		with(&edit)
		return edit
	}
	fresh := creation("new", "user:u", "other")
	for _, c := range []struct {
		edit directory.KeyEdit
		want string
	}{
		{creation("acme", "api_key:acme", "other"), `there is a key of the name "acme"`},
		{creation("new", "api_key:acme", "first"), "is in the directory under this or another name"},
		{creation("new", "tenant:t", "other"), "cannot have a key"},
		{creation("new", "ip:192.0.2.1", "other"), "cannot have a key"},
		{creation("a\nb", "user:u", "other"), "has a control character"},
		{creation(" a", "user:u", "other"), "begins or ends with a space"},
		{creation(strings.Repeat("x", 256), "user:u", "other"), "has 256 bytes"},
		{change(fresh, func(e *directory.KeyEdit) { e.Record.Limits = map[string][]string{"api": {"7"}} }), `limits for rule "api"`},
		{change(creation("new", "user:u", "other"), func(e *directory.KeyEdit) { e.Record.User = "v" }), "leave the user out"},
		{change(creation("new", "user:u", "other"), func(e *directory.KeyEdit) { e.Record.ExpiresAt = time.Now().Add(-time.Hour) }), "is not in the future: it is " + time.Now().UTC().Format("2006-")},
		{change(creation("new", "user:u", "other"), func(e *directory.KeyEdit) {
			e.Record.ExpiresAt, e.Record.NotBefore = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), "would never be valid"},
		{directory.KeyEdit{Action: directory.KeyCreate, Name: "new", Hash: "pk_the_key_itself", Record: fresh.Record}, "is not a SHA-256"},
		{directory.KeyEdit{Action: directory.KeyRotate, Name: "nobody", Hash: other}, "there is no API key of the name"},
		{directory.KeyEdit{Action: directory.KeyRevoke, Name: "nobody"}, "there is no API key of the name"},
		{directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme", Hash: "ffffffff"}, "no key of \"acme\" has a hash"},
		{directory.KeyEdit{Action: directory.KeyEnable, Name: "acme"}, "has been changed"},
		{directory.KeyEdit{Action: directory.KeyForget, Name: "acme"}, "revoke it first"},
		{directory.KeyEdit{Action: "renew", Name: "acme"}, "is unknown"},
		{directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme", Until: time.Now().Add(time.Hour)}, "go with rotate only"},
	} {
		c.edit.Actor, c.edit.Reason = "tester", "a test"
		editor := directory.Editor{Source: source}
		if _, err := editor.ApplyKey(t.Context(), c.edit); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %.20q: %v, want %q", c.edit.Action, c.edit.Name, err, c.want)
		}
	}
	page, err := (&directory.Editor{Source: source}).KeyPage(t.Context(), directory.KeyQuery{Most: 10})
	if err != nil || len(page.Keys) != 1 || page.Keys[0].State != "valid" {
		t.Errorf("the keys are %+v, %v", page, err)
	}
}

// TestKeysOfAClient tests that the pages of one client's keys have all of its keys and no others,
// although other keys are between them in the order of names.
func TestKeysOfAClient(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		var want []string
		for i := range 30 {
			name, client := fmt.Sprintf("k%02d", i), "user:other"
			if i%4 == 0 {
				client = "user:ann"
			}
			editKeys(t, source, creation(name, client, name))
			if i%4 == 0 {
				_, hash := hashOf(name + " again")
				editKeys(t, source, directory.KeyEdit{Action: directory.KeyRotate, Name: name, Hash: hash, Until: time.Now().Add(time.Hour)})
				want = append(want, name, name)
			}
		}
		editKeys(t, source, creation("ann", "api_key:ann", "of another kind"))
		editor := directory.Editor{Source: source}
		for _, most := range []int{1, 3, 4, 1000} {
			var got []string
			for pages, after := 0, ""; pages == 0 || after != ""; pages++ {
				page, err := editor.KeyPage(t.Context(), directory.KeyQuery{Client: "user:ann", After: after, Most: most})
				if err != nil || len(page.Keys) > most+1 {
					t.Fatalf("a page of %d keys, %v", len(page.Keys), err)
				}
				for _, key := range page.Keys {
					if key.Record.Client != "user:ann" {
						t.Errorf("a key of %s is listed", key.Record.Client)
					}
					got = append(got, key.Record.Name)
				}
				after = page.After
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d have %v, want %v", most, got, want)
			}
		}
		for _, client := range []string{"tenant:t", "ip:192.0.2.1", "ann", "user:"} {
			if _, err := editor.KeyPage(t.Context(), directory.KeyQuery{Client: client, Most: 1}); !errors.Is(err, directory.ErrEdit) {
				t.Errorf("the keys of %q: %v", client, err)
			}
		}
	})
}

// TestKeyPages tests that a list is read page by page in the order of the names, that keys of one
// name stay on one page, and that no key is left out.
func TestKeyPages(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		var want []string
		for i := range 25 {
			name := fmt.Sprintf("k%02d", i)
			editKeys(t, source, creation(name, "user:u", name))
			if want = append(want, name); i%5 == 4 {
				_, hash := hashOf(name + " again")
				editKeys(t, source, directory.KeyEdit{Action: directory.KeyRotate, Name: name, Hash: hash, Until: time.Now().Add(time.Hour)})
				want = append(want, name)
			}
		}
		editor := directory.Editor{Source: source}
		var got []string
		for pages, after := 0, ""; pages == 0 || after != ""; pages++ {
			page, err := editor.KeyPage(t.Context(), directory.KeyQuery{After: after, Most: 5})
			if err != nil || len(page.Keys) > 6 {
				t.Fatalf("a page of %d keys, %v", len(page.Keys), err)
			}
			for _, key := range page.Keys {
				got = append(got, key.Record.Name)
			}
			after = page.After
		}
		if !slices.Equal(got, want) {
			t.Errorf("the pages have %v, want %v", got, want)
		}
	})
}

// TestKeyEditsAtOnce tests that if many operators create keys of one name at once, one succeeds and
// the keys of the other operators are invalid. The test also tests that a concurrent rotation does
// not undo a revocation.
func TestKeyEditsAtOnce(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		editor := directory.Editor{Source: source}
		apply := func(edit directory.KeyEdit) error {
			edit.Actor, edit.Reason = "tester", "a test"
			_, err := editor.ApplyKey(context.Background(), edit)
			if err != nil && !errors.Is(err, directory.ErrEdit) {
				t.Error(err)
			}
			return err
		}
		const operators = 8
		created := make([]bool, operators)
		var group sync.WaitGroup
		for i := range operators {
			group.Go(func() { created[i] = apply(creation("acme", "user:u", fmt.Sprint("key ", i))) == nil })
		}
		group.Wait()
		d := open(t, directory.Options{Source: source})
		valid := 0
		for i, ok := range created {
			_, state := askKey(t, d, fmt.Sprint("key ", i))
			if ok != (state == policy.CredentialValid) {
				t.Errorf("the key %d: created %v, %v", i, ok, state)
			}
			if ok {
				valid++
			}
		}
		if shown, err := editor.KeysOf(t.Context(), "acme"); err != nil || valid != 1 || len(shown.Keys) != 1 {
			t.Fatalf("%d keys are valid, %d are listed, %v", valid, len(shown.Keys), err)
		}
		winner := fmt.Sprint("key ", slices.Index(created, true))
		group.Go(func() { _ = apply(directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"}) })
		_, next := hashOf("next")
		group.Go(func() {
			_ = apply(directory.KeyEdit{Action: directory.KeyRotate, Name: "acme", Hash: next, Until: time.Now().Add(time.Hour)})
		})
		group.Wait()
		awaitState(t, d, winner, policy.CredentialRevoked)
	})
}

// TestBadKeyRecords tests that a record of another type or of a later version makes its key unknown
// and is counted, and that a command can remove it.
func TestBadKeyRecords(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	d := open(t, directory.Options{Source: source})
	for i, text := range []string{"", "{}", "null", "[]", `{"name":"a"}`, `{"name":"a","client":"ip:192.0.2.1"}`, `{"v":2,"name":"a","client":"user:u"}`,
		`{"name":"a","client":"user:u","admin":true}`, `{"name":"a","client":"user:u"} x`, `{"name":"a","client":"user:u","state":"on"}`,
		strings.Repeat("x", directory.RecordBytesMax+1)} {
		_, hash := hashOf(fmt.Sprint(i))
		if err := server.Client().Set(t.Context(), "rl1:~key:"+hash, text, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, state := askKey(t, d, fmt.Sprint(i)); state != policy.CredentialUnknown {
			t.Errorf("%.60q: %v", text, state)
		}
	}
	_, hash := hashOf("list")
	server.Client().LPush(t.Context(), "rl1:~key:"+hash, "x")
	if _, state := askKey(t, d, "list"); state != policy.CredentialUnknown || d.Figures().Bad.Load() < 12 {
		t.Errorf("a list: %v; %d bad records are counted, want 12 or more", state, d.Figures().Bad.Load())
	}
	editKeys(t, source, creation("acme", "user:u", "good"))
	_, hash = hashOf("good")
	server.Client().Set(t.Context(), "rl1:~key:"+hash, "garbage", 0)
	if shown, err := (&directory.Editor{Source: source}).KeysOf(t.Context(), "acme"); err != nil || len(shown.Keys) != 1 || shown.Keys[0].State != "bad" {
		t.Errorf("a bad record is shown as %+v, %v", shown, err)
	}
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyForget, Name: "acme"})
	editKeys(t, source, creation("acme", "user:u", "good"))
	if _, state := askKey(t, d, "good"); state != policy.CredentialValid {
		t.Errorf("the key of a name that was bad: %v", state)
	}
}

// TestKeysWhileRedisIsAway tests that, while Redis does not answer, a key that was used before
// stays valid, and any other key is unknown.
func TestKeysWhileRedisIsAway(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	d := open(t, directory.Options{Source: source})
	editKeys(t, source, creation("acme", "user:u", "seen"))
	editKeys(t, source, creation("other", "user:v", "never seen"))
	awaitState(t, d, "seen", policy.CredentialValid)
	server.Kill()
	hash, name := hashOf("never seen")
	eventually.Until(t, 20*time.Second, "the directory knows that Redis is away", func() bool {
		return d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: policy.KindKey, ID: name}}) && d.Figures().Failures.Load() > 0
	})
	if _, _, ok := d.FindKey(hash, now()); ok {
		t.Error("a key is known that was never read")
	}
	seen, _ := hashOf("seen")
	if _, state, ok := d.FindKey(seen, now()+3600*counter.Second); !ok || state != policy.CredentialValid {
		t.Errorf("a key that was seen: %v, %v", state, ok)
	}
	server.Restart()
	before := d.Figures().Undirected.Load()
	eventually.Until(t, 20*time.Second, "the key is read again, when Redis is back without its records", func() bool {
		_, _, _ = d.FindKey(seen, now()+3600*counter.Second)
		return d.Figures().Undirected.Load() > before
	})
	if _, state := askKey(t, d, "seen"); state != policy.CredentialValid {
		t.Errorf("a key that was seen, over a Redis that lost its records: %v", state)
	}
}

// TestManyMadeUpKeys tests that made-up keys take bounded memory, and evict neither clients nor a
// key that is used.
func TestManyMadeUpKeys(t *testing.T) {
	source := new(directory.Memory)
	d := open(t, directory.Options{Source: source, ClientsMax: 640})
	editKeys(t, source, creation("acme", "user:u", "used"))
	fetch(t, d, "user", "u")
	for i := range 5000 {
		askKey(t, d, fmt.Sprint("made up ", i))
		if i%10 == 0 {
			askKey(t, d, "used")
		}
	}
	reads := d.Figures().Reads.Load()
	if _, state := askKey(t, d, "used"); state != policy.CredentialValid || d.Figures().Reads.Load() != reads {
		t.Errorf("the key that is used: %v", state)
	}
	if _, ok := d.Find("user", "u", now()); !ok || d.KeysLen() > 640 {
		t.Errorf("the client is remembered: %v; %d keys are", ok, d.KeysLen())
	}
}

// TestKnownKeysDoNotAllocate tests that the lookup of a remembered key allocates nothing.
func TestKnownKeysDoNotAllocate(t *testing.T) {
	source := new(directory.Memory)
	d := open(t, directory.Options{Source: source})
	editKeys(t, source, creation("acme", "user:u", "a key"))
	askKey(t, d, "a key")
	hash, _ := hashOf("a key")
	at := now()
	if n := testing.AllocsPerRun(1000, func() { d.FindKey(hash, at) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzKeyRecord tests that any text is either parsed or rejected as a record, and that a parsed
// record is the same after it is written and read again.
func FuzzKeyRecord(f *testing.F) {
	for _, text := range []string{"{}", `{"name":"a","client":"user:u"}`, `{"v":2,"name":"a","client":"user:u"}`, "[]", "",
		`{"name":"a","client":"api_key:a","user":"u","tenant":"t","tier":"gold","limits":{"api":["5/1m"],"*":["unlimited"]},"state":"inactive",` +
			`"not_before":"2026-11-27T00:00:00Z","expires_at":"2027-11-27T00:00:00Z","revoked":{"at":"2026-12-27T00:00:00Z","by":"x","reason":"y"}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := directory.ParseKeyRecord(text)
		if err != nil {
			return
		}
		written := r.Text()
		again, err := directory.ParseKeyRecord(written)
		if err != nil || string(again.Text()) != string(written) {
			t.Errorf("%q was written as %q and read as %+v, %v", text, written, again, err)
		}
	})
}
