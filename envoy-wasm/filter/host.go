// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// Host is what the filter needs of Envoy. Its methods return at once.
type Host interface {
	// Call sends a request to the bridge; answered is called later, once, with status 0 if there was no answer. An error
	// means that nothing was sent, and answered is not called.
	Call(c Call, answered func(Reply)) error
	// Wake makes Envoy call [Filter.Flush] soon. Only from there calls may be sent that outlive a stream.
	Wake() error
	// TickEvery makes Envoy call [Filter.Tick] so often from now on.
	TickEvery(millis uint32) error
	// Resume lets a paused request go on.
	Resume(stream uint32)
	// Respond answers a request in place of the upstream.
	Respond(stream uint32, r Response)
	// Now is the time of the worker's clock.
	Now() core.Micros
	// Elapsed is the time of a clock of the worker's that does not go back, from any instant.
	Elapsed() core.Micros
	// Property returns a value that Envoy knows, for the stream whose callback is running.
	Property(path ...string) (value string, ok bool)
	// Count adds one to a counter of Envoy's statistics.
	Count(Counter)
	// Held tells by how much the units in hand have become more, or fewer, for a gauge of Envoy's that all workers share.
	Held(change int64)
	// Shared returns a value that all workers of Envoy have in common, and what to write it with; nil if it was never written.
	Shared(record uint32) (value []byte, cas uint32)
	// Share writes it, unless it was written since; with a cas of 0 in any case. It reports whether it was written.
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

// LeasingHeader is the header of a reply that says that who answers reads calls about leases.
const LeasingHeader = wire.LeasingHeader

// NodesHeader is the header of a reply that says how many nodes count in the bridge's store.
const NodesHeader = wire.NodesHeader

// Reply is what the bridge answered.
type Reply struct {
	Status int // 0: nothing
	ETag   string
	Leases string // the LeasingHeader; "" of who does not read calls about leases
	Nodes  int64  // the NodesHeader; 0 if it is not there
	Body   []byte
}

// Response is an answer of our own to a client.
type Response struct {
	Status     uint32
	Headers    [][2]string
	Body       []byte
	GRPCStatus int32 // what Envoy tells gRPC clients; -1 leaves it to Envoy
}

// Counter names a counter of Envoy's statistics.
type Counter uint8

// The counters: what became of requests, and why the bridge did not decide.
const (
	CounterAllowed Counter = iota
	CounterDenied
	CounterDegraded
	CounterDelayed      // waited for a throttle rule and was admitted; counted as allowed too
	CounterRedirected   // goes on after an internal redirect, decided before
	CounterOversized    // too large to be asked about; counted as denied too
	CounterTimeout      // a request's deadline was over
	CounterUnreachable  // the bridge could not be called, or the call failed
	CounterUnanswered   // the bridge answered with an error, or what cannot be read
	CounterUnavailable  // the bridge's store did not answer
	CounterUnknown      // the bridge does not know our policy, or decides by another
	CounterOpen         // no call: the last ones failed
	CounterFull         // no call: as many wait as may, or it has waited too long; counted as denied too
	CounterUnreadable   // responses that said no cost, or an absurd one, so that the default was charged
	CounterUnsettled    // responses that the bridge could not be told of: what was reserved stands
	CounterPolicyLoaded // a policy came into force
	CounterPolicyRefused
	CounterPanic
	CounterNoPolicy      // there is none yet: on_error of the filter's configuration decides
	CounterLeased        // admitted from units in hand, without a call; counted as allowed too
	CounterRemembered    // refused by what was refused a moment ago, without a call; counted as denied too
	CounterBusy          // the bridge has too much to do; counted as denied too, unless it is asked once more
	CounterLate          // the call was answered after the deadline; counted as a timeout too
	CounterSpent         // refused, since on_error has let pass as much as the limit; counted as denied too
	CounterInvalidTarget // answered 400: its path or host is of a form that is not served
	counterCount
)

// GaugeHeld is the name of the gauge of units in hand.
const GaugeHeld = "units_in_hand"

// CounterNames are the names of the counters, by Counter.
var CounterNames = [counterCount]string{"allowed", "denied", "degraded", "delayed", "redirected", "oversized",
	"bridge_timeout", "bridge_unreachable", "bridge_unanswered", "store_unavailable", "policy_unknown", "breaker_open",
	"waiting_full", "unreadable_costs", "unsettled", "policy_loaded", "policy_refused", "panic", "no_policy",
	"leased", "remembered", "bridge_busy", "bridge_late", "degraded_limited", "invalid_target"}
