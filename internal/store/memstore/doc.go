// SPDX-License-Identifier: Apache-2.0

// Package memstore keeps counters in the memory of this process. The package's [Store] is a
// [counter.Store].
//
// # Promise
//
// The store decides as [counter.Decide] does. A call of many checks is one atomic step. The store
// holds at most [Options.CountersMax] counters, and creates none that would exceed
// [Options.BytesMax]. A full store gives no client a fresh allowance:
//
//   - The store removes a counter only when it is fresh: equal to one never used
//     ([counter.Limit.Fresh]). A newcomer is a client without a counter. For each newcomer, the
//     store examines the next few counters of the newcomer's shard and removes those that are
//     fresh. There is no sweep and no goroutine: without newcomers no counter is removed.
//   - If there is no room, newcomers to a limit of a rule share 1,024 overflow counters, selected
//     by the hash of their key. Each has the full limit. A client keeps its overflow counter until
//     that counter is fresh, even if there is room again, because only that counter knows what the
//     client has used. After that, the client gets its own counter. Results have Overflow set,
//     [Store.Overflows] counts them, and a line is logged once a minute.
//   - Overflow counters do not count against the bound. There are at most 1,024 for each limit of
//     each rule, and rules come from the policy, not from clients. A busy overflow counter becomes
//     fresh only when its clients pause, so they can share it long after the store was full.
//   - Refunds of a client without its own counter are dropped, because a shared bucket might have
//     refilled those tokens already. A forced charge of a newcomer goes to its overflow counter,
//     with a debt of at most one window's count.
//   - Penalties are never shared, and a denial by a shared counter is not a violation, so no client
//     is punished for the requests of others. While there is no room, the violations of a client
//     without a record are not remembered.
//   - A reset of a client with a shared counter does nothing.
//   - If two checks of one call have the same overflow counter, the second is denied. The checks of
//     one request never share a counter, because limits of one rule differ in window or algorithm.
//
// Apart from overflow counters, two clients never share a counter, because the whole key is
// compared. The hash is seeded per process, so that a client cannot choose keys that collide.
//
// The store's own clock is monotonic. The clock stops while the machine sleeps, so it is set to the
// wall clock when the two are a calendar period apart. A clock set by [Options.Now] can go back.
// [counter.Decide] allows for that in existing counters, but a counter that was removed while the
// clock was ahead starts from zero. So with such a clock the store keeps fresh counters for two
// more hours while there is room. A full store does not keep them: if the clock was ahead by more
// than a window, counters of that time can be lost.
//
// # Price
//
// A decision about one of 100,000 clients allocates nothing. A decision takes about twice as long
// as an access to a map with a mutex and one number per client. Most of that time is memory
// latency. Calls contend only within one of 256 shards. Sliding logs allocate while they grow.
//
// A record takes 34 bytes plus its key, rounded up to a multiple of 8 bytes. The index adds 6 to 12
// bytes. With a key of 36 bytes, a counter takes 82 bytes in a store of ten million, and at most 90
// in a store of a hundred thousand. A record above 256 bytes is rounded up to a whole fraction of a
// page, by at most an eighth for keys that clients can create. A key has about 40 bytes besides the
// client's ID, and an escaped byte of the ID takes three bytes. So a counter takes 100 bytes with
// an ID of 8 letters, 355 with one of 240 letters, and 840 with one of 240 escaped bytes
// (BenchmarkBytesPerCounter). The process takes twice that memory, because the garbage collector
// lets the heap double before it collects. Three kinds of counters take more. A sliding log takes
// 16 bytes for each remembered instant. A counter with leased units takes about 30 bytes more until
// the first write after the lease. A token bucket with refundable charges takes about 200 bytes
// more until the first write after it was full. The first violation of a client creates its record,
// which counts as a counter and takes 24 bytes for each remembered violation. Pages contain no
// pointers, so the garbage collector does not scan them. An empty store takes 0.5 MB. A page of 4
// KiB is freed when its last counter is removed. The index never shrinks.
//
// The longest pause is the split of an index segment of 217 counters: tens of microseconds for one
// shard. The directory of segments doubles from time to time. In each shard it takes about 512
// bytes at the default bound, and about 128 KiB at the greatest bound.
//
// Pages, segments, logs, violations and maps count toward [Options.BytesMax]; overflow counters do
// not. Existing counters can grow beyond that bound; there is then no room for newcomers.
//
// # When not to use it
//
// The counters end with the process, and no other process sees them. Limits that must be enforced
// across processes, or survive a restart, need a store on Redis. A single limit costs less with
// golang.org/x/time/rate.
package memstore
