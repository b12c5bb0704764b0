// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"crypto/rand"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// Bounds of the loans that a lender remembers.
const (
	lentMax  = 1 << 14
	lentTime = 24 * time.Hour // an agent that ends later than this after a loan returns none of its units
)

// errNoLoan reports that a region returns units that it was not lent, or returns units twice.
var errNoLoan = errors.New("no such loan")

// book holds the recent loans of a lender, so that each loan can be taken back only once. The zero
// book is empty.
type book struct {
	mu    sync.Mutex
	loans map[string]entry // by their IDs
	order []dated          // their IDs, and those of loans that were taken back, the oldest first
}

// entry is a loan in a book.
type entry struct {
	key     uint64 // the hash of the counter's key
	units   int64
	receipt counter.Micros
}

type dated struct {
	id string
	at time.Time
}

// book.add adds a loan, and returns it with an ID. It drops loans that are too old and, if there
// are too many, the oldest loan.
func (b *book) add(key uint64, l Loan, now time.Time) Loan {
	l.ID = rand.Text()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.order) > 0 && (len(b.order) >= lentMax || now.Sub(b.order[0].at) > lentTime) {
		delete(b.loans, b.order[0].id)
		b.order = b.order[1:]
	}
	if b.loans == nil {
		b.loans = make(map[string]entry)
	}
	b.loans[l.ID] = entry{key, l.Units + l.Later, l.Receipt}
	b.order = append(b.order, dated{l.ID, now})
	return l
}

// book.remove removes the loan of which l is a part that was returned. If the book has no such
// loan, remove returns errNoLoan.
func (b *book) remove(key uint64, l Loan) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.loans[l.ID]
	if !ok || e.key != key || e.receipt != l.Receipt || l.Units > e.units {
		return errNoLoan
	}
	delete(b.loans, l.ID)
	return nil
}

// Agent.hash returns the hash of a key.
func (a *Agent) hash(key []byte) uint64 { return maphash.Bytes(a.seed, key) }
