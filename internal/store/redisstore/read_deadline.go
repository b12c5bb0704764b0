// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"sync/atomic"
	"time"
)

const (
	// readTurns is the number of intervals into which a read deadline is divided. The first one
	// ends after half of the timeout, when a reply is late. The other intervals divide the second
	// half.
	readTurns = 10
	// readTurnMin is the shortest interval.
	readTurnMin = time.Millisecond
	// readLateMax is how long after its deadline a read may still continue.
	readLateMax = 500 * time.Millisecond
)

// readDeadline is a deadline that passes only while the reading goroutine runs.
//
// A process with many goroutines and few processors schedules the reader late. With a wall-clock
// deadline, the deadline would pass while the reply waits in the socket, and a burst from one
// client would look like a server that does not answer. Therefore the time up to the deadline is
// divided into readTurns intervals. An interval that ends without a byte proves that the reader was
// scheduled and found nothing. The deadline has passed after the last interval. In a process that
// is on time, that is exactly the deadline. A process that is late waits longer, by at most
// readLateMax.
//
// The zero readDeadline is no deadline. A readDeadline is safe for concurrent use.
type readDeadline struct {
	at     atomic.Int64 // the deadline in Unix nanoseconds; 0 means none
	latest atomic.Int64 // the latest end of a read, in Unix nanoseconds
	first  atomic.Int64 // the length of the first interval, in nanoseconds
	turn   atomic.Int64 // the length of each other interval, in nanoseconds
	turns  atomic.Int32 // intervals left, including the current one
}

// readDeadline.set starts a deadline and returns the end of its first interval. If the deadline is
// unchanged, the remaining intervals continue. A deadline that has already passed, because the
// process was late to send, is replaced by a later one: now plus the argument named patience.
func (d *readDeadline) set(deadline, now time.Time, timeout, patience time.Duration) time.Time {
	if deadline.IsZero() {
		d.at.Store(0)
		return time.Time{}
	}
	if d.at.Swap(deadline.UnixNano()) != deadline.UnixNano() {
		left := deadline.Sub(now)
		if left <= 0 {
			left = patience
		}
		first := max(min(left, timeout)/2, readTurnMin)
		turn := max((left-first)/(readTurns-1), readTurnMin)
		d.first.Store(int64(first))
		d.turn.Store(int64(turn))
		d.latest.Store(now.Add(first + (readTurns-1)*turn + readLateMax).UnixNano())
		d.turns.Store(readTurns)
	}
	if d.turns.Load() == readTurns {
		return now.Add(time.Duration(d.first.Load()))
	}
	return now.Add(time.Duration(d.turn.Load()))
}

// firstEnded reports whether the first interval has just ended.
func (d *readDeadline) firstEnded() bool { return d.turns.Load() == readTurns-1 }

// readDeadline.next ends an interval and returns the end of the following one; the result named ok
// is false if the deadline has passed.
func (d *readDeadline) next(now time.Time) (end time.Time, ok bool) {
	if d.at.Load() == 0 || d.turns.Load() <= 0 || d.turns.Add(-1) <= 0 || now.UnixNano() > d.latest.Load() {
		return time.Time{}, false
	}
	return now.Add(time.Duration(d.turn.Load())), true
}
