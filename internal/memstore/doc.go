// SPDX-License-Identifier: Apache-2.0

// Package memstore keeps counters in the memory of this process: a [core.Store] without a server.
//
// # Promise
//
// Decisions are those of [core.Decide]; a call of many checks is one atomic step. The store holds at most
// [Options.CountersMax] counters, makes none that would take it beyond [Options.BytesMax], and nobody gets a fresh
// allowance because it is full:
//
//   - Only a counter equal to one never used is dropped ([core.Limit.Fresh]). Each newcomer moves the clock hand of its
//     shard over a few counters; there is no sweep and no goroutine. Nothing is dropped while no newcomer comes.
//   - When there is no room, newcomers to a limit of a rule share 1,024 overflow counters, by the hash of their key, at
//     the full limit each. A client stays with its overflow counter until that is fresh, even when there is room again:
//     so whatever it has used and not got back by time is always in the one counter that answers it. Then it gets its
//     own. Results say Overflow, [Store.Overflows] counts them, and the log is told once a minute.
//   - Overflow counters come on top of the bound, at most 1,024 for each limit of each rule; rules come from the policy,
//     not from clients. A busy one is fresh only once its clients pause, so they may share it long after the rush.
//   - Units given back for a client that has no counter of its own are dropped. They are small change while the store is
//     full, and could otherwise become tokens that time has given back already. A forced charge of a newcomer goes to
//     its overflow counter, at most one window's count into debt.
//   - Penalties are never shared, and refusals by a shared counter are nobody's violation: a client must not be punished
//     for what others did. While there is no room the violations of a client that has no record yet are not remembered.
//   - A reset of a client that is counted with others does nothing.
//   - Two checks of one call that fall to the same overflow counter cannot both be charged: the second is refused. A call
//     about one request has no such two, as limits of one rule differ in window or algorithm.
//
// Two clients never share a counter otherwise: the whole key is compared. The hash is seeded per process, so that keys
// cannot be chosen to collide.
//
// The store's own clock does not go back, but to follow the wall clock when the two have come to be a calendar period
// apart: after a machine has slept for days its monotonic clock is that much behind. One given by [Options.Now] may:
// [core.Decide] absorbs that for counters that are held. One that was dropped while the clock was ahead starts anew
// when the clock is back, as it does for any client charged meanwhile. With such a clock fresh counters are therefore
// kept for two hours more while there is room. At the bound they are not: then a clock that was ahead by more than a
// window may cost the store its memory of it.
//
// # Price
//
// A decision about one of 100,000 clients allocates nothing and takes about twice what a map with a mutex and a number
// per client takes, most of it waiting for memory; callers meet only in one of 256 shards. Sliding logs allocate while
// they grow.
//
// A counter costs 34 bytes and its key, rounded up to 8, and between 6 and 12 bytes of index: 82 bytes with a key of 36
// at ten million, 90 at the worst fill of a hundred thousand. Above 256 bytes a record is rounded up to a whole part of a
// page, by an eighth at most for keys that clients can make. A key has some 40 bytes beside its client's id, and three for
// each byte of the id that keys escape: a client's counter takes 100 bytes with an id of 8, 355 with one of 240 letters and
// 840 with one of 240 bytes that are escaped (BenchmarkBytesPerCounter). The process takes twice that, for the garbage
// collector lets the heap double before it collects. A sliding log costs 16 bytes more for every instant it
// remembers; a counter of which units are out on lease some 30 more, until it is written after their end; a token
// bucket whose charges may come back some 200 more, until it is written when it has been full. The record of a
// client's violations is made at the first one; it counts as a counter and costs 24 bytes more for each that is
// remembered. Pages hold no pointers, so the garbage collector does not look at counters. An empty store takes 0.5 MB.
// Pages of 4 KiB are freed when all their counters are gone; the index keeps the size it once had.
//
// The longest pause is the split of an index segment, 217 counters: tens of microseconds for one shard. The directory
// above it doubles now and then: 2 KiB at the default bound, 1 MiB at the greatest.
//
// What counts against [Options.BytesMax] is the pages, the segments, and what logs, records and the maps take beside them.
// Counters that are held go on to grow beyond it: it is newcomers that are refused a place. The overflow counters do not
// count.
//
// # When not to use it
//
// Counters are gone with the process and nobody else sees them: limits that must hold across processes, or survive a
// restart, need a store on Redis. A single limit is cheaper with golang.org/x/time/rate.
package memstore
