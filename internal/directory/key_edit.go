// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core/policy"
)

// KeyAction is the kind of an edit of keys.
type KeyAction string

// The actions.
const (
	KeyCreate  KeyAction = "create"  // creates a key with a new name; with KeyEdit.Import, also a further key of an existing name
	KeyRotate  KeyAction = "rotate"  // creates a key that replaces the other keys of its name, which stay valid until KeyEdit.Until
	KeyRevoke  KeyAction = "revoke"  // revokes the keys of a name, or only the key with KeyEdit.Hash
	KeyDisable KeyAction = "disable" // switches the keys of a name off
	KeyEnable  KeyAction = "enable"  // switches the keys of a name on
	KeyForget  KeyAction = "forget"  // removes the keys of a name that are revoked or have expired
)

// KeyActions are all actions, in the order in which help lists them.
var KeyActions = []KeyAction{KeyCreate, KeyRotate, KeyRevoke, KeyDisable, KeyEnable, KeyForget}

// KeyEdit is one change of the keys of a name.
type KeyEdit struct {
	Action KeyAction `json:"action"`
	Name   string    `json:"name"`
	// For create and rotate, Hash is the SHA-256 of the new key, in hexadecimal. For revoke, Hash
	// is the beginning of the hash of the key to revoke.
	Hash   string `json:"hash,omitempty"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`

	// Record is the record of the new key, for create. Record.Name must be Name.
	Record *KeyRecord `json:"record,omitempty"`
	// With Import, the action create can add a key to a name that already has keys. If the key
	// already exists, nothing changes.
	Import bool `json:"import,omitempty"`
	// ExpiresAt is the end of the new key, for rotate. Zero means the end of the key that it
	// replaces.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// Until is when the other keys of the name expire, for rotate. Zero means now.
	Until time.Time `json:"until,omitzero"`
}

// StoredKey is a key as operators see it.
type StoredKey struct {
	Hash   string     `json:"hash"`   // the SHA-256 of the key
	State  string     `json:"state"`  // "valid", "revoked", "inactive", "lapsed", or "bad" for a record that has no force
	Record *KeyRecord `json:"record"` // nil if the record has no force
	// LastUsedAt is when the key was last used, if a control plane knows it.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`

	text []byte
}

// KeysShown are the keys of one name, or a page of all keys.
type KeysShown struct {
	Keys []StoredKey `json:"keys"`
	// Changed is how many keys the edit has changed.
	Changed int `json:"changed,omitempty"`
	// After is the name after which the next page begins, or "" on the last page.
	After string `json:"after,omitempty"`
}

// ApplyKey makes an edit of keys. ApplyKey returns errors like [Editor.Apply].
func (e *Editor) ApplyKey(ctx context.Context, edit KeyEdit) (*KeysShown, error) {
	if err := edit.check(e.now()); err != nil {
		return nil, err
	}
	if generation, err := e.Source.Generation(ctx); err != nil {
		return nil, err
	} else if strings.HasPrefix(generation, ControlledKeysPrefix) {
		return nil, newEditError("a control plane owns this directory, and would undo the change: make it there, with penstock key --control URL")
	}
	keys, err := e.keysNamed(ctx, edit.Name, true)
	if err != nil {
		return nil, err
	}
	var changed int
	switch edit.Action {
	case KeyCreate:
		changed, err = e.create(ctx, &edit, keys)
	case KeyRotate:
		changed, err = e.rotate(ctx, &edit, keys)
	case KeyForget:
		changed, err = e.forget(ctx, &edit, keys)
	default:
		changed, err = e.changeKeys(ctx, &edit, keys)
	}
	if err != nil {
		return nil, err
	}
	shown, err := e.keysNamed(ctx, edit.Name, false)
	return &KeysShown{Keys: shown, Changed: changed}, err
}

// Editor.now returns the time of the editor.
func (e *Editor) now() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

