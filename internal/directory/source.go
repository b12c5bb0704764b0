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
	// History returns the latest entries about a client, or about all if the name is zero, the
	// newest first.
	History(ctx context.Context, name policy.ClientName, most int) ([]Entry, error)
}

// Changes are the changes since a position of the history.
type Changes struct {
	Names    []policy.ClientName
	Position string // the present position
	// Whole says that Names has every change. It is false if the history does not reach back to the
	// position.
	Whole bool
}

// Entry is a change in the history.
type Entry struct {
	At     time.Time         `json:"at"`
	Client policy.ClientName `json:"-"`
	Name   string            `json:"client"` // KIND:ID
	Actor  string            `json:"actor"`
	Action string            `json:"action"` // what was changed, as the command says it
	Reason string            `json:"reason,omitempty"`
	Before string            `json:"before,omitempty"` // the record's text
	After  string            `json:"after,omitempty"`
}

// HistoryMax is the number of entries that a history keeps.
const HistoryMax = 10_000

// ErrSource is wrapped by each error that says the source did not answer.
var ErrSource = errors.New("the directory does not answer")

// ErrBusy is wrapped by each error that says the source did not answer in time, although it answered
// others meanwhile. Whoever sends many requests can cause this.
var ErrBusy = fmt.Errorf("%w in time, although it works", ErrSource)
