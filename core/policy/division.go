// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package policy

import "github.com/penstock/penstock/core/counter"

// Bounds of a division among regions.
const (
	RegionsMax = 8    // regions of a policy
	ShareMax   = 1000 // the share of a region, in proportion to the shares of the others
)

// Division divides limits among the regions of a policy, in proportion to their shares. The zero
// Division divides nothing. A Division is immutable and comparable.
type Division struct {
	// Shares holds the shares of the regions, in the order of the regions' names. Each share is
	// between 1 and ShareMax; the elements beyond the last region are 0.
	Shares [RegionsMax]uint16
	Self   uint8 // the region whose parts are computed
}

// Divides reports whether the division has regions.
func (d Division) Divides() bool { return d.Shares[0] > 0 }

// InRegion holds the region of a rule; nil means that the rule has none.
type InRegion = *RegionPart

// RegionPart describes the region of a rule. A RegionPart is immutable.
type RegionPart struct {
	Division Division // the division of clients' own limits and of grants under the rule
	// Lends reports whether regions lend each other units of the rule's limits. Whole and
	// WholeTiers are then the limits over all regions, and the rule's limits are parts of them.
	Lends      bool
	Whole      []counter.Limit
	WholeTiers map[string][]counter.Limit
	// Gossip is the interval at which regions tell each other their counts; 0 means never. If it is
	// not 0, each region has the whole limits, except those that [Tellable] rejects.
	Gossip counter.Micros
}

// Part returns the region's part of n units, for n between 0 and counter.CountMax. The parts of
// all regions add up to n. Each part is n × share / sum of the shares, rounded down. The
// remaining units go to the regions with the largest remainders; if remainders are equal, the
// earlier region comes first.
func (d Division) Part(n int64) int64 {
	if !d.Divides() {
		return n
	}
	var sum int64
	for _, share := range d.Shares {
		sum += int64(share)
	}
	left, before := n, int64(0)
	own := n * int64(d.Shares[d.Self]) % sum
	for i, share := range d.Shares {
		product := n * int64(share)
		left -= product / sum
		if rest := product % sum; rest > own || rest == own && i < int(d.Self) {
			before++
		}
	}
	part := n * int64(d.Shares[d.Self]) / sum
	if before < left {
		part++
	}
	return part
}

// Limit returns the region's part of a limit. The result ok is false if the region has no unit of
// the limit. The parts of the count add up to the limit's count, and the parts of a burst to its
// burst. A burst that would take too long to fill is lowered.
func (d Division) Limit(l *counter.Limit) (part counter.Limit, ok bool) {
	count, burst := d.Part(l.Count()), d.Part(l.Capacity())
	if count < 1 || burst < 1 {
		return counter.Limit{}, false
	}
	part, err := l.Resized(count, burst)
	if err != nil {
		part, err = l.Resized(count, l.Fillable(count))
	}
	return part, err == nil
}

// GossipsMin is the least number of times that regions tell each other their counts in a window.
const GossipsMin = 6

// Tellable reports whether regions can enforce a limit by telling each other their counts at an
// interval. The limit must count in windows that are long enough.
func Tellable(l *counter.Limit, interval counter.Micros) bool {
	return Lendable(l) && l.Window() >= GossipsMin*interval
}

// Lendable reports whether regions can lend each other units of a limit. The limit must count in
// windows, which both regions identify by their start.
func Lendable(l *counter.Limit) bool {
	return l.Algorithm() == counter.FixedWindow || l.Algorithm() == counter.SlidingWindow
}
