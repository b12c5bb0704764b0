// SPDX-License-Identifier: Apache-2.0

// Package events reports the decisions of a process as a log of events, one JSON object on a line.
//
// # Promise
//
// Equal decisions within a second are one event with a count. Two decisions are equal if the policy
// and its version, the rule, the outcome and the client are. Method, path, address and tier are
// those of the first. Nothing is counted twice and nothing is lost without a count: the counts of
// all events, those of kind dropped included, add up to the decisions that were handed over.
//
// There are at most [EventsMax] events in a second. Decisions beyond them are counted, and so are
// those of events that the [Sink] did not take. The counts are written as events of kind dropped as
// soon as the sink takes one.
//
// A sink never delays a request. It is called by one goroutine at a time, once a second, without a
// lock that a request takes. While it blocks, the events of that time gather as those of one second.
//
// Every line is valid JSON of at most [LineBytesMax] bytes, whatever names clients take.
//
// # Price
//
// A [Log] that no decision is handed to takes no memory to speak of, and starts no goroutine. A
// decision equal to an earlier one takes some 35 ns and no allocation. Memory is 1 MB and at most 7 MB
// for the events of two seconds, and at most 11 MB for the last denials of [RecentClientsMax] clients:
// a fifth of that if names and paths are short.
//
// # When not to use it
//
// To bill: events may be dropped. Nor to alert: the metrics count every decision.
package events
