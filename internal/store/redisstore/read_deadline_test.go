// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// lateConn is a connection whose reply arrives after a number of read deadlines.
type lateConn struct {
	net.Conn
	answer         string
	comesBy        int // the number of read deadlines until the reply arrives
	reads, writes  []time.Time
	written, tried int
}

func (c *lateConn) Read(p []byte) (int, error) {
	c.tried++
	if len(c.reads) < c.comesBy {
		return 0, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	}
	return copy(p, c.answer), nil
}

func (c *lateConn) Write(p []byte) (int, error) {
	if last := len(c.writes) - 1; last >= 0 && !c.writes[last].IsZero() && time.Until(c.writes[last]) < 0 {
		return 0, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}
	}
	c.written += len(p)
	return len(p), nil
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	c.reads = append(c.reads, t)
	return nil
}

func (c *lateConn) SetWriteDeadline(t time.Time) error {
	c.writes = append(c.writes, t)
	return nil
}

// newLateConn returns a dialed lazyConn and the connection below it.
func newLateConn(t *testing.T, comesBy int) (*lazyConn, *lateConn) {
	t.Helper()
	under := &lateConn{answer: "+OK\r\n", comesBy: comesBy}
	c := &lazyConn{timeout: time.Hour, patience: time.Hour, gone: func(*lazyConn) {}, dial: func(context.Context) (net.Conn, error) { return under, nil }}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	under.reads, under.writes, under.written = nil, nil, 0
	return c, under
}

// TestReadWaitsForTurns: a reply that arrives in the last interval is used, whatever the wall clock
// shows.
func TestReadWaitsForTurns(t *testing.T) {
	c, under := newLateConn(t, readTurns)
	_ = c.SetReadDeadline(time.Now().Add(time.Hour))
	room := make([]byte, 64)
	n, err := c.Read(room)
	if err != nil || string(room[:n]) != under.answer {
		t.Fatalf("%q, error %v", room[:n], err)
	}
	if len(under.reads) != readTurns {
		t.Errorf("%d turns, want %d", len(under.reads), readTurns)
	}
}

// TestReadEndsAfterItsTurns: a server that does not answer uses up the intervals only once, even if
// the same deadline is set again.
func TestReadEndsAfterItsTurns(t *testing.T) {
	c, under := newLateConn(t, 1_000)
	deadline, room := time.Now().Add(time.Hour), make([]byte, 64)
	for range 3 {
		_ = c.SetReadDeadline(deadline)
		for range 2 {
			if _, err := c.Read(room); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("error %v, want a timeout", err)
			}
		}
	}
	if want := readTurns + 2; len(under.reads) != want {
		t.Errorf("%d deadlines of the socket, want %d: %d turns, and the deadline set again twice", len(under.reads), want, readTurns)
	}
	before := len(under.reads)
	_ = c.SetReadDeadline(deadline.Add(time.Second))
	if _, _ = c.Read(room); len(under.reads) != before+readTurns {
		t.Errorf("another deadline had %d turns, want %d", len(under.reads)-before, readTurns)
	}
}

// TestReadDeadline tests the intervals with a simulated clock.
func TestReadDeadline(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name     string
		timeout  time.Duration // until the deadline
		lateness time.Duration // how late the reader is in each interval
		want     time.Duration // total wait
	}{
		{name: "a process on time waits for the deadline", timeout: 36 * time.Millisecond, want: 36 * time.Millisecond},
		{name: "a late process waits for as many turns", timeout: 36 * time.Millisecond, lateness: 20 * time.Millisecond, want: 236 * time.Millisecond},
		{name: "it does not wait for ever", timeout: 36 * time.Millisecond, lateness: 200 * time.Millisecond, want: 622 * time.Millisecond},
		{name: "a deadline that has passed when it is set waits for the patience", timeout: -time.Second, want: 90 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d readDeadline
			now := d.set(start.Add(c.timeout), start, 90*time.Millisecond, 90*time.Millisecond).Add(c.lateness)
			for {
				end, ok := d.next(now)
				if !ok {
					break
				}
				now = end.Add(c.lateness)
			}
			if got := now.Sub(start); got != c.want {
				t.Errorf("waited %s, want %s", got, c.want)
			}
		})
	}
	var patient readDeadline
	if end := patient.set(start.Add(500*time.Millisecond), start, 50*time.Millisecond, 500*time.Millisecond); end.Sub(start) != 25*time.Millisecond {
		t.Errorf("a reply is late after %s, want half of the timeout", end.Sub(start))
	}
	if end, _ := patient.next(start); end.Sub(start) != 475*time.Millisecond/9 || !patient.firstEnded() {
		t.Errorf("the second interval takes %s, want a ninth of the rest", end.Sub(start))
	}
	var none readDeadline
	if end := none.set(time.Time{}, start, time.Second, time.Second); !end.IsZero() {
		t.Errorf("without a deadline the socket has the deadline %s", end)
	}
}

// TestLateWrites: a batch that this process writes after the deadline of the batch is written once,
// and its reply may take the whole timeout.
func TestLateWrites(t *testing.T) {
	c, under := newLateConn(t, readTurns)
	_ = c.SetDeadline(time.Now().Add(-time.Second))
	if n, err := c.Write([]byte("PING\r\n")); err != nil || n != under.written {
		t.Fatalf("%d bytes were written, error %v", n, err)
	}
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	got := time.Duration(c.reading.first.Load() + (readTurns-1)*c.reading.turn.Load())
	if c.patience-got >= readTurns {
		t.Errorf("the reply may take %s, want %s", got, c.patience)
	}
	under.writes[1] = time.Now().Add(-time.Second)
	if _, err := c.Write([]byte("PING\r\n")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want a timeout: the deadline was extended before", err)
	}
}
