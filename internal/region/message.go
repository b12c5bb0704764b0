// SPDX-License-Identifier: Apache-2.0

package region

import "github.com/penstock/penstock/core/counter"

// A Kind is the purpose of a message.
type Kind uint8

const (
	// Ask requests units. The home forwards it to the regions that the sender did not ask.
	Ask Kind = iota
	// Gift carries a transfer, as an answer to an Ask.
	Gift
	// None answers an Ask: the sender has no units to give for some time.
	None
	// Ack acknowledges the transfer with a serial number.
	Ack
	// Stale answers a Gift that may belong to a share that was forgotten.
	Stale
	// Close tells a region that its transfer with a serial number was applied, and asks it to
	// confirm this.
	Close
	// Closed answers a Close: the region knows that its transfer was applied.
	Closed
)

// A Message is what the agents of two regions send each other about one counter. It may be lost,
// repeated, delayed and delivered out of order.
type Message struct {
	Kind     Kind
	From, To int
	// Question identifies an Ask among those of its region. Answers to the Ask have the same
	// Question. It is 0 in a Gift that is repeated, and in an Ack.
	Question uint64
	Need     int64 // Ask: the units that the waiting requests lack, at least 1
	// Rate is the units requested per second in the sender's region.
	Rate float64
	// Young reports whether requests have arrived for too short a time to rely on Rate.
	Young bool
	// Asked is the set of regions to which an Ask was sent, one bit for each. The home forwards the
	// Ask to further regions, and adds them to the set. Its answer contains the new set.
	Asked    uint8
	Transfer Transfer       // Gift
	Serial   uint64         // Ack, Stale, Close, Closed
	Floor    uint64         // Stale: the greatest stale serial number
	Wait     counter.Micros // None: how long the sender expects to have no units
	// Has is the sender's share.
	Has int64
}