// KeyEdit.check returns an error if the edit itself is not valid.
func (e *KeyEdit) check(now time.Time) error {
	makes := e.Action == KeyCreate || e.Action == KeyRotate
	switch {
	case !slices.Contains(KeyActions, e.Action):
		return newEditError("action %q is unknown; there are: %q", e.Action, KeyActions)
	case e.Name == "":
		return newEditError("the name of a key is missing")
	case makes && !isHash(e.Hash):
		return newEditError("the hash of the new key is not a SHA-256 in 64 lower-case hexadecimal digits")
	case e.Hash != "" && !makes && e.Action != KeyRevoke:
		return newEditError("hash does not go with %s", e.Action)
	case (e.Record != nil) != (e.Action == KeyCreate):
		return newEditError("create needs a record, and no other action takes one")
	case e.Import && e.Action != KeyCreate:
		return newEditError("import goes with create only")
	case e.Action != KeyRotate && !(e.Until.IsZero() && e.ExpiresAt.IsZero()):
		return newEditError("until and expires_at go with rotate only")
	}
	for _, end := range []time.Time{e.Until, e.ExpiresAt} {
		if err := checkFuture(end, now); err != nil {
			return err
		}
	}
	if err := checkText("name", e.Name, policy.ValueBytesMax); err != nil {
		return newEditError("%v", err)
	}
	if e.Record != nil {
		if e.Record.Name != e.Name {
			return newEditError("the record has the name %q, and the edit is of %q", e.Record.Name, e.Name)
		}
		if err := e.Record.Check(); err != nil {
			return newEditError("%v", err)
		}
		if err := checkFuture(e.Record.ExpiresAt, now); err != nil && !e.Import {
			return err
		}
	}
	return checkWhy(e.Actor, e.Reason)
}

