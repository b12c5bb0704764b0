// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

// usesOf collects the arguments with which the directory calls Options.KeyUsed.
type usesOf struct {
	hashes [][32]byte
	away   bool // if set, nothing is noted
}

func (u *usesOf) note(hash [32]byte, _ int64) bool {
	u.hashes = append(u.hashes, hash)
	return !u.away
}

// TestUsesOfKeysAreNoted tests that the use of a valid key is recorded once in ten minutes, and
// that lookups in between allocate nothing. If a use cannot be recorded, the next use is recorded
// instead. No use of an invalid or made-up key is recorded.
func TestUsesOfKeysAreNoted(t *testing.T) {
	source, uses := new(directory.Memory), new(usesOf)
	later := func() time.Time { return time.Now().Add(time.Hour) } // so no record is due to be read
	d := open(t, directory.Options{Source: source, KeyUsed: uses.note, Now: later})
	const minute = 60 * counter.Second
	at := now()
	for name, key := range map[string]string{"valid": "a key", "off": "a key that is off"} {
		editKeys(t, source, creation(name, "user:u", key))
	}
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyDisable, Name: "off"})
	for key, want := range map[string]policy.CredentialState{"a key": policy.CredentialValid, "a key that is off": policy.CredentialInactive,
		"made up": policy.CredentialUnknown} {
		if _, state := askKey(t, d, key); state != want {
			t.Errorf("%s: %v, want %v", key, state, want)
		}
	}
	hash, _ := hashOf("a key")
	if len(uses.hashes) != 1 || uses.hashes[0] != hash {
		t.Fatalf("%x were noted, want %x once", uses.hashes, hash)
	}
	if n := testing.AllocsPerRun(1000, func() { d.FindKey(hash, at+minute) }); n != 0 || len(uses.hashes) != 1 {
		t.Errorf("%v allocations, and %d uses in ten minutes", n, len(uses.hashes))
	}
	for _, edit := range []struct {
		action directory.KeyAction
		want   policy.CredentialState
	}{{directory.KeyDisable, policy.CredentialInactive}, {directory.KeyEnable, policy.CredentialValid}} {
		editKeys(t, source, directory.KeyEdit{Action: edit.action, Name: "valid"})
		eventually.Until(t, 20*time.Second, string(edit.action)+" is in force", func() bool {
			_, state, _ := d.FindKey(hash, at+minute)
			return state == edit.want
		})
	}
	if len(uses.hashes) != 1 {
		t.Errorf("%d uses in ten minutes, after the record was read again", len(uses.hashes))
	}
	uses.away = true
	for n := range counter.Micros(3) {
		d.FindKey(hash, at+12*minute+n)
	}
	uses.away = false
	for n := range counter.Micros(3) {
		d.FindKey(hash, at+13*minute+n)
	}
	if len(uses.hashes) != 5 {
		t.Errorf("%d uses, want the first, three that were not noted, and one", len(uses.hashes))
	}
}
