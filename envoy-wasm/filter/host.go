// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// Host is the filter's interface to Envoy. The methods of a Host do not block.
type Host interface {
	// Call sends a request to the bridge. The function named answered runs later, once, with status
	// 0 if there was no answer. If Call returns an error, nothing was sent, and answered does not
	// run.
	Call(c Call, answered func(Reply)) error
	// Wake makes Envoy call [Filter.Flush] soon. Only Flush may make calls that outlive a stream.
	Wake() error
	// TickEvery makes Envoy call [Filter.Tick] at the given interval from now on.
	TickEvery(millis uint32) error
	// Resume makes a paused request continue.
	Resume(stream uint32)
	// Respond answers a request in place of the upstream.
	Respond(stream uint32, r Response)
	// Now returns the time of the worker's clock.
	Now() counter.Micros
	// Elapsed returns the time of a monotonic clock of the worker, with any origin.
	Elapsed() counter.Micros
	// Property returns a value that Envoy provides for the stream whose callback is running.
	Property(path ...string) (value string, ok bool)
	// Count adds one to a counter of Envoy's statistics.
	Count(Counter)
	// Held adds to the gauge of leased units, which all workers share.
	Held(change int64)
	// Shared returns a value that all workers share, and its version for Share. The value is nil,
	// and its version 0, if it was never written.
	Shared(record uint32) (value []byte, cas uint32)
	// Share writes a value unless its version has changed. The first write of the value by another
	// worker is a change too. Share reports whether it wrote.
	Share(record uint32, value []byte, cas uint32) bool
	// Warn writes a line into Envoy's log.
	Warn(line string)
}

// Call is a request to the bridge.
type Call struct {
	Method, Path  string
	Header        [][2]string
	Body          []byte
	TimeoutMillis uint32
}

// LeasingHeader is the header by which a bridge announces that it accepts calls about leases.
const LeasingHeader = wire.LeasingHeader

// NodesHeader is the header with the number of nodes that share the bridge's store.
const NodesHeader = wire.NodesHeader

// DenialsHeader is the header by which a bridge requests reports of denials.
const DenialsHeader = wire.DenialsHeader

// WantsUsage is the value of DenialsHeader if the bridge requests reports of admissions, too.
const WantsUsage = wire.WantsUsage

// Reply is an answer of the bridge.
type Reply struct {
	Status  int // 0 means no answer
	ETag    string
	Leases  string // the LeasingHeader; "" if the bridge rejects calls about leases
	Nodes   int64  // the NodesHeader; 0 if absent
	Denials bool   // whether the DenialsHeader is present
	Usage   bool   // whether the value of the DenialsHeader is WantsUsage
	Body    []byte
}

// Response is a response that the filter itself sends to a client.
type Response = response.Response

// Counter names a counter of Envoy's statistics.
type Counter uint8

// The counters of outcomes of requests, and of reasons why the bridge did not decide.
const (
	CounterAllowed Counter = iota
	CounterDenied
	CounterDegraded
	// the request waited, under a throttle rule or for a loan, and was admitted; it is counted as
	// allowed too
	CounterDelayed
	CounterRedirected  // the request continued after an internal redirect; it was decided before
	CounterOversized   // the request was too large for a question; counted as denied too
	CounterTimeout     // the bridge was silent
	CounterUnreachable // the bridge could not be called, or the call failed
	// The bridge's answer was an error, could not be read, or did not match the request.
	CounterUnanswered
	CounterUnavailable // the bridge's store did not answer
	CounterUnknown     // the bridge does not have the filter's policy
	CounterOpen        // no call was made, because the last ones failed
	// no call was made, because the queues are full or the request waited too long; the request is
	// counted as denied too
	CounterFull
	CounterUnreadable   // responses without a usable cost; the default was charged
	CounterUnsettled    // responses that could not be settled; the reservation remains the charge
	CounterPolicyLoaded // a policy came into force
	CounterPolicyRejected
	CounterPanic
	CounterNoPolicy   // there is no policy yet; on_error of the filter's configuration decides
	CounterLeased     // the request was admitted from leased units, without a call; it is counted as allowed too
	CounterRemembered // the request was denied because of a recent denial, without a call; it is counted as denied too
	// the bridge is overloaded; counted as denied too, unless the filter tries again
	CounterBusy
	CounterLate // the call was answered after the deadline
	// the request was denied, because on_error has already allowed the whole limit; it is counted
	// as denied too
	CounterSpent
	CounterInvalidTarget // the request got 400, because its path or host has an unsupported form
	counterCount
)

// GaugeHeld is the name of the gauge of leased units.
const GaugeHeld = "units_in_hand"

// CounterNames are the names of the counters, by Counter.
var CounterNames = [counterCount]string{"allowed", "denied", "degraded", "delayed", "redirected", "oversized",
	"bridge_timeout", "bridge_unreachable", "bridge_unanswered", "store_unavailable", "policy_unknown", "breaker_open",
	"waiting_full", "unreadable_costs", "unsettled", "policy_loaded", "policy_refused", "panic", "no_policy",
	"leased", "remembered", "bridge_busy", "bridge_late", "degraded_limited", "invalid_target"}
