// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/directory"
)

// KeyPath is the parameter of each path that names API keys.
type KeyPath struct {
	Key string `path:"key" maxLength:"1000" doc:"the name of the keys; several may have one name, such as during a rotation"`
}

type keysQuery struct {
	Client string `query:"client" maxLength:"600" doc:"only keys that identify this client: user:ID or api_key:NAME"`
	Page
}

// Resolve implements [huma.Resolver].
func (q *keysQuery) Resolve(huma.Context) []error { return checkStorable("client", q.Client) }

type keysAnswer struct {
	Body struct {
		Keys []ledger.Key `json:"keys" doc:"in the order of their names"`
		Next string       `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type namedKeysAnswer struct {
	Body struct {
		Keys []ledger.Key `json:"keys" doc:"those in force first"`
	}
}

type editedKeysAnswer struct {
	Body struct {
		ledger.KeysChanged
		Key string `json:"key,omitempty" doc:"the key that this process made; it is shown this once"`
	}
}

type createKey struct {
	Body struct {
		Record directory.KeyRecord `json:"record" doc:"as it is in Redis; the client is user:ID or api_key:NAME"`
		Hash   string              `json:"hash,omitempty" maxLength:"64" doc:"the SHA-256 of the new key, in 64 lower-case hexadecimal digits; if it is absent, a key is made"`
		Import bool                `json:"import,omitempty" doc:"the name may have keys already, and this one may be there with the same record; needs hash"`
		Reason string              `json:"reason" doc:"why, for the history"`
	}
}

type editKeys struct {
	KeyPath
	Body struct {
		Action    directory.KeyAction `json:"action" enum:"rotate,revoke,disable,enable,forget" doc:"forget removes keys that are revoked or have expired"`
		Reason    string              `json:"reason" doc:"why, for the history"`
		Hash      string              `json:"hash,omitempty" maxLength:"64" doc:"for revoke: the beginning of the SHA-256 of the only key to revoke; for rotate: the SHA-256 of the new key; if it is absent, a key is made"`
		ExpiresAt time.Time           `json:"expires_at,omitempty" doc:"for rotate: when the new key expires; default: when the key that it replaces would expire"`
		Until     time.Time           `json:"until,omitempty" doc:"for rotate: when the other keys of the name expire; default: now"`
	}
}

// supportedKeys are the edits of keys that the support role may make: those that can be undone and
// make no key.
var supportedKeys = []directory.KeyAction{directory.KeyDisable, directory.KeyEnable}

const keyPathText = "/v1/keys/{key}"

// keyOperations registers the operations on API keys.
func (a *API) keyOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/keys", "list-keys", "List API keys, without the keys themselves", ledger.Viewer), a.listKeys)
	create := operation(http.MethodPost, "/v1/keys", "create-key", "Make an API key", ledger.Editor)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, a.createKey)
	huma.Register(a.huma, operation(http.MethodGet, keyPathText, "get-keys", "Get the API keys of a name", ledger.Viewer, 404),
		func(ctx context.Context, in *KeyPath) (*namedKeysAnswer, error) {
			found, err := a.o.Ledger.KeysNamed(ctx, in.Key)
			answer := new(namedKeysAnswer)
			answer.Body.Keys = found
			return answer, a.problem(err)
		})
	edit := operation(http.MethodPost, keyPathText+"/edits", "edit-keys", "Rotate, revoke, disable, enable or forget the API keys of a name", ledger.Support, 404)
	edit.Description += " Only disable and enable; all other actions need the role editor."
	huma.Register(a.huma, edit, a.editKeys)
	huma.Register(a.huma, operation(http.MethodGet, keyPathText+"/changes", "list-key-changes", "List the changes of the API keys of a name", ledger.Viewer),
		func(ctx context.Context, in *struct {
			KeyPath
			ChangesQuery
		},
		) (*changesAnswer, error) {
			if len(checkStorable("key", in.Key)) > 0 || in.Key == "" {
				return nil, a.problem(&ledger.Invalid{Place: "name", Value: "", Text: "the name of the key has a NUL, or is not UTF-8: write one that is there"})
			}
			return a.changes(ctx, ledger.WhatKey, in.Key, in.ChangesQuery)
		})
}

func (a *API) listKeys(ctx context.Context, in *keysQuery) (*keysAnswer, error) {
	after, err := keyOf[ledger.KeyPlace](in.After)
	if err != nil {
		return nil, err
	}
	found, err := a.o.Ledger.Keys(ctx, in.Client, after, in.Limit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(keysAnswer)
	answer.Body.Keys = append([]ledger.Key{}, found...)
	if len(found) == in.Limit {
		last := &found[len(found)-1]
		answer.Body.Next = afterOf(ledger.KeyPlace{Name: last.Record.Name, Hash: last.Hash})
	}
	return answer, nil
}

func (a *API) createKey(ctx context.Context, in *createKey) (*editedKeysAnswer, error) {
	b := &in.Body
	edit := directory.KeyEdit{Action: directory.KeyCreate, Name: b.Record.Name, Hash: b.Hash, Reason: b.Reason, Record: &b.Record, Import: b.Import}
	if b.Import && b.Hash == "" {
		return nil, a.problem(&ledger.Invalid{Place: "hash", Value: "", Text: "an import needs the hash of the key: write its SHA-256 as hash"})
	}
	return a.makeKey(ctx, edit)
}

func (a *API) editKeys(ctx context.Context, in *editKeys) (*editedKeysAnswer, error) {
	b, by := &in.Body, callerOf(ctx)
	if !slices.Contains(supportedKeys, b.Action) && !by.role.May(ledger.Editor) {
		return nil, huma.Error403Forbidden(describeDenial(by.role, ledger.Editor) + "; with disable, the role support is enough")
	}
	edit := directory.KeyEdit{Action: b.Action, Name: in.Key, Hash: b.Hash, Reason: b.Reason, ExpiresAt: b.ExpiresAt, Until: b.Until}
	return a.makeKey(ctx, edit)
}

// makeKey makes an edit. If the edit needs a key and the caller has not made one, makeKey makes the
// key first.
func (a *API) makeKey(ctx context.Context, edit directory.KeyEdit) (*editedKeysAnswer, error) {
	answer := new(editedKeysAnswer)
	key := ""
	if edit.Hash == "" && (edit.Action == directory.KeyCreate || edit.Action == directory.KeyRotate) {
		key = credential.GenerateKey()
		hash, err := credential.HashKey(key)
		if err != nil {
			return nil, err
		}
		edit.Hash = credential.Digits(hash)
	}
	changed, err := a.o.Ledger.EditKeys(ctx, callerOf(ctx).actor, edit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer.Body.KeysChanged, answer.Body.Key = *changed, key
	return answer, nil
}
