// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// ClientEntry holds a client's record in the directory and its changes.
type ClientEntry struct {
	Client  string            `json:"client,omitempty"` // "" for all clients
	Record  *directory.Record `json:"record"`           // nil if there is none
	History []directory.Entry `json:"history"`          // the newest first
	// Notes name the parts of the record that have no effect under the policies.
	Notes []string `json:"notes,omitempty"`
}

// historyDefault is the number of changes that LookUp returns by default.
const historyDefault = 20

// ErrNoDirectory means that the process has no directory.
var ErrNoDirectory = errors.New("no directory of clients")

// Desk.editor returns an Editor for the directory, or ErrNoDirectory.
func (d *Desk) editor() (*directory.Editor, error) {
	if d.Directory == nil {
		return nil, ErrNoDirectory
	}
	return &directory.Editor{Source: d.Directory.Source()}, nil
}

// Edit changes a client's record. If no policy in force has the rule or the tier of the edit, Edit
// returns an error, because the change would have no effect. A desk without policies does not check
// that. Errors wrap [directory.ErrEdit], [ErrUnknown], [ErrNoDirectory] or [directory.ErrSource].
func (d *Desk) Edit(ctx context.Context, edit directory.Edit) (*directory.Change, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	if d.Policies == nil {
		return editor.Apply(ctx, edit)
	}
	policies := d.Policies()
	if edit.Action == directory.ActionSetLimits {
		if err := checkRule(edit.Rule, policies); err != nil {
			return nil, err
		}
	}
	if edit.Action == directory.ActionSetTier {
		if err := checkTier(edit.Tier, policies); err != nil {
			return nil, err
		}
	}
	if edit.Action == directory.ActionGrant {
		if err := d.checkGrant(ctx, editor, &edit, policies); err != nil {
			return nil, err
		}
	}
	return editor.Apply(ctx, edit)
}

// checkRule returns an error if no policy has a rule of that name.
func checkRule(rule string, policies []Policy) error {
	if rule == policy.EveryRule {
		return nil
	}
	s := Selection{Rule: rule}
	return s.check(policies)
}

// EditKeys changes the API keys of a name. Like Edit, it rejects a rule or a tier that no policy in
// force has.
func (d *Desk) EditKeys(ctx context.Context, edit directory.KeyEdit) (*directory.KeysShown, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	if r := edit.Record; r != nil && d.Policies != nil {
		policies := d.Policies()
		if err := checkTier(r.Tier, policies); err != nil {
			return nil, err
		}
		for rule := range r.Limits {
			if err := checkRule(rule, policies); err != nil {
				return nil, err
			}
		}
	}
	return editor.ApplyKey(ctx, edit)
}

// keysDefault is the number of keys on a page by default.
const keysDefault = 100

// LookUpKeys returns the API keys of a name. Without a name, it returns a page of the keys that the
// query selects. If query.Most is 0, the default applies.
func (d *Desk) LookUpKeys(ctx context.Context, name string, query directory.KeyQuery) (*directory.KeysShown, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	switch {
	case name != "" && query.Client != "":
		return nil, fmt.Errorf("%w: name=%.100q and client=%.100q both select keys; keep one", directory.ErrEdit, name, query.Client)
	case name != "":
		return editor.KeysOf(ctx, name)
	case query.Most == 0:
		query.Most = keysDefault
	}
	return editor.KeyPage(ctx, query)
}

// Import writes records that were exported. If a record names a rule or a tier that no policy in
// force has, Import writes it nevertheless, and adds a note.
func (d *Desk) Import(ctx context.Context, in *directory.Import) (*directory.Imported, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	done, err := editor.Import(ctx, in)
	if err != nil || d.Policies == nil {
		return done, err
	}
	policies := d.Policies()
	for i := range in.Lines {
		rules, tier := in.Lines[i].Names()
		err := checkTier(tier, policies)
		for _, rule := range rules {
			err = cmp.Or(err, checkRule(rule, policies))
		}
		if err != nil {
			done.Notes = append(done.Notes, directory.LineNote{Line: i, Text: err.Error()})
		}
	}
	return done, nil
}

// LookUp returns a client's record and up to n of its latest changes. n = 0 means the default.
// Without a client, LookUp returns the latest changes of all clients.
func (d *Desk) LookUp(ctx context.Context, client string, n int) (*ClientEntry, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		n = historyDefault
	}
	var name policy.ClientName
	entry := new(ClientEntry)
	if client != "" {
		if name, entry.Record, err = editor.Look(ctx, client); err != nil {
			return nil, err
		}
		entry.Client = name.String()
		if r := entry.Record; r != nil && d.Policies != nil {
			for i := range r.Grants {
				if err := grantable(&r.Grants[i], r, d.Policies()); err != nil && !r.Grants[i].Ended(time.Now()) {
					entry.Notes = append(entry.Notes, err.Error())
				}
			}
		}
	}
	if entry.History, err = editor.Source.History(ctx, name, n); err != nil {
		return nil, err
	}
	if entry.History == nil {
		entry.History = []directory.Entry{}
	}
	return entry, nil
}

// listDefault is the number of records on a page by default.
const listDefault = 100

// List returns a page of the records of clients. If query.Most is 0, the default applies.
func (d *Desk) List(ctx context.Context, query directory.ListQuery) (*directory.Listing, error) {
	editor, err := d.editor()
	if err != nil {
		return nil, err
	}
	query.Most = cmp.Or(query.Most, listDefault)
	return editor.List(ctx, query)
}

// WithKey returns the client together with its API key in the directory, if a policy looks up keys
// in the directory and a key has the client's name. Of several keys with this name, WithKey takes a
// valid key if there is one.
func (d *Desk) WithKey(ctx context.Context, c *Client, policies []Policy) *Client {
	editor, err := d.editor()
	if err != nil || c.who.Kind != "api_key" ||
		!slices.ContainsFunc(policies, func(p Policy) bool { return p.Document.KeysInDirectory() }) {
		return c
	}
	shown, err := editor.KeysOf(ctx, c.who.ID)
	if err != nil {
		return c // the profile will report that the key is unknown
	}
	for _, key := range shown.Keys {
		if key.Record == nil || key.Record.Client != c.String() {
			continue
		}
		known := *c
		known.stored = &knownKey{from: "the directory", state: key.Record.StateAt(time.Now())}
		if known.stored.Identity, err = key.Record.Identity(); err == nil {
			return &known
		}
	}
	return c
}
