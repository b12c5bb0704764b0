// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/penstock/penstock/internal/directory"
)

// This file reads and changes the API keys of a control plane.

// keyPath returns the path of the keys of a name. If a name consists only of dots, they are
// escaped, because "." and ".." would be dot segments of the path.
func keyPath(name string) string {
	if strings.Trim(name, ".") == "" {
		return "/v1/keys/" + strings.ReplaceAll(name, ".", "%2E")
	}
	return "/v1/keys/" + url.PathEscape(name)
}

// applyKey makes an edit of keys. The request contains the SHA-256 of a new key, and never the key.
func (c *controlClient) applyKey(ctx context.Context, edit directory.KeyEdit) (*directory.KeysShown, error) {
	path := "/v1/keys"
	if edit.Action != directory.KeyCreate {
		path = keyPath(edit.Name) + "/edits"
	}
	body := struct {
		directory.KeyEdit
		Action directory.KeyAction `json:"action,omitempty"`
		// the name is in the path or in the record
		Name  *struct{} `json:"name,omitempty"`
		Actor *struct{} `json:"actor,omitempty"` // the token names the actor
	}{KeyEdit: edit}
	if edit.Action != directory.KeyCreate {
		body.Action = edit.Action
	}
	shown := new(directory.KeysShown)
	status, err := c.sendJSON(ctx, http.MethodPost, path, body, shown)
	return shown, noKey(status, edit.Name, err)
}

// controlClient.keys returns the keys of a name, or a page of those that the query selects.
func (c *controlClient) keys(ctx context.Context, name string, page directory.KeyQuery) (*directory.KeysShown, error) {
	var found struct {
		Keys []directory.StoredKey
		Next string
	}
	path := keyPath(name)
	if name == "" {
		query := url.Values{"limit": {fmt.Sprint(page.Most)}}
		for word, value := range map[string]string{"client": page.Client, "after": page.After} {
			if value != "" {
				query.Set(word, value)
			}
		}
		path = "/v1/keys?" + query.Encode()
	}
	status, err := c.send(ctx, http.MethodGet, path, nil, &found)
	return &directory.KeysShown{Keys: found.Keys, After: found.Next}, noKey(status, name, err)
}

// noKey returns the error for a name that has no key, if that is what the control plane answered.
func noKey(status int, name string, err error) error {
	if status == http.StatusNotFound && err != nil {
		return &nobodyError{fmt.Sprintf("there is no API key of the name %q in the control plane", name)}
	}
	return err
}
