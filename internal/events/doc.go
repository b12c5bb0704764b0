// SPDX-License-Identifier: Apache-2.0

// Package events reports the decisions of a process as a log of events, one JSON object on a line.
//
// # Promise
//
// Equal decisions within a second are one event with a count. Two decisions are equal if they have
// the same policy, version, rule, outcome and client. The event shows the method, path, address and
// tier of the first decision. Every decision is counted exactly once: the counts of all events,
// including those of kind dropped, add up to the number of decisions.
//
// There are at most [EventsMax] events in a second. Further decisions are only counted, and so are
// those of events that the [Sink] did not write. The counts are written as events of kind dropped
// as soon as the sink works.
//
// A sink never delays a request. One goroutine at a time calls the sink, once a second, and holds
// no lock that requests need. While the sink blocks, the events of that time are gathered as if
// they belonged to one second.
//
// [Log.Tail] returns the latest events to other readers. A slow reader does not delay anything: it
// misses events, and gets their number.
//
// Every line is valid JSON of at most [LineBytesMax] bytes, whatever names clients take.
//
// # Price
//
// A [Log] without decisions takes almost no memory, and starts no goroutine. A decision equal to an
// earlier one takes about 35 ns and no allocation. The events of two seconds take from 1 MB to at
// most 7 MB. The latest [TailMax] events, for those who follow the log, take at most 5 MB, and
// usually 1 MB. The latest denials of [RecentClientsMax] clients take at most 11 MB, and a fifth of
// that if names and paths are short.
//
// # When not to use it
//
// Do not bill by events, because they may be dropped. For alerts, use the metrics, which count
// every decision.
package events
