// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/core/policy"
)

// Source is where records are kept. Implementations are safe for concurrent use. Every method
// returns at the latest when its context is done.
type Source interface {
	// Read reads records. texts[i] becomes the text of names[i], or nil if there is none.
	Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error
	// Records reads some of all records, in no particular order.
	Records(ctx context.Context, of Range) (Part, error)
	// Networks reads the records of all addresses and networks, by address or CIDR.
	Networks(ctx context.Context) (map[string][]byte, error)
	// Changes returns what has changed since a position of the history. The position "" is the
	// present one, since which nothing has changed.
	Changes(ctx context.Context, after string) (Changes, error)
	// Generation returns a text that stays the same as long as nothing but Swap changes the records.
	// It is "" if there has been no Swap yet, or if the source has lost its records.
	Generation(ctx context.Context) (string, error)
	// Follow calls changed for each client that changes, until the context is done. It calls missed
	// when it begins to receive changes, and after each interruption: changes before may be missed.
	Follow(ctx context.Context, changed func(policy.ClientName), missed func())
	// Swap replaces a record if its text is still old, and reports whether it was. A nil text is no
	// record. It appends the entry to the history, and tells the followers.
	Swap(ctx context.Context, name policy.ClientName, old, text []byte, entry Entry) (swapped bool, err error)
	// KeyHashes returns the SHA-256, in hexadecimal, of each key of a name, in their order.
	KeyHashes(ctx context.Context, name string) ([]string, error)
	// KeysAfter returns keys by name and hash, in this order, of the names after one. "" is before
	// every name. It returns at most the given number.
	KeysAfter(ctx context.Context, name string, most int) ([]KeyName, error)
	// AddKey adds a key to a name if the name has the given number of keys, and reports whether it had.
	// The record of the key is written before.
	AddKey(ctx context.Context, key KeyName, others int) (added bool, err error)
	// DropKey removes a key from a name. The record of the key is removed before.
	DropKey(ctx context.Context, key KeyName) error
	// History returns the latest entries about a client, or about all if the name is zero, the
	// newest first.
	History(ctx context.Context, name policy.ClientName, most int) ([]Entry, error)
}

// Range says which records a source reads.
type Range struct {
	Kind  string // only clients of this kind; "" for all
	After string // the place that the part before ended at; "" is the beginning
	Most  int    // at most how many records; a few more if they cannot be told apart by their place
	Look  int    // how many keys the source looks at to find them
}

// Part is a part of all records. A record that changes meanwhile may be missing, or come twice.
type Part struct {
	Names []policy.ClientName
	Texts [][]byte // of the same length; nil for a record that was removed meanwhile
	After string   // where the next part begins; "" at the end
}

// ErrPlace is wrapped by each error that says a place is not one at which a part ended, or no longer is.
var ErrPlace = errors.New("no place in the list of records")

// Changes are the changes since a position of the history.
type Changes struct {
	Names    []policy.ClientName
	Position string // the present position
	// Whole says that Names has every change. It is false if the history does not reach back to the
	// position.
	Whole bool
}

// KeyName is an API key in the order of names.
type KeyName struct{ Name, Hash string }

// record returns the name of the key's record.
func (k KeyName) record() policy.ClientName {
	return policy.ClientName{Kind: policy.KindKey, ID: k.Hash}
}

// Entry is a change in the history.
type Entry struct {
	At     time.Time         `json:"at"`
	Client policy.ClientName `json:"-"`
	Name   string            `json:"client"`        // KIND:ID; of a key, its client
	Key    string            `json:"key,omitempty"` // the SHA-256 of the key that was changed; "" for a client's record
	Actor  string            `json:"actor"`
	Action string            `json:"action"` // what was changed, as the command says it
	Reason string            `json:"reason,omitempty"`
	Before string            `json:"before,omitempty"` // the record's text
	After  string            `json:"after,omitempty"`
}

// Changed returns the name of the record that was changed.
func (e *Entry) Changed() policy.ClientName {
	if e.Key != "" {
		return KeyName{Hash: e.Key}.record()
	}
	return e.Client
}

// HistoryMax is the number of entries that a history keeps.
const HistoryMax = 10_000

// ErrSource is wrapped by each error that says the source did not answer.
var ErrSource = errors.New("the directory does not answer")

// ErrBusy is wrapped by each error that says the source did not answer in time, although it answered
// others meanwhile. Whoever sends many requests can cause this.
var ErrBusy = fmt.Errorf("%w in time, although it works", ErrSource)
