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
	// Read reads records. Read sets texts[i] to the text of names[i], or to nil if there is none.
	Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error
	// Records reads a part of all records, in no particular order.
	Records(ctx context.Context, of Range) (Part, error)
	// Networks reads the records of all addresses and networks, by address or CIDR. The error wraps
	// ErrGarbled if the source answers, but the records cannot be read.
	Networks(ctx context.Context) (map[string][]byte, error)
	// Changes returns the changes since a position of the history. The position "" stands for the
	// present, so no changes are returned for it.
	Changes(ctx context.Context, after string) (Changes, error)
	// Generation returns a text that stays the same as long as only Swap changes the records.
	// Generation is "" if there has been no Swap yet, or if the source has lost its records.
	Generation(ctx context.Context) (string, error)
	// Follow calls changed(...) for each client that changes, until the context is done. Follow
	// calls missed() when it begins to receive changes, and after each interruption, because
	// earlier changes may have been missed.
	Follow(ctx context.Context, changed func(policy.ClientName), missed func())
	// Swap replaces a record if its text still equals the parameter named old, and reports whether
	// it did. A nil text stands for no record. Swap appends the entry to the history, and notifies
	// the followers.
	Swap(ctx context.Context, name policy.ClientName, old, text []byte, entry Entry) (swapped bool, err error)
	// SwapAll does what Swap does, for several records, at most one for each name. Unlike Swap, it
	// does not make a generation, so a source that has lost its records stays incomplete until
	// Complete is called. If SwapAll returns an error, some records may have been replaced.
	SwapAll(ctx context.Context, swaps []Swap) (swapped []bool, err error)
	// Complete makes a generation if the source has no generation yet. Then it notifies the
	// followers that any record may have changed.
	Complete(ctx context.Context) error
	// KeyHashes returns the SHA-256 of each key of a name, in hexadecimal and sorted.
	KeyHashes(ctx context.Context, name string) ([]string, error)
	// KeysAfter returns the keys whose names come after the given one, sorted by name and hash. The
	// name "" comes before every other name. KeysAfter returns at most the given number.
	KeysAfter(ctx context.Context, name string, most int) ([]KeyName, error)
	// AddKey adds a key to a name if the name has the given number of keys, and reports whether it
	// had that number. The caller writes the record of the key first.
	AddKey(ctx context.Context, key KeyName, others int) (added bool, err error)
	// DropKey removes a key from a name. The caller removes the record of the key first.
	DropKey(ctx context.Context, key KeyName) error
	// History returns the latest entries about a client, or about all clients if the name is zero.
	// The newest entry comes first.
	History(ctx context.Context, name policy.ClientName, most int) ([]Entry, error)
}

// Range selects the records that a source reads.
type Range struct {
	Kind  string // only clients of this kind; "" for all
	After string // the place at which the previous part ended; "" is the beginning
	Most  int    // the maximum number of records; a part may have a few more if several share a place
	Look  int    // the number of keys that the source examines
}

// Part is one of the parts in which all records are listed. A record that changes during the
// listing may be missing, or appear twice.
type Part struct {
	Names []policy.ClientName
	Texts [][]byte // the texts of the records, in the same order; nil for a record that was removed meanwhile
	After string   // where the next part begins; "" at the end
}

// ErrPlace is wrapped by the error for a place at which no part ended, or that is no longer valid.
var ErrPlace = errors.New("no place in the list of records")

// Changes are the changes since a position of the history.
type Changes struct {
	Names    []policy.ClientName
	Position string // the position after these changes
	// Whole reports whether Names has every change. Whole is false if the history does not reach
	// back to the position.
	Whole bool
}

// KeyName is the name and the SHA-256 of an API key.
type KeyName struct{ Name, Hash string }

// Record returns the name of the key's record.
func (k KeyName) Record() policy.ClientName {
	return policy.ClientName{Kind: policy.KindKey, ID: k.Hash}
}

// Entry is a change in the history.
type Entry struct {
	At     time.Time         `json:"at"`
	Client policy.ClientName `json:"-"`
	Name   string            `json:"client"`        // KIND:ID; for a key, the client of the key
	Key    string            `json:"key,omitempty"` // the SHA-256 of the key that was changed; "" for a client's record
	Actor  string            `json:"actor"`
	Action string            `json:"action"` // the change, as the command writes it
	Reason string            `json:"reason,omitempty"`
	Before string            `json:"before,omitempty"` // the text of the record
	After  string            `json:"after,omitempty"`
}

// Changed returns the name of the record that was changed.
func (e *Entry) Changed() policy.ClientName {
	if e.Key != "" {
		return KeyName{Hash: e.Key}.Record()
	}
	return e.Client
}

// HistoryMax is the number of entries that a history keeps.
const HistoryMax = 10_000

// ErrSource is wrapped by the error of a source that did not answer.
var ErrSource = errors.New("the directory does not answer")

// ErrGarbled is wrapped by the error of a source that answered, but whose records of networks
// cannot be read.
var ErrGarbled = fmt.Errorf("%w: the records of networks cannot be read", ErrSource)

// ErrBusy is wrapped by the error of a source that did not answer in time, although it answered
// other calls meanwhile. A client that sends many requests can cause this.
var ErrBusy = fmt.Errorf("%w in time, although it works", ErrSource)
