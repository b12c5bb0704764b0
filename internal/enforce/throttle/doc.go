// SPDX-License-Identifier: Apache-2.0

// Package throttle queues requests that wait for a limit, in order of arrival, with one queue for
// each counter and limit.
//
// # Promise
//
// A waiting request has a ticket. A ticket is in one queue at a time, where it waits for its turn
// and then asks the store. Of the tickets that wait for their turn, the oldest is the first, even
// if it joins the queue last. Its turn comes when no ticket of the queue asks the store, or when
// the units that the counter had left at the last answer suffice for this ticket and for all that
// ask. So a ticket waits only for older tickets and for calls under way. The oldest ticket of all
// has its turn at the latest when the calls of its queue have returned, and no two tickets wait for
// each other. A ticket that leaves, for whatever reason, frees its place at once. The queues and
// the total number of waiting requests are bounded. Beyond the bounds a request is denied at once.
//
// Queues have no clock and do not depend on requests. [Wait] uses them to decide a request under
// throttle rules. Wait takes units in order of arrival, and takes none for a request that has left.
// When a ticket begins to ask, every older ticket of its queue is asking too, and the known units
// suffice for all of them. A ticket that the store denies nevertheless, because another node took
// its units, returns to its place, and no younger ticket begins to ask before it. So requests
// overtake each other only while their calls are under way together.
//
// Clients of several tiers can share a counter, each with the limit of its tier. Each limit has its
// own queue, because a used-up limit must not delay requests whose limit has room.
//
// A request under several rules is in the queue of the counter for which it has to wait longest, so
// the requests behind it wait for that counter too. At its turn it takes its units. But if an older
// request waits in the queue of another of its counters, or asks there for the last known units,
// the request first moves to that queue.
//
// Requests under several rules are not guaranteed to be admitted in order. If another counter
// denies such a request at its turn, the request moves to that counter's queue. A request that
// needs only the first counter then takes the unit. If requests under each of two rules keep
// arriving as fast as the limits allow, a request under both can move back and forth until it is
// late. Keeping both places would be worse. A client whose own limit is used up through another
// node would then block the queue of all clients.
//
// # Price
//
// A queue passes as many requests in a round trip of the store as the counter has units, up to 256.
// While no request waits, a check is one atomic read. Otherwise there is one lock for all queues,
// held for a map lookup of about 0.1 µs. A ticket takes about 200 bytes. When the first request of
// a client's queue finds room there but must wait for another counter, it moves to that counter's
// queue. The rest of its queue can follow, one by one, and return. A move inspects two queues and
// does not call the store.
//
// # When not to use it
//
// The package cannot order the requests of several nodes: each node has its own queues, and there
// is no order between nodes.
package throttle
