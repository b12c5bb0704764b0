// SPDX-License-Identifier: Apache-2.0

package policy

// Events defines which decisions are reported as events, and which parts of a request an event
// shows. The zero Events reports nothing.
type Events struct {
	Denied bool
	// AdmittedPPM is how many of a million admitted requests are reported, drawn at random.
	AdmittedPPM int64
	Address     AddressShown
	Path        PathShown
}

// Reports reports whether any decision is reported.
func (e Events) Reports() bool { return e.Denied || e.AdmittedPPM > 0 }

// EventsPPMMax is the greatest AdmittedPPM, which reports every admitted request.
const EventsPPMMax = 1_000_000

// AddressShown is how much of a client's address an event shows.
type AddressShown uint8

// What an event shows of an address.
const (
	AddressFull   AddressShown = iota
	AddressPrefix              // the first EventIPv4Bits or EventIPv6Bits bits
	AddressNone
)

// The numbers of leading bits that AddressPrefix shows.
const (
	EventIPv4Bits = 24
	EventIPv6Bits = 48
)

// PathShown is the part of a path that an event shows.
type PathShown uint8

// What an event shows of a path.
const (
	PathPattern PathShown = iota // the pattern of the rule that the path matches
	PathFull                     // the path as sent, without the query
	PathNone
)
