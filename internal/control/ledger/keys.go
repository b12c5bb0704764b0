// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// KeysChanged is the result of an edit of keys.
type KeysChanged struct {
	Keys    []Key `json:"keys" doc:"all keys of the name, those in force first"`
	Changed int   `json:"changed" doc:"how many of them the edit has changed"`
}

// Keys returns the next n keys after a place, in the order of their names. If client is not "",
// only its keys are returned.
func (l *Ledger) Keys(ctx context.Context, client string, after *KeyPlace, n int) ([]Key, error) {
	place := KeyPlace{}
	if after != nil {
		place = *after
	}
	query, args := "WHERE (name, hash) > ($1, $2) ", []any{place.Name, sumOf(place.Hash), n}
	if client != "" {
		name, err := Name(client)
		switch {
		case err != nil:
			return nil, err
		case name.Kind != "user" && name.Kind != "api_key":
			return nil, &Invalid{Place: "client", Value: client, Text: fmt.Sprintf("client %q cannot have a key: write user:ID or api_key:NAME", client)}
		}
		query, args = query+"AND client = $4 ", append(args, name.String())
	}
	found, err := keysOf(ctx, l.Pool, query+"ORDER BY name, hash LIMIT $3", args...)
	if err != nil {
		return nil, err
	}
	l.setStates(found)
	return found, readUses(ctx, l.Pool, found)
}

// KeysNamed returns the keys of a name, valid keys first. The error is [ErrNone] if there are none.
func (l *Ledger) KeysNamed(ctx context.Context, name string) ([]Key, error) {
	if checkKeyName(name) != nil {
		return nil, ErrNone
	}
	found, err := keysOf(ctx, l.Pool, "WHERE name = $1 ORDER BY hash", name)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, ErrNone
	}
	l.setStates(found)
	slices.SortStableFunc(found, func(a, b Key) int { return order(a) - order(b) })
	return found, readUses(ctx, l.Pool, found)
}

// order returns 0 for a valid key, and 1 for any other.
func order(k Key) int {
	if k.State == policy.CredentialValid.String() {
		return 0
	}
	return 1
}

func (l *Ledger) setStates(keys []Key) {
	for i := range keys {
		keys[i].State = keys[i].Record.StateAt(l.Instant()).String()
	}
}

// checkKeyName returns an [Invalid] for a name that cannot be written.
func checkKeyName(name string) error {
	if name == "" || len(name) > policy.ValueBytesMax || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return &Invalid{Place: "name", Value: strings.ToValidUTF8(name, "�"),
			Text: fmt.Sprintf("the name of the key is empty, has a control character, or more than %d bytes: write a short one", policy.ValueBytesMax)}
	}
	return nil
}

// EditKeys makes an edit of the keys of a name. The actor's name becomes KeyEdit.Actor, and also
// the revoker in an imported revocation.
func (l *Ledger) EditKeys(ctx context.Context, actor Actor, edit directory.KeyEdit) (*KeysChanged, error) {
	if err := errors.Join(checkKeyName(edit.Name), checkReason(edit.Reason)); err != nil {
		return nil, firstInvalid(err)
	}
	edit.Actor = actor.Name
	if err := prepareRecord(&edit); err != nil {
		return nil, err
	}
	done := new(KeysChanged)
	err := l.write(ctx, func(w *writeTx) error {
		present, err := keysOf(ctx, w.tx, "WHERE name = $1 OR hash = $2 ORDER BY hash", edit.Name, sumOf(edit.Hash))
		if err != nil {
			return err
		}
		after, err := w.edited(ctx, edit, present)
		if err != nil {
			return err
		}
		before := map[string]*directory.KeyRecord{}
		for i := range present {
			if r := present[i].Record; r.Name == edit.Name {
				before[present[i].Hash] = r
			}
		}
		done.Changed, err = w.putKeys(ctx, actor, edit.String(), edit.Reason, before, after)
		return err
	})
	if err != nil {
		return nil, err
	}
	done.Keys, err = l.KeysNamed(ctx, edit.Name)
	if errors.Is(err, ErrNone) { // true if all of them were removed
		done.Keys, err = []Key{}, nil
	}
	return done, err
}

// firstInvalid returns the first [Invalid] of joined errors.
func firstInvalid(err error) error {
	if invalid := (*Invalid)(nil); errors.As(err, &invalid) {
		return invalid
	}
	return err
}

// prepareRecord brings the record of an edit to the form in which it is read back.
func prepareRecord(edit *directory.KeyEdit) error {
	if edit.Record == nil {
		return nil
	}
	r := *edit.Record
	for _, text := range [][2]string{{"client", r.Client}, {"user", r.User}, {"tenant", r.Tenant}, {"tier", r.Tier}} {
		if strings.ContainsFunc(text[1], unicode.IsControl) {
			return &Invalid{Place: "record." + text[0], Value: text[1], Text: text[0] + " has a control character: write a short text"}
		}
	}
	if r.Revoked != nil {
		revoked := *r.Revoked
		if revoked.By, r.Revoked = edit.Actor, &revoked; !edit.Import {
			return &Invalid{Place: "record.revoked", Value: revoked.Reason, Text: "only an import can create a key that is revoked: leave it out"}
		}
	}
	if name, err := directory.ParseName(r.Client); err == nil { // otherwise the edit reports it
		r.Client = name.String()
	}
	normalizeKey(&r)
	edit.Record = &r
	return nil
}

