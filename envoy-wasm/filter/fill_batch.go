// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/internal/envoy/wire"
)

// fillBatch moves items from the queues into the call.
func (f *Filter) fillBatch() {
	c := &f.calls
	taken := 0
	for taken < len(c.waiting) && c.waiting[taken].state != waiting {
		taken++ // the request has ended, or its time is over
	}
	version, asks := "", taken < len(c.waiting)
	if len(f.leases.extras) > 0 {
		next := f.leases.extras[0]
		version = next.version
		// a report about a former policy could wait forever behind other questions
		asks = asks && !next.isReport()
	}
	if asks {
		version = c.waiting[taken].asking.policy.version
	}
	c.body = wire.AppendCall(c.body[:0], version)
	// questions come first, because items for which no request waits could leave no room for a long
	// question
	if asks {
		c.waiting[taken].appendToBatch()
		taken++
	}
	f.appendExtras(version)
	for taken < len(c.waiting) && c.fitsInBatch(c.waiting[taken], version) {
		c.waiting[taken].appendToBatch()
		taken++
	}
	c.cutWaiting(taken)
	f.appendSettlements()
}

// fitsInBatch reports whether a request can share the call with the items that are in the call.
func (c *calls) fitsInBatch(s *Stream, version string) bool {
	switch {
	case s.state != waiting || len(c.filling.items) == 0:
		return true
	case s.asking.policy.version != version:
		return false
	default:
		return c.roomFor(s.asking.attrs.size())
	}
}

// roomFor reports whether an item of that size can share the call with the items in the call.
func (c *calls) roomFor(bytes int) bool {
	items, kept := len(c.filling.items), min(len(c.settling), settlementsMin)
	return items == 0 || items < batchItemsMax-kept && len(c.body)+bytes <= batchBytesMax-kept*settlementBytes
}

// Questions leave room in a call for the settlements that wait, up to settlementsMin of a usual
// size. Without this room, a client that sends more requests than fit into the calls could prevent
// the costs of responses from being charged.
const (
	settlementsMin  = batchItemsMax / 4
	settlementBytes = 1 << 10
)

// appendToBatch adds the request's question to the call, if the request still waits.
func (s *Stream) appendToBatch() {
	c := &s.f.calls
	if s.state != waiting {
		return
	}
	whole, length := false, len(c.body)
	defer func() {
		if !whole {
			c.body = c.body[:length]
		}
	}()
	defer s.rescueDecision()
	a := s.asking
	kind, units := wire.KindAsk, s.f.unitsToTake(a)
	if len(units) > 0 {
		kind = wire.KindLease
		c.lease()
	}
	c.body = wire.AppendAsk(c.body, kind, &a.attrs.Ask, units)
	whole = true
	c.recordItem(&batchItem{stream: s, gate: s.gate, wants: a.wants, checks: len(a.plan.Checks())})
	a.wants, s.gate = nil, nil
}

// recordItem records an item of the call. An append for each kind of item would take a kilobyte of
// the filter.
//
//go:noinline
func (c *calls) recordItem(item *batchItem) { c.filling.items = append(c.filling.items, *item) }

// calls.lease marks the call as one about leases.
func (c *calls) lease() {
	c.filling.leasing = true
	wire.Leasing(c.body)
}

// appendSettlements adds settlements to the call. The call keeps them until the answer arrives,
// because a bridge rejects calls that it has no room for, and a bridge of an earlier release
// rejects calls about leases.
func (f *Filter) appendSettlements() {
	c := &f.calls
	settled := 0
	for _, d := range c.settling {
		if items := len(c.filling.items); items >= batchItemsMax || items > 0 && len(c.body) > batchBytesMax {
			break
		}
		settled++
		c.settlers.now = d.turn
		c.body = wire.AppendSettle(c.body, &wire.Settle{Receipt: d.receipt, Status: d.response.Status(), Headers: d.response.Known(), Numbers: d.numbers})
		c.recordItem(&batchItem{due: d})
	}
	rest := copy(c.settling, c.settling[settled:])
	clear(c.settling[rest:])
	c.settling = c.settling[:rest]
}
