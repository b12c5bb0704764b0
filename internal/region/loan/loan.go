// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// lentMille is the fraction of its spare units that a region lends at once, in thousandths. The
// region keeps the rest for its own requests, and for further questions.
const lentMille = 500

// A region keeps 1/keptParts of its part when it lends to a region that does not deny requests yet.
// Otherwise regions that are all short of units would pass the same units around.
const keptParts = 16

// A region that has 1/lowParts of its part or less is low. To a region that does not deny requests
// yet, it then lends only what its own requests will probably not use.
const lowParts = 4

// Question is a request to a region for units of a counter.
type Question = regionstore.Question

// Loan is what a region lends to another. The zero Loan has no units.
type Loan struct {
	ID      string         `json:"id,omitempty"` // identifies the loan when the lender takes it back
	Units   int64          `json:"units"`
	Receipt counter.Micros `json:"receipt"` // names the window
	// At is the reading of the lender's clock. The borrower restores the units from the same
	// reading of its own clock on: before that, the borrower's requests might give the previous
	// window more weight than the lender's requests did.
	At counter.Micros `json:"at"`
	// Later is the number of units that the borrower may use only later in the window. They become
	// usable evenly, from From until Full on the borrower's clock: see [Loan.usable]. A lender adds
	// them only for a [Question] with Ahead.
	Later int64          `json:"later,omitempty"`
	From  counter.Micros `json:"from,omitempty"`
	Full  counter.Micros `json:"full,omitempty"`
	// Back holds what the lender still had of the loans that the borrower recalls with
	// [Question.Recall].
	Back []Loan `json:"back,omitempty"`
	// Moving reports whether units of the counter are on their way to the lender, or back to
	// another region, so that another question might bring more.
	Moving bool `json:"moving,omitempty"`
}

// EarlyError reports that nothing was restored, because the borrower's clock is behind the lender's
// by Wait.
type EarlyError struct{ Wait counter.Micros }

func (e *EarlyError) Error() string {
	return "the region's clock is " + e.Wait.String() + " behind the lender's"
}

// errNothing reports that a region has no part of a limit.
var errNothing = errors.New("the region has no unit of the limit")

// errShares reports that the policies of two regions divide limits differently. With the limit of
// one policy and the shares of the other, a region could lend more than its part.
var errShares = errors.New("the regions divide limits differently: their policies differ")

// Lend charges the counter of this region with the units for which requests wait, and with a part
// of the units that are left after that. It returns the charged units as a loan. The argument
// namespace is the beginning of the keys whose units may be lent. If the region hardly uses the
// counter, and the borrower can hold units, the region lends what it will probably not use until
// the window ends. The argument named lent is what it has lent already. Lend returns an error if
// the question is not valid or the store does not answer; in the second case, what was charged is
// lost.
func Lend(ctx context.Context, store counter.Store, here policy.Division, namespace string, q *Question, lent tally) (Loan, error) {
	whole, err := check(q, namespace)
	if err != nil {
		return Loan{}, err
	}
	part, ok := here.Limit(&whole)
	switch {
	case q.Shares != here.Shares:
		return Loan{}, errShares
	case !ok:
		return Loan{}, errNothing
	}
	want := min(q.Want, part.Capacity())
	if !q.Short || q.Ahead || q.Scarce {
		look, err := take(ctx, store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpLook, Bounds: q.Bounds})
		if err != nil {
			return Loan{}, err
		}
		if q.Ahead && mayHold(&whole, q) > 0 && (!q.Short || whole.Window() <= aheadMax) {
			spare, _, _ := lent.spare(&part, &look, q.Short)
			if spare > look.Remaining/2 || !q.Short && look.Remaining*lowParts <= part.Capacity() {
				return lendAhead(ctx, store, &part, q, lent, &look)
			}
		}
		if !q.Short && look.Remaining*keptParts <= part.Capacity() || q.Scarce && look.Remaining*littleParts <= part.Capacity() {
			return Loan{}, nil
		}
	}
	r, err := take(ctx, store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpUpTo, Cost: min(max(1, q.Need), want), Min: 1,
		Max: want, ShareMille: lentMille, Bounds: q.Bounds})
	if err != nil || r.Granted <= 0 {
		return Loan{}, err
	}
	return Loan{Units: r.Granted, Receipt: r.Receipt, At: r.At}, nil
}

// Restore restores a loan to the counter of this region, and returns the number of restored units.
// The caller may call Restore again for the units of the loan that were not restored. It may also
// call Restore again after an [*EarlyError], but not after any other error.
func Restore(ctx context.Context, store counter.Store, here policy.Division, namespace string, q *Question, l Loan) (int64, error) {
	whole, err := check(q, namespace)
	if err != nil {
		return 0, err
	}
	part, ok := here.Limit(&whole)
	switch {
	case q.Shares != here.Shares:
		return 0, errShares
	case !ok:
		return 0, errNothing
	case l.Units < 1 || l.Units > counter.CountMax || l.Receipt <= 0:
		return 0, fmt.Errorf("a loan of %d units with the receipt %d is out of bounds", l.Units, l.Receipt)
	}
	if l.At > 0 {
		look, err := take(ctx, store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpLook, Bounds: q.Bounds})
		if err != nil {
			return 0, err
		}
		if wait := l.At - look.At; wait > 0 {
			return 0, &EarlyError{Wait: wait}
		}
	}
	refunded, err := take(ctx, store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpRefund, Cost: l.Units, Receipt: l.Receipt, Bounds: q.Bounds})
	if err != nil {
		return 0, err
	}
	return refunded.Granted, nil
}

// partOf returns this region's part of a question's limit. It returns an error if the question is
// not valid, or if the part has no units.
func partOf(here policy.Division, namespace string, q *Question) (counter.Limit, error) {
	whole, err := check(q, namespace)
	if err != nil {
		return counter.Limit{}, err
	}
	part, ok := here.Limit(&whole)
	if !ok {
		return counter.Limit{}, errNothing
	}
	return part, nil
}

// check validates a question, which may come from another machine, and returns its limit.
func check(q *Question, namespace string) (whole counter.Limit, err error) {
	if whole, err = counter.ParseLimit(q.Limit); err != nil {
		return whole, err
	}
	key := string(q.Key)
	switch {
	case len(key) > regionstore.KeyBytesMax:
		return whole, fmt.Errorf("a key of %d bytes is too long: it may have %d", len(key), regionstore.KeyBytesMax)
	case !strings.HasPrefix(key, namespace):
		return whole, errors.New("the key is in another namespace")
	case !policy.Lendable(&whole) || !strings.HasSuffix(key, counter.KeyTail(&whole)):
		return whole, fmt.Errorf("the key is not that of a counter with the limit %q, or it cannot be lent", q.Limit)
	case q.Want < 1 || q.Want > counter.CountMax:
		return whole, fmt.Errorf("%d units are out of bounds, which are 1 to %d", q.Want, counter.CountMax)
	case q.Need < 0 || q.Need > counter.CountMax:
		return whole, fmt.Errorf("%d needed units are out of bounds, which are 0 to %d", q.Need, counter.CountMax)
	case len(q.ID) > regionstore.IDBytesMax:
		return whole, fmt.Errorf("an ID of %d bytes is too long: it may have %d", len(q.ID), regionstore.IDBytesMax)
	case (whole.Calendar() != 0) != (q.Bounds != nil):
		return whole, errors.New("the bounds of a calendar window are missing, or there is none")
	}
	return whole, nil
}