// writeTx.edited makes an edit of a copy of the keys in memory, by the same rules as in a
// directory. It returns the records that result.
func (w *writeTx) edited(ctx context.Context, edit directory.KeyEdit, present []Key) (map[string]*directory.KeyRecord, error) {
	source := new(directory.Memory)
	count := map[string]int{}
	for i := range present {
		k := &present[i]
		name := directory.KeyName{Name: k.Record.Name, Hash: k.Hash}
		if _, err := source.Swap(ctx, name.Record(), nil, k.Record.Text(), directory.Entry{}); err != nil {
			return nil, err
		}
		if _, err := source.AddKey(ctx, name, count[name.Name]); err != nil {
			return nil, err
		}
		count[name.Name]++
	}
	editor := directory.Editor{Source: source, Now: func() time.Time { return w.now }}
	shown, err := editor.ApplyKey(ctx, edit)
	switch {
	case errors.Is(err, directory.ErrNoKey):
		return nil, ErrNone
	case err != nil:
		return nil, &Invalid{Value: edit.String(), Text: err.Error()}
	}
	after := make(map[string]*directory.KeyRecord, len(shown.Keys))
	for i := range shown.Keys {
		k := &shown.Keys[i]
		if k.Record == nil {
			return nil, fmt.Errorf("the row of the key %.12s… has a record that has no force", k.Hash)
		}
		normalizeKey(k.Record)
		after[k.Hash] = k.Record
	}
	return after, nil
}

// putKeys writes the keys that differ between the maps before and after, each as a change of its
// own, and returns their number.
func (w *writeTx) putKeys(ctx context.Context, actor Actor, action, reason string, before, after map[string]*directory.KeyRecord) (changed int, err error) {
	hashes := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	slices.Sort(hashes)
	for _, hash := range slices.Compact(hashes) {
		old, next := before[hash], after[hash]
		if next != nil {
			if old != nil && string(old.Text()) == string(next.Text()) {
				continue
			}
			if next.Tier != "" && (old == nil || old.Tier != next.Tier) {
				if err := w.hasTier(ctx, next.Tier); err != nil {
					return 0, err
				}
			}
		}
		if err := w.replaceKey(ctx, actor, action, reason, hash, old, next); err != nil {
			return 0, err
		}
		changed++
	}
	return changed, nil
}

// replaceKey writes a key and its change. One of the records may be nil, which means that there is
// none.
func (w *writeTx) replaceKey(ctx context.Context, actor Actor, action, reason, hash string, old, next *directory.KeyRecord) error {
	if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatKey, Subject: cmp.Or(next, old).Name, Action: action, Reason: reason,
		Before: keyText(hash, old), After: keyText(hash, next)}); err != nil {
		return err
	}
	return w.putKey(ctx, actor, hash, next)
}

// keyText returns the form of a key in the audit trail, or nil if there is none.
func keyText(hash string, r *directory.KeyRecord) *string {
	if r == nil {
		return nil
	}
	text := `{"hash":"` + hash + `","record":` + string(r.Text()) + "}"
	return &text
}

// keysOfClientMax is the greatest number of keys that can be removed together with a client.
const keysOfClientMax = 1000

// dropKeys removes the keys that identify a client, or that belong to it, and returns how many.
func (w *writeTx) dropKeys(ctx context.Context, actor Actor, name policy.ClientName, action, reason string) (int, error) {
	user := ""
	if name.Kind == "user" {
		user = name.ID
	}
	found, err := keysOf(ctx, w.tx, "WHERE client = $1 OR user_id = nullif($2, '') ORDER BY hash LIMIT $3", name.String(), user, keysOfClientMax+1)
	if err != nil {
		return 0, err
	}
	if len(found) > keysOfClientMax {
		return 0, &Invalid{Place: "client", Value: name.String(),
			Text: fmt.Sprintf("%s has more than %d keys: revoke and forget them first", name, keysOfClientMax)}
	}
	before := make(map[string]*directory.KeyRecord, len(found))
	for i := range found {
		before[found[i].Hash] = found[i].Record
	}
	return w.putKeys(ctx, actor, action+" "+name.String(), reason, before, nil)
}

// ImportKeys writes keys that are not in the table yet, with the tiers that they name. ImportKeys
// leaves out records that are nil or that cannot be written. ImportKeys returns the SHA-256 of each
// key that it left out.
func (l *Ledger) ImportKeys(ctx context.Context, actor Actor, records map[string]*directory.KeyRecord) (bad []string, err error) {
	err = l.write(ctx, func(w *writeTx) error {
		bad = bad[:0]
		present, err := keysOf(ctx, w.tx, "WHERE hash = ANY ($1)", sumsOf(slices.Collect(maps.Keys(records))))
		if err != nil {
			return err
		}
		known := map[string]bool{}
		for i := range present {
			known[present[i].Hash] = true
		}
		for _, hash := range slices.Sorted(maps.Keys(records)) {
			r := records[hash]
			if known[hash] {
				continue
			}
			if r == nil || len(sumOf(hash)) != sha256.Size || checkTier(Tier{Tier: cmp.Or(r.Tier, "-")}) != nil {
				bad = append(bad, hash)
				continue
			}
			if r.Tier != "" {
				if err := w.putTier(ctx, actor, Tier{Tier: r.Tier}, "a key in Redis has it", true); err != nil {
					return err
				}
			}
			normalizeKey(r)
			if err := w.replaceKey(ctx, actor, "import", importReason, hash, nil, r); err != nil {
				return err
			}
		}
		return nil
	})
	return bad, err
}
