// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
)

// hashed returns the SHA-256 of a text.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func mustKey(t *testing.T, l *Ledger, e directory.KeyEdit) *KeysChanged {
	t.Helper()
	e.Reason = "a test"
	done, err := l.EditKeys(t.Context(), ops, e)
	if err != nil {
		t.Fatalf("%s: %v", e.String(), err)
	}
	return done
}

func newKeyOf(client, name string) directory.KeyEdit {
	return directory.KeyEdit{Action: directory.KeyCreate, Name: name, Hash: hashed(name), Record: &directory.KeyRecord{Name: name, Client: client}}
}

// TestKeysAreEditedAsInADirectory makes the same edits in the database and in a directory, and
// compares the records after each.
func TestKeysAreEditedAsInADirectory(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustTier(t, l, "gold")
	now := start
	l.Now = func() time.Time { return now }
	editor := directory.Editor{Source: new(directory.Memory), Now: l.Now}
	full := newKeyOf("api_key:acme", "acme")
	full.Record.User, full.Record.Tenant, full.Record.Tier = "u_42", "t_1", "gold"
	full.Record.Limits = map[string][]string{"api": {"500/1h", "9/1s"}, "*": {"unlimited"}}
	full.Record.NotBefore, full.Record.ExpiresAt = start.Add(-time.Hour), start.Add(300*24*time.Hour)
	imported := newKeyOf("api_key:acme", "acme")
	imported.Import, imported.Hash = true, hashed("imported")
	imported.Record.Revoked = &directory.Revocation{At: start.Add(-time.Minute), By: "ops", Reason: "leaked"}
	for i, e := range []directory.KeyEdit{
		full, full, {Action: directory.KeyDisable}, {Action: directory.KeyDisable}, {Action: directory.KeyRotate, Hash: hashed("2")}, {Action: directory.KeyEnable},
		{Action: directory.KeyRotate, Hash: hashed("2"), Until: start.Add(24 * time.Hour)}, {Action: directory.KeyRotate, Hash: hashed("2")},
		{Action: directory.KeyRotate, Hash: hashed("3"), ExpiresAt: start.Add(90 * 24 * time.Hour)}, imported, imported,
		{Action: directory.KeyRevoke, Hash: hashed("2")[:6]}, {Action: directory.KeyRevoke, Hash: "ffffffff"}, {Action: directory.KeyRevoke},
		{Action: directory.KeyForget}, {Action: directory.KeyForget}, {Action: directory.KeyRevoke},
	} {
		now = now.Add(time.Minute)
		e.Name, e.Actor, e.Reason = "acme", "ops", "a test"
		want, wrong := editor.ApplyKey(t.Context(), e)
		got, err := l.EditKeys(t.Context(), ops, e)
		if (wrong == nil) != (err == nil) || wrong != nil && !errors.Is(wrong, directory.ErrNoKey) && wrong.Error() != err.Error() {
			t.Fatalf("%d %s: %v in the database, %v in a directory", i, e.String(), err, wrong)
		}
		if wrong != nil {
			continue
		}
		keys := func(n int, key func(int) (string, string, *directory.KeyRecord)) (all []string) {
			for i := range n {
				hash, state, r := key(i)
				all = append(all, hash+" "+state+" "+string(r.Text()))
			}
			slices.Sort(all)
			return all
		}
		rows := keys(len(got.Keys), func(i int) (string, string, *directory.KeyRecord) {
			return got.Keys[i].Hash, got.Keys[i].State, got.Keys[i].Record
		})
		records := keys(len(want.Keys), func(i int) (string, string, *directory.KeyRecord) {
			return want.Keys[i].Hash, want.Keys[i].State, want.Keys[i].Record
		})
		if !slices.Equal(rows, records) || got.Changed != want.Changed {
			t.Errorf("%d %s changed %d to\n%s\nand in a directory %d to\n%s", i, e.String(), got.Changed, strings.Join(rows, "\n"), want.Changed, strings.Join(records, "\n"))
		}
	}
	changes, err := l.History(t.Context(), WhatKey, "acme", 0, 100)
	if err != nil || len(changes) == 0 || changes[0].Actor != "ops" || !strings.Contains(*changes[0].Before, `{"hash":"`) || changes[0].After != nil {
		t.Errorf("the audit trail has %d changes of the keys, %v", len(changes), err)
	}
	if _, broken, err := l.Verify(t.Context()); err != nil || broken != "" {
		t.Errorf("the audit trail: %q, %v", broken, err)
	}
}

