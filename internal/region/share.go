// SPDX-License-Identifier: Apache-2.0

package region

import (
	"fmt"
	"math/big"
	"math/bits"

	"github.com/penstock/penstock/core/counter"
)

// RegionsMax is the greatest number of regions. Each share keeps a few words for every region.
const RegionsMax = 8

// A Transfer moves units of a share from one region to another.
type Transfer struct {
	From, To int
	// Serial is greater than that of every earlier transfer of this counter from From to To. It is
	// the next number after these, or the reading of the sender's clock if that is greater.
	Serial uint64
	Units  int64 // greater than 0; 0 means that there is no transfer
	// At is the reading of the sender's clock. The receiver uses the units from this reading of its
	// own clock.
	At counter.Micros
}

// A Share is what one region may admit of a limit, and what it has admitted. It is the durable part
// of an [Agent]. It is not safe for concurrent use.
type Share struct {
	self  int
	whole counter.Limit   // the limit of all regions together
	limit counter.Limit   // the limit of this region; invalid if units is 0
	units int64           // the units of the whole limit that this region has
	slots [1]counter.Slot // an array for counter.Decide
	clock counter.Micros  // the greatest reading so far; a clock that goes back stands still
	// sent is the last transfer to each region, with 0 units after it has been acknowledged.
	sent [RegionsMax]Transfer
	// applied is the serial number of the last transfer from each region.
	applied   [RegionsMax]uint64
	forgotten Forgotten
	// early are units from each region that this region may not use yet.
	early [RegionsMax]Transfer
}

// Forgotten is what a region keeps of all the shares that it has forgotten. For each other region,
// it has the greatest serial number of the transfers that these shares received from that region.
// For the region itself, it has the greatest serial number of the transfers that these shares sent.
// A Forgotten must be stored as durably as the shares.
type Forgotten [RegionsMax]uint64

// NewShare returns the share of a counter that no region has used: all of the limit at its home,
// nothing elsewhere. The limit must not have a calendar window, and must not be a token bucket that
// takes more than 31 days to fill.
func NewShare(limit counter.Limit, self, home int, forgotten Forgotten) (Share, error) {
	if self < 0 || self >= RegionsMax || home < 0 || home >= RegionsMax {
		return Share{}, fmt.Errorf("region %d with home %d: regions are numbered from 0 to %d",
			self, home, RegionsMax-1)
	}
	if limit.Calendar() != 0 {
		return Share{}, fmt.Errorf("limit %q cannot be divided among regions: "+
			"use a window with a length, such as 24h, in place of a calendar unit", limit)
	}
	if tooSlow(&limit) {
		return Share{}, fmt.Errorf("limit %q cannot be divided among regions: "+
			"it takes more than 31 days to fill; use a smaller burst or a higher rate", limit)
	}
	s := Share{self: self, whole: limit, forgotten: forgotten}
	if self == home {
		s.resize(limit.Capacity())
	}
	return s, nil
}

// Units returns the units of the whole limit that this region has.
func (s *Share) Units() int64 { return s.units }

// Take decides a request of the given cost at a reading of the region's clock.
func (s *Share) Take(now counter.Micros, cost int64) counter.Result {
	s.advance(now)
	if s.fraction() > 0 {
		if look := s.decide(counter.OpLook, cost+1); look.Denied {
			look.Remaining = max(0, look.Remaining-1)
			return look
		}
	}
	return s.decide(counter.OpTake, cost)
}

// Spare returns how many units requests could use now.
func (s *Share) Spare(now counter.Micros) int64 {
	s.advance(now)
	return max(0, s.decide(counter.OpLook, 0).Remaining-s.fraction())
}

// Share.fraction returns 1 if a sliding window counts a part of the previous window, and otherwise
// 0. A single counter rounds this part down once, but the shares round it down once in each region.
// So a region keeps a unit unused unless it has the whole limit.
func (s *Share) fraction() int64 {
	if s.whole.Algorithm() != counter.SlidingWindow || s.units == s.whole.Capacity() {
		return 0
	}
	window := s.whole.Window()
	before := s.slots[0].State.Aux
	if start := s.clock - s.clock%window; s.slots[0].State.At != start {
		before = s.slots[0].State.Used
	}
	return min(1, before)
}

// Give takes units out of the share for another region. If the share has fewer spare units, Give
// takes all of these. It returns false if the share has no spare units, or if an earlier transfer
// to the region has not been acknowledged.
func (s *Share) Give(now counter.Micros, to int, units int64) (Transfer, bool) {
	units = min(units, s.Spare(now))
	if units <= 0 || to == s.self || s.sent[to].Units > 0 {
		return Transfer{}, false
	}
	s.resize(s.units - units)
	sent := &s.sent[to]
	serial := max(sent.Serial+1, s.forgotten[s.self]+1, uint64(s.clock))
	*sent = Transfer{From: s.self, To: to, Serial: serial, Units: units, At: s.clock}
	return *sent, true
}

// Receive applies a transfer, unless it was applied before. It reports false if the transfer may
// belong to a share that this region has forgotten. The sender then renumbers the transfer if it
// still waits for an acknowledgment. Such a transfer cannot have been applied: a share is forgotten
// only after all senders have confirmed that they know that their transfers were applied.
func (s *Share) Receive(now counter.Micros, t Transfer) bool {
	if t.Serial <= s.forgotten[t.From] {
		return false
	}
	if t.Serial <= s.applied[t.From] {
		return true
	}
	s.applied[t.From] = t.Serial
	early := &s.early[t.From]
	early.Units += t.Units
	early.At = max(early.At, t.At)
	s.advance(now)
	return true
}

