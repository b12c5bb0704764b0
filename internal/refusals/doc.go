// SPDX-License-Identifier: Apache-2.0

// Package refusals finds the clients that are refused most, without keeping all clients: a bounded sketch for people who
// look into what is going on. It is the Space-Saving algorithm (Metwally, Agrawal, El Abbadi 2005) in shards.
//
// # Promise
//
// Memory is bounded whatever clients call themselves: [Entries] of them, 16 shards of 64. For every client listed,
// Refused − Over <= its true number of refusals <= Refused, all of them decayed alike. Over is at most N/64, N being the
// refusals of its shard; with many clients that is about a 1,024th of all refusals. A client that is not listed was refused no
// more often than that either: whoever causes more than a 64th of the refusals of its shard is listed.
//
// Every count is halved once each half-life, an hour if nothing else is said: after a day 10 million refusals are less
// than one, and no longer listed.
//
// # Price
//
// Adding costs 0.12 µs under one lock of 16, and 0.3 µs for a client that is new (2 cores, 2026). Nothing is allocated once the
// sketch is full. It takes 640 KB then.
//
// # When not to use it
//
// To decide anything: it is an estimate. Nor as labels of a metric: its clients change all the time.
package refusals