// TestKeysThatAreNotValidChangeNothing tests that each invalid write returns an Invalid, and adds
// no change.
func TestKeysThatAreNotValidChangeNothing(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustKey(t, l, newKeyOf("user:ann", "ann"))
	for text, alter := range map[string]func(*directory.KeyEdit){
		"cannot have a key":               func(e *directory.KeyEdit) { e.Record.Client = "tenant:t" },
		"has no form KIND:ID":             func(e *directory.KeyEdit) { e.Record.Client = "bob" },
		`there is no tier "golden"`:       func(e *directory.KeyEdit) { e.Record.Tier = "golden" },
		"limits for rule":                 func(e *directory.KeyEdit) { e.Record.Limits = map[string][]string{"api": {"5/bogus"}} },
		"is not in the future":            func(e *directory.KeyEdit) { e.Record.ExpiresAt = start },
		"only an import can create a key": func(e *directory.KeyEdit) { e.Record.Revoked = &directory.Revocation{At: start} },
		"is no SHA-256":                   func(e *directory.KeyEdit) { e.Hash = "pk_secret" },
		"under this or another name":      func(e *directory.KeyEdit) { e.Hash = hashed("ann") },
		"has a control character":         func(e *directory.KeyEdit) { e.Name, e.Record.Name = "a\x00b", "a\x00b" },
		"tenant has a control character":  func(e *directory.KeyEdit) { e.Record.Tenant = "\u009b" },
		"a reason is missing":             func(e *directory.KeyEdit) { e.Reason = "" },
	} {
		e := newKeyOf("user:bob", "bob")
		e.Reason = "a test"
		alter(&e)
		_, err := l.EditKeys(t.Context(), ops, e)
		invalid := (*Invalid)(nil)
		if !errors.As(err, &invalid) || !strings.Contains(strings.Replace(invalid.Text, "not a SHA-256", "is no SHA-256", 1), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := l.EditKeys(t.Context(), ops, directory.KeyEdit{Action: directory.KeyRevoke, Name: "nobody", Reason: "x"}); !errors.Is(err, ErrNone) {
		t.Errorf("a name without keys: %v", err)
	}
	if changes, err := l.History(t.Context(), "", "", 0, 10); err != nil || len(changes) != 1 {
		t.Errorf("%d changes, %v; want only that of ann's key", len(changes), err)
	}
}

// TestForgettingAClientRemovesItsKeys tests that forgetting a client removes the keys that identify
// the client and the keys that belong to it, each with a change of its own, and no other keys.
func TestForgettingAClientRemovesItsKeys(t *testing.T) {
	t.Parallel()
	l := open(t)
	owned := newKeyOf("api_key:ci", "ci")
	owned.Record.User = "ann"
	for _, e := range []directory.KeyEdit{newKeyOf("user:ann", "one"), newKeyOf("user:ann", "two"), owned, newKeyOf("user:anna", "other"), newKeyOf("api_key:ann", "ann")} {
		mustKey(t, l, e)
	}
	if changed := mustEdit(t, l, directory.Edit{Client: "user:ann", Action: directory.ActionForget}); changed.Keys != 3 {
		t.Errorf("%d keys were removed", changed.Keys)
	}
	left, err := l.Keys(t.Context(), "", nil, 10)
	if err != nil || len(left) != 2 || left[0].Record.Name != "ann" || left[1].Record.Name != "other" {
		t.Errorf("left are %+v, %v", left, err)
	}
	changes, err := l.History(t.Context(), WhatKey, "ci", 0, 10)
	if err != nil || len(changes) != 2 || changes[0].Action != "forget user:ann" || changes[0].After != nil {
		t.Errorf("the changes of a removed key are %+v, %v", changes, err)
	}
}

// TestKeysArePagedByName tests that pages contain each key once, even if a name has several keys.
func TestKeysArePagedByName(t *testing.T) {
	t.Parallel()
	l := open(t)
	for i := range 3 {
		name := fmt.Sprintf("k_%d", i)
		mustKey(t, l, newKeyOf("user:ann", name))
		for j := range i {
			mustKey(t, l, directory.KeyEdit{Action: directory.KeyRotate, Name: name, Hash: hashed(fmt.Sprint(name, j)), Until: start.Add(time.Hour)})
		}
	}
	mustKey(t, l, newKeyOf("api_key:k_1x", "k_1x"))
	for client, want := range map[string]string{"": "k_0 k_1 k_1 k_1x k_2 k_2 k_2", "user:ann": "k_0 k_1 k_1 k_2 k_2 k_2", "api_key:none": ""} {
		var got []string
		seen, after := map[string]bool{}, (*KeyPlace)(nil)
		for {
			page, err := l.Keys(t.Context(), client, after, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range page {
				if seen[k.Hash] {
					t.Errorf("the key %.8s comes twice", k.Hash)
				}
				seen[k.Hash], after = true, &KeyPlace{k.Record.Name, k.Hash}
				got = append(got, k.Record.Name)
			}
			if len(page) < 2 {
				break
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("of %q: %v, want %s", client, got, want)
		}
	}
	if _, err := l.Keys(t.Context(), "tenant:t", nil, 2); err == nil || !strings.Contains(err.Error(), "cannot have a key") {
		t.Errorf("keys of a tenant: %v", err)
	}
}