// Renumber gives a new serial number, greater than floor, to a transfer that a region did not
// apply, and returns the transfer. It returns false if the transfer is known to be applied.
func (s *Share) Renumber(to int, serial, floor uint64) (Transfer, bool) {
	t := &s.sent[to]
	if t.Serial != serial || t.Units == 0 {
		return Transfer{}, false
	}
	t.Serial = max(floor, t.Serial) + 1
	return *t, true
}

// Applied returns the serial number of the last transfer from a region, 0 for none.
func (s *Share) Applied(from int) uint64 { return s.applied[from] }

// Forget returns what the region must keep of a share that is like a new one, and false if the
// share is not like a new one. The home may forget a share that has all of the units, and any other
// region may forget a share that has none.
func (s *Share) Forget(now counter.Micros, home int, known [RegionsMax]uint64) (Forgotten, bool) {
	forgotten, like := s.forgotten, int64(0)
	if s.self == home {
		like = s.whole.Capacity()
	}
	if s.Spare(now) != like || s.units != like || s.Moving() > 0 {
		return Forgotten{}, false
	}
	for i := range s.applied {
		if s.applied[i] > known[i] || s.early[i].Units > 0 {
			return Forgotten{}, false
		}
		forgotten[i] = max(forgotten[i], s.applied[i])
		forgotten[s.self] = max(forgotten[s.self], s.sent[i].Serial)
	}
	return forgotten, true
}

// Acknowledged records that a region has applied the transfer with the given serial number.
func (s *Share) Acknowledged(by int, serial uint64) {
	if s.sent[by].Serial == serial {
		s.sent[by].Units = 0
	}
}

// Unacknowledged returns the transfer to a region that must be repeated, with 0 units if there is
// none.
func (s *Share) Unacknowledged(to int) Transfer { return s.sent[to] }

// Moving returns the units that this region has given away and that might not have arrived.
func (s *Share) Moving() (units int64) {
	for i := range s.sent {
		units += s.sent[i].Units
	}
	return units
}

// Share.advance moves the share's clock, which never goes back, and adds the units that may be used
// now.
func (s *Share) advance(now counter.Micros) {
	s.clock = max(s.clock, now)
	for i := range s.early {
		if e := &s.early[i]; e.Units > 0 && e.At <= s.clock {
			s.resize(s.units + e.Units)
			*e = Transfer{}
		}
	}
}

// Share.resize changes the number of units of this region. Before that, it brings the counter up to
// date under the old share.
func (s *Share) resize(units int64) {
	s.refill()
	s.units = units
	if units > 0 {
		s.limit = part(&s.whole, units)
	}
}

// Share.refill brings a token bucket up to date with the rate of the present share.
func (s *Share) refill() {
	if s.units == 0 || s.whole.Algorithm() != counter.TokenBucket || s.slots[0].State.At == 0 {
		return
	}
	s.decide(counter.OpLook, 0)
	// The elapsed part of a tick is lost. At another rate, that part could be worth more.
	s.slots[0].State.At = max(s.slots[0].State.At, s.clock)
}

// part returns the limit of a region that has the given units, at least 1, of a whole limit. A
// token bucket is divided in its burst and in its rate.
func part(whole *counter.Limit, units int64) counter.Limit {
	if units == whole.Capacity() {
		return *whole
	}
	limit, err := whole.Resized(units, 0)
	if whole.Algorithm() == counter.TokenBucket {
		count, window := partOfRate(whole, units)
		limit, err = counter.NewLimit(counter.TokenBucket, count, window, units)
	}
	if err != nil {
		// Unreachable: TestEveryPartIsValid divides every kind of limit.
		panic(err)
	}
	return limit
}

// partOfRate returns a count and a window whose rate is units / capacity of the whole limit's rate,
// or a little less.
func partOfRate(whole *counter.Limit, units int64) (int64, counter.Micros) {
	// The longest window gives the most exact rate, which is
	// count × units × window / (whole window × capacity).
	product := func(x, y int64) *big.Int { return new(big.Int).Mul(big.NewInt(x), big.NewInt(y)) }
	rate, per := product(whole.Count(), units), product(int64(whole.Window()), whole.Capacity())
	in := func(window *big.Int) *big.Int {
		count := new(big.Int).Mul(rate, window)
		return count.Quo(count, per)
	}
	window := big.NewInt(int64(counter.WindowMax))
	if per.Cmp(window) < 0 {
		window.Set(per)
	}
	if count := in(window); count.Cmp(big.NewInt(counter.CountMax)) > 0 {
		window.Mul(window, big.NewInt(counter.CountMax)).Quo(window, count)
	}
	return in(window).Int64(), counter.Micros(window.Int64())
}

// tooSlow reports whether a token bucket takes more than the longest window to fill. The rate of a
// single unit of such a bucket could not be expressed.
func tooSlow(limit *counter.Limit) bool {
	if limit.Algorithm() != counter.TokenBucket {
		return false
	}
	high, low := bits.Mul64(uint64(limit.Capacity()), uint64(limit.Window()))
	mostHigh, mostLow := bits.Mul64(uint64(limit.Count()), uint64(counter.WindowMax))
	return high > mostHigh || high == mostHigh && low > mostLow
}

// Share.decide performs one operation on the counter at the share's clock.
func (s *Share) decide(op counter.Op, cost int64) counter.Result {
	if s.units == 0 {
		return counter.Result{At: s.clock, Denied: cost > 0, Wait: counter.Never}
	}
	check, result := [1]counter.Check{{Limit: &s.limit, Op: op, Cost: cost}}, [1]counter.Result{}
	counter.Decide(s.clock, check[:], s.slots[:], result[:])
	s.slots[0].Write = false
	return result[0]
}
