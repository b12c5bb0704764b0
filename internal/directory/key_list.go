// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"

	"github.com/penstock/penstock/core/policy"
)

// Bounds of a page of keys.
const (
	// KeyPageMax is the greatest number of keys on a page.
	KeyPageMax = 1000
	// keyLooksMax is the greatest number of parts, of KeyPageMax names each, that are examined for
	// a page of one client's keys. So such a page can be empty although more keys follow.
	keyLooksMax = 20
)

// KeyQuery selects the keys of a list.
type KeyQuery struct {
	Client string // only keys that identify this client, as KIND:ID; "" for all keys
	After  string // the name at which the previous page ended; "" for the first page
	Most   int    // the approximate number of keys, up to KeyPageMax; keys of one name stay together
}

// KeyPage returns a page of the keys that a query selects, in the order of their names. A key whose
// record has no force belongs to no client.
func (e *Editor) KeyPage(ctx context.Context, query KeyQuery) (*KeysShown, error) {
	if query.Most < 1 || query.Most > KeyPageMax {
		return nil, newEditError("%d keys on a page are not between 1 and %d", query.Most, KeyPageMax)
	}
	if query.Client == "" {
		return e.keysAfter(ctx, query.After, query.Most)
	}
	client, err := ParseName(query.Client)
	if err != nil {
		return nil, newEditError("%v", err)
	}
	if client.Kind != "user" && client.Kind != "api_key" {
		return nil, newEditError("client %q cannot have a key; write user:ID or api_key:NAME", query.Client)
	}
	page := &KeysShown{Keys: []StoredKey{}, After: query.After}
	for range keyLooksMax {
		part, err := e.keysAfter(ctx, page.After, KeyPageMax)
		if err != nil {
			return nil, err
		}
		if name, more := page.addOf(client, part.Keys, query.Most); more {
			page.After = name
			return page, nil
		}
		if page.After = part.After; page.After == "" || len(page.Keys) >= query.Most {
			break
		}
	}
	return page, nil
}

// addOf adds the keys of a client until the page is full. If further keys of the client follow
// under another name, it returns the name of the last key on the page, and true.
func (s *KeysShown) addOf(client policy.ClientName, keys []StoredKey, most int) (last string, more bool) {
	for _, k := range keys {
		if k.Record == nil {
			continue
		}
		if name, err := ParseName(k.Record.Client); err != nil || name != client {
			continue
		}
		if n := len(s.Keys); n >= most && s.Keys[n-1].Record.Name != k.Record.Name {
			return s.Keys[n-1].Record.Name, true
		}
		s.Keys = append(s.Keys, k)
	}
	return "", false
}

// keysAfter returns a page of the keys whose names come after the given name. The page has about as
// many keys as the argument named most.
func (e *Editor) keysAfter(ctx context.Context, after string, most int) (*KeysShown, error) {
	names, err := e.Source.KeysAfter(ctx, after, most+KeysOfNameMax)
	if err != nil {
		return nil, err
	}
	page, shown := names, new(KeysShown)
	if len(names) > most {
		n := most
		for n < len(names) && names[n].Name == names[n-1].Name {
			n++
		}
		if page = names[:n]; n < len(names) {
			shown.After = names[n-1].Name
		}
	}
	shown.Keys, err = e.readKeys(ctx, page)
	return shown, err
}
