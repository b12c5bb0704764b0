// SPDX-License-Identifier: Apache-2.0

// Package sources divides places and turns among the sources of requests, which are usually the
// addresses of clients.
//
// [Counts] counts the requests under way of each source, so that one client does not occupy all
// places of a server. The number of counts is fixed. Sources share them by a hash with a random
// key. So the memory is bounded, and a client cannot choose to share a count with another client.
// The function [Number] returns this hash, for packages that have counts or queues of their own.
//
// [Lines] is a queue in which the sources take turns.
package sources

import (
	"hash/maphash"
	"sync/atomic"
)

// countsMax is the number of counts.
const countsMax = 1024

// process is the random key of this process.
var process = maphash.MakeSeed()

// Number returns a hash of a source of requests, such as the Source of a counter.Check. The
// remainder of the hash selects one of several counts or queues. The hash depends on a random key
// of this process, so a client with many addresses cannot choose one that shares a queue with a
// certain other client.
func Number(source uint32) uint32 { return number(process, source) }

func number(key maphash.Seed, source uint32) uint32 { return uint32(maphash.Comparable(key, source)) }

// Counts are the numbers of requests under way by source. Make them with [New]. Counts are safe for
// concurrent use.
type Counts struct {
	seed   maphash.Seed
	counts [countsMax]atomic.Int32
}

// New returns counts of zero.
func New() *Counts { return &Counts{seed: maphash.MakeSeed()} }

// Source is the count of one source, and of other sources with the same hash.
type Source struct{ count *atomic.Int32 }

// Of returns the source with the given number, such as an address.
func (c *Counts) Of(number uint64) Source {
	return Source{&c.counts[maphash.Comparable(c.seed, number)%countsMax]}
}

// Enter counts a request, and reports whether the source now has at most half of the places. In
// either case the caller must call Leave.
func (s Source) Enter(places int) bool { return int(s.count.Add(1)) <= max(1, places/2) }

// Enter counts a request whose source is that of a counter.Check, and reports whether the request
// may have a place. It may have one if its source has at most half of the places, or is unknown
// (0). In both cases the caller must call Leave of the result.
func (c *Counts) Enter(source uint32, places int) (s Source, ok bool) {
	s = c.Of(uint64(source))
	return s, s.Enter(places) || source == 0
}

// Leave ends a request.
func (s Source) Leave() { s.count.Add(-1) }