// checkFuture returns an error for an end that has passed. The zero time means no end.
func checkFuture(end, now time.Time) error {
	if !end.IsZero() && !end.After(now) {
		return newEditError("the end %s is not in the future: it is %s now", end.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	return nil
}

// keysNamed returns the keys of a name, those in force first. If the parameter named mend is set,
// keysNamed removes from the name the keys that have no record. A removal that was interrupted
// between its two steps leaves such keys.
func (e *Editor) keysNamed(ctx context.Context, name string, mend bool) ([]StoredKey, error) {
	hashes, err := e.Source.KeyHashes(ctx, name)
	if err != nil {
		return nil, err
	}
	names := make([]KeyName, len(hashes))
	for i, hash := range hashes {
		names[i] = KeyName{name, hash}
	}
	keys, err := e.readKeys(ctx, names)
	for _, one := range names {
		known := slices.ContainsFunc(keys, func(k StoredKey) bool { return k.Hash == one.Hash })
		if mend && err == nil && !known {
			err = e.Source.DropKey(ctx, one)
		}
	}
	slices.SortStableFunc(keys, func(a, b StoredKey) int { return a.rank() - b.rank() })
	return keys, err
}

// StoredKey.rank returns 0 for a valid key, and 1 for any other.
func (k *StoredKey) rank() int {
	if k.State == policy.CredentialValid.String() {
		return 0
	}
	return 1
}

// readKeys reads the records of keys. Keys without a record are left out.
func (e *Editor) readKeys(ctx context.Context, names []KeyName) ([]StoredKey, error) {
	keys := []StoredKey{}
	if len(names) == 0 {
		return keys, nil
	}
	records, texts := make([]policy.ClientName, len(names)), make([][]byte, len(names))
	for i, name := range names {
		records[i] = name.Record()
	}
	if err := e.Source.Read(ctx, records, texts); err != nil {
		return nil, err
	}
	for i, text := range texts {
		if text != nil {
			keys = append(keys, e.stored(names[i], text))
		}
	}
	return keys, nil
}

// Editor.stored returns a key from the text of its record.
func (e *Editor) stored(name KeyName, text []byte) StoredKey {
	k := StoredKey{Hash: name.Hash, State: "bad", text: text}
	if r, err := ParseKeyRecord(text); err == nil && r.Name == name.Name {
		k.Record, k.State = r, r.StateAt(e.now()).String()
	}
	return k
}

// Editor.create writes the record of a new key, and then adds it to its name. In the opposite
// order, the name would have a key without a record for a moment, and another operator could take
// it for a free name.
func (e *Editor) create(ctx context.Context, edit *KeyEdit, keys []StoredKey) (changed int, err error) {
	if len(keys) > 0 && !edit.Import {
		return 0, newEditError("there is a key of the name %q; choose another name, or rotate that key", edit.Name)
	}
	name := KeyName{edit.Name, edit.Hash}
	if edit.Import {
		known, err := e.known(ctx, name, edit.Record)
		if err != nil || known {
			return 0, err
		}
	}
	return 1, e.addKey(ctx, edit, edit.Record, keys, edit.String())
}

// Editor.known reports whether a key to import already has this record. If the key has another
// record, the method returns an error.
func (e *Editor) known(ctx context.Context, name KeyName, record *KeyRecord) (bool, error) {
	found, err := e.readKeys(ctx, []KeyName{name})
	if err != nil || len(found) == 0 {
		return false, err
	}
	same := *record
	if present := found[0].Record; present != nil && present.Revoked != nil && same.Revoked != nil {
		same.Revoked = present.Revoked // because the imported file does not contain the time
	}
	if string(same.Text()) != string(found[0].text) {
		return false, newEditError("the key %.12s… of %q is in the directory with another record; rotate or revoke it there, or take it out of the file",
			name.Hash, name.Name)
	}
	hashes, err := e.Source.KeyHashes(ctx, name.Name)
	if err == nil && !slices.Contains(hashes, name.Hash) { // an earlier import was interrupted between its two steps
		_, err = e.Source.AddKey(ctx, name, len(hashes))
	}
	return true, err
}

// addKey writes the record of a new key and adds it to its name. If another edit changes the name
// meanwhile, the method deletes the record.
func (e *Editor) addKey(ctx context.Context, edit *KeyEdit, record *KeyRecord, keys []StoredKey, action string) error {
	if len(keys) >= KeysOfNameMax {
		return newEditError("%q has %d keys, and no more can be; forget those that have ended", edit.Name, len(keys))
	}
	name, text := KeyName{edit.Name, edit.Hash}, record.Text()
	swapped, err := e.Source.Swap(ctx, name.Record(), nil, text, e.entry(edit, name, record, nil, text, action))
	switch {
	case err != nil:
		return err
	case !swapped:
		return newEditError("the key %.12s… is in the directory under this or another name", name.Hash)
	}
	added, err := e.Source.AddKey(ctx, name, len(keys))
	if err != nil || added {
		return err
	}
	if _, err := e.Source.Swap(ctx, name.Record(), text, nil, e.entry(edit, name, record, text, nil, "take back "+action)); err != nil {
		return err
	}
	return newEditError("others change the keys of %q at the same time; look at them and try again", edit.Name)
}

// Editor.entry returns the entry of the history for the change of a key.
func (e *Editor) entry(edit *KeyEdit, name KeyName, record *KeyRecord, before, after []byte, action string) Entry {
	entry := Entry{At: e.now().UTC(), Name: "api_key:" + name.Name, Key: name.Hash, Actor: edit.Actor, Action: action, Reason: edit.Reason,
		Before: string(before), After: string(after)}
	if record != nil {
		entry.Name = record.Client
	}
	entry.Client, _ = ParseName(entry.Name)
	return entry
}

// String returns the edit as the history shows it.
func (e *KeyEdit) String() string {
	parts := []string{"key", string(e.Action), e.Name}
	if e.Record != nil && e.Record.Tier != "" {
		parts = append(parts, "tier", e.Record.Tier)
	}
	if e.Record != nil {
		for _, rule := range slices.Sorted(maps.Keys(e.Record.Limits)) {
			parts = append(parts, rule, strings.Join(e.Record.Limits[rule], ", "))
		}
	}
	return strings.Join(parts, " ")
}

// Editor.rotate adds a key with the settings of the first of the keys, which must be valid, and
// makes the keys that the name had before expire.
func (e *Editor) rotate(ctx context.Context, edit *KeyEdit, keys []StoredKey) (changed int, err error) {
	if len(keys) == 0 {
		return 0, noKeysError(edit.Name)
	}
	if keys[0].State != policy.CredentialValid.String() {
		return 0, newEditError("no key of %q is valid: it is %s; create a key of another name", edit.Name, keys[0].State)
	}
	next := *keys[0].Record
	if next.NotBefore = (time.Time{}); !edit.ExpiresAt.IsZero() {
		next.ExpiresAt = edit.ExpiresAt
	} else {
		for _, k := range keys {
			if k.rank() == 0 && (k.Record.ExpiresAt.IsZero() || !next.ExpiresAt.IsZero() && k.Record.ExpiresAt.After(next.ExpiresAt)) {
				next.ExpiresAt = k.Record.ExpiresAt // the latest end of the valid keys
			}
		}
	}
	if err := e.addKey(ctx, edit, &next, keys, edit.String()); err != nil {
		return 0, err
	}
	changed, err = e.changeKeys(ctx, edit, keys)
	return changed + 1, err
}

// noKeysError returns the error for a name without keys.
func noKeysError(name string) error { return fmt.Errorf("%w %q in the directory", ErrNoKey, name) }

// Editor.forget removes the keys of a name that are revoked, have expired, or have a record without
// force.
func (e *Editor) forget(ctx context.Context, edit *KeyEdit, keys []StoredKey) (changed int, err error) {
	if len(keys) == 0 {
		return 0, noKeysError(edit.Name)
	}
	for _, k := range keys {
		if k.State != policy.CredentialRevoked.String() && k.State != policy.CredentialLapsed.String() && k.State != "bad" {
			continue
		}
		name := KeyName{edit.Name, k.Hash}
		swapped, err := e.Source.Swap(ctx, name.Record(), k.text, nil, e.entry(edit, name, k.Record, k.text, nil, edit.String()))
		if err != nil {
			return changed, err
		}
		if !swapped {
			return changed, newEditError("others change the keys of %q at the same time; look at them and try again", edit.Name)
		}
		if err := e.Source.DropKey(ctx, name); err != nil {
			return changed, err
		}
		changed++
	}
	if changed == 0 {
		return 0, newEditError("no key of %q is revoked or has expired; revoke it first", edit.Name)
	}
	return changed, nil
}

// changeKeys changes the records of keys that exist.
func (e *Editor) changeKeys(ctx context.Context, edit *KeyEdit, keys []StoredKey) (changed int, err error) {
	selected := 0
	for _, k := range keys {
		if edit.Action != KeyRotate && !strings.HasPrefix(k.Hash, edit.Hash) {
			continue
		}
		selected++
		done, err := e.changeKey(ctx, edit, k)
		if err != nil {
			return changed, err
		}
		if done {
			changed++
		}
	}
	switch {
	case edit.Action == KeyRotate:
	case selected == 0 && edit.Hash != "":
		return 0, newEditError("no key of %q has a hash that begins with %q", edit.Name, edit.Hash)
	case selected == 0:
		return 0, noKeysError(edit.Name)
	case changed == 0:
		return 0, newEditError("no key of %q has been changed: %s changes none in the state %q", edit.Name, edit.Action, keys[0].State)
	}
	return changed, nil
}

// changeKey changes one record, even if others change it at the same time. changeKey reports
// whether there was anything to change.
func (e *Editor) changeKey(ctx context.Context, edit *KeyEdit, k StoredKey) (changed bool, err error) {
	name := KeyName{edit.Name, k.Hash}
	for range swapsMax {
		if k.Record == nil {
			return false, newEditError("the record of the key %.12s… of %q has no force; remove it with forget", k.Hash, edit.Name)
		}
		after := *k.Record
		if !edit.applyTo(&after, e.now()) {
			return false, nil
		}
		if err := after.Check(); err != nil {
			return false, newEditError("%v", err)
		}
		text := after.Text()
		swapped, err := e.Source.Swap(ctx, name.Record(), k.text, text, e.entry(edit, name, &after, k.text, text, edit.String()))
		if swapped || err != nil {
			return swapped, err
		}
		again, err := e.readKeys(ctx, []KeyName{name})
		if err != nil || len(again) == 0 {
			return false, err
		}
		k = again[0]
	}
	return false, fmt.Errorf("%w: others keep changing the key %.12s… of %q; try again", ErrSource, k.Hash, edit.Name)
}

// applyTo changes the record of an existing key, and reports whether the record now differs.
func (e *KeyEdit) applyTo(r *KeyRecord, now time.Time) bool {
	switch e.Action {
	case KeyRevoke:
		if r.Revoked != nil {
			return false
		}
		r.Revoked = &Revocation{At: now.UTC().Truncate(time.Second), By: e.Actor, Reason: e.Reason}
	case KeyDisable:
		if r.State == KeyInactive {
			return false
		}
		r.State = KeyInactive
	case KeyEnable:
		if r.State == "" {
			return false
		}
		r.State = ""
	case KeyRotate:
		end := e.Until
		if end.IsZero() {
			end = now
		}
		if end = end.UTC().Truncate(time.Second); r.Revoked != nil || !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(end) {
			return false
		}
		if r.ExpiresAt = end; !r.NotBefore.IsZero() && !end.After(r.NotBefore) {
			r.NotBefore = time.Time{} // the key was never valid, and never will be
		}
	}
	return true
}

// KeysOf returns the keys of a name, those in force first. The error wraps [ErrNoKey] if there are
// none.
func (e *Editor) KeysOf(ctx context.Context, name string) (*KeysShown, error) {
	keys, err := e.keysNamed(ctx, name, false)
	if err == nil && len(keys) == 0 {
		err = noKeysError(name)
	}
	return &KeysShown{Keys: keys}, err
}
