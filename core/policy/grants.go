// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// GrantsMax is the greatest number of grants that one client's record may have.
const GrantsMax = 16

// Grant adds units to one limit of a client, in one window: the one that contains At. The limit
// must count in a fixed or a calendar window.
type Grant struct {
	Rule   string // the name of a rule
	Window string // the label of the limit's window, such as "3600s" or "month"; "" for the longest window
	Units  int64
	At     counter.Micros
}

// Grants are the grants of one client's record. Grants are immutable and safe for concurrent use.
type Grants struct {
	list []Grant
	// derived is the result of the first call of Derived. It is nil before that.
	derived atomic.Pointer[any]
}

func newGrants(list []Grant) (*Grants, error) {
	if len(list) == 0 {
		return nil, nil
	}
	if len(list) > GrantsMax {
		return nil, slim.NewError(strconv.Itoa(len(list)) + " grants are too many: a record may have " + strconv.Itoa(GrantsMax) +
			", until their windows end")
	}
	for i := range list {
		switch g := &list[i]; {
		case !isName(g.Rule):
			return nil, slim.NewError("grant: " + slim.Quote(g.Rule) + " is not the name of a rule: write one")
		case g.Units < 1 || g.Units > counter.CountMax:
			return nil, slim.NewError("grant: " + strconv.FormatInt(g.Units, 10) + " units are out of bounds, which are 1 to " + strconv.FormatInt(counter.CountMax, 10))
		}
	}
	return &Grants{list: list}, nil
}

// WithGrants returns the overrides together with the grants in the list, or nil if there are
// neither. The receiver may be nil, and is not changed. WithGrants retains the list.
func (o *Overrides) WithGrants(list []Grant) (*Overrides, error) {
	grants, err := newGrants(list)
	if err != nil || grants == nil {
		return o, err
	}
	all := &Overrides{grants: grants}
	if o != nil {
		all.sets = o.sets
	}
	return all, nil
}

// Grants returns the grants, or nil if there are none.
func (o *Overrides) Grants() *Grants {
	if o == nil || o.grants == nil {
		return nil
	}
	return o.grants.(*Grants)
}

// List returns the grants. The list belongs to the Grants. A nil *Grants is empty.
func (g *Grants) List() []Grant {
	if g == nil {
		return nil
	}
	return g.list
}

// Derived returns a value computed from the grants and cached with them, as [Overrides.Derived]
// does.
func (g *Grants) Derived(derive func(*Grants) any) any {
	if made := g.derived.Load(); made != nil {
		return *made
	}
	made := derive(g)
	g.derived.CompareAndSwap(nil, &made)
	return *g.derived.Load()
}
