// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListKeysOptions are the optional parameters of [Client.ListKeys].
type ListKeysOptions struct {
	// Client: only keys that identify this client: user:ID or api_key:NAME
	Client string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListKeys calls GET /v1/keys: List API keys, without the keys themselves. Needs the role
// viewer or one above.
func (c *Client) ListKeys(ctx context.Context, o ListKeysOptions) (*KeysAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/keys"
	r.text("client", o.Client)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[KeysAnswer](ctx, c, r)
	return answer, err
}

// AllKeys returns the items of all pages of [Client.ListKeys], from o.After on. It ends
// after the first error.
func (c *Client) AllKeys(ctx context.Context, o ListKeysOptions) iter.Seq2[Key, error] {
	return pages(o.After, func(page string) ([]Key, string, error) {
		o := o
		o.After = page
		answer, err := c.ListKeys(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Keys, answer.Next, nil
	})
}

// CreateKey calls POST /v1/keys: Make an API key. Needs the role editor or one above.
func (c *Client) CreateKey(ctx context.Context, body CreateKey) (*EditedKeysAnswer, error) {
	r := newRequest("POST")
	r.path = "/v1/keys"
	r.json(body)
	answer, _, err := call[EditedKeysAnswer](ctx, c, r)
	return answer, err
}

// GetKeys calls GET /v1/keys/{key}: Get the API keys of a name. Needs the role viewer or
// one above.
func (c *Client) GetKeys(ctx context.Context, key string) (*NamedKeysAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/keys/"
	r.segment("key", key, "")
	answer, _, err := call[NamedKeysAnswer](ctx, c, r)
	return answer, err
}

// ListKeyChangesOptions are the optional parameters of [Client.ListKeyChanges].
type ListKeyChangesOptions struct {
	// Before: the field next of the previous page's answer
	Before int64
	Limit  int64
}

// ListKeyChanges calls GET /v1/keys/{key}/changes: List the changes of the API keys of a
// name. Needs the role viewer or one above.
func (c *Client) ListKeyChanges(ctx context.Context, key string, o ListKeyChangesOptions) (*ChangesAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/keys/"
	r.segment("key", key, "/changes")
	r.number("before", o.Before)
	r.number("limit", o.Limit)
	answer, _, err := call[ChangesAnswer](ctx, c, r)
	return answer, err
}

// AllKeyChanges returns the items of all pages of [Client.ListKeyChanges], from o.Before
// on. It ends after the first error.
func (c *Client) AllKeyChanges(ctx context.Context, key string, o ListKeyChangesOptions) iter.Seq2[Change, error] {
	return pages(o.Before, func(page int64) ([]Change, int64, error) {
		o := o
		o.Before = page
		answer, err := c.ListKeyChanges(ctx, key, o)
		if err != nil {
			return nil, 0, err
		}
		return answer.Changes, answer.Next, nil
	})
}

// EditKeys calls POST /v1/keys/{key}/edits: Rotate, revoke, disable, enable or forget the
// API keys of a name. Needs the role support or one above. Only disable and enable; all
// other actions need the role editor.
func (c *Client) EditKeys(ctx context.Context, key string, body EditKeys) (*EditedKeysAnswer, error) {
	r := newRequest("POST")
	r.path = "/v1/keys/"
	r.segment("key", key, "/edits")
	r.json(body)
	answer, _, err := call[EditedKeysAnswer](ctx, c, r)
	return answer, err
}

// KeysAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema KeysAnswerBody.
type KeysAnswer struct {
	// Keys: in the order of their names
	Keys []Key `json:"keys"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// Key is the JSON object that the OpenAPI document of the API describes in the schema Key.
type Key struct {
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	// Hash: the SHA-256 of the key, in hexadecimal
	Hash string `json:"hash"`
	// LastUsedAt: when a node last noted a request with the key, while it was valid; the last
	// use may be up to ten minutes later; absent if no node has reported a use
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	Record     KeyRecord `json:"record"`
	// Revision: the number of the latest change
	Revision int64 `json:"revision"`
	// State: one of valid, inactive, lapsed, revoked
	State     string    `json:"state"`
	UpdatedAt time.Time `json:"updated_at"`
}

// KeyRecord is the JSON object that the OpenAPI document of the API describes in the schema
// KeyRecord.
type KeyRecord struct {
	Client    string              `json:"client"`
	ExpiresAt time.Time           `json:"expires_at,omitzero"`
	Limits    map[string][]string `json:"limits,omitempty"`
	Name      string              `json:"name"`
	NotBefore time.Time           `json:"not_before,omitzero"`
	Revoked   *Revocation         `json:"revoked,omitempty"`
	State     string              `json:"state,omitempty"`
	Tenant    string              `json:"tenant,omitempty"`
	Tier      string              `json:"tier,omitempty"`
	User      string              `json:"user,omitempty"`
	V         int64               `json:"v,omitempty"`
}

// Revocation is the JSON object that the OpenAPI document of the API describes in the
// schema Revocation.
type Revocation struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// CreateKey is the JSON object that the OpenAPI document of the API describes in the schema
// CreateKeyBody.
type CreateKey struct {
	// Hash: the SHA-256 of the new key, in 64 lower-case hexadecimal digits; if it is absent,
	// a key is made
	Hash string `json:"hash,omitempty"`
	// Import: the name may have keys already, and this one may be there with the same record;
	// needs hash
	Import bool `json:"import,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Record: as it is in Redis; the client is user:ID or api_key:NAME
	Record KeyRecord `json:"record"`
}

// EditedKeysAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema EditedKeysAnswerBody.
type EditedKeysAnswer struct {
	// Changed: how many of them the edit has changed
	Changed int64 `json:"changed"`
	// Key: the key that this process made; it is shown this once
	Key string `json:"key,omitempty"`
	// Keys: all keys of the name, those in force first
	Keys []Key `json:"keys"`
}

// NamedKeysAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema NamedKeysAnswerBody.
type NamedKeysAnswer struct {
	// Keys: those in force first
	Keys []Key `json:"keys"`
}

// EditKeys is the JSON object that the OpenAPI document of the API describes in the schema
// EditKeysBody.
type EditKeys struct {
	// Action: forget removes keys that are revoked or have expired; one of rotate, revoke,
	// disable, enable, forget
	Action string `json:"action"`
	// ExpiresAt: for rotate: when the new key expires; default: when the key that it replaces
	// would expire
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// Hash: for revoke: the beginning of the SHA-256 of the only key to revoke; for rotate:
	// the SHA-256 of the new key; if it is absent, a key is made
	Hash string `json:"hash,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Until: for rotate: when the other keys of the name expire; default: now
	Until time.Time `json:"until,omitzero"`
}
