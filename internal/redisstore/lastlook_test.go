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

// lateConn is a connection whose deadlines have passed until they are extended.
type lateConn struct {
	net.Conn
	answer         string // what is read before the deadline that was set last
	comesBy        int    // after how many deadlines of Read it has come
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

// late returns a connection that is dialled, and what it goes over.
func late(t *testing.T, comesBy int) (*lazyConn, *lateConn) {
	t.Helper()
	under := &lateConn{answer: "+OK\r\n", comesBy: comesBy}
	c := &lazyConn{timeout: time.Hour, gone: func(*lazyConn) {}, dial: func(context.Context) (net.Conn, error) { return under, nil }}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	under.reads, under.writes, under.written = nil, nil, 0
	c.wrote.Store(time.Now().Add(-2 * time.Hour).UnixNano())
	return c, under
}

// TestReadLooksOnceMore: an answer that is there when the deadline has passed, or comes a little later, is used.
func TestReadLooksOnceMore(t *testing.T) {
	c, under := late(t, 2)
	_ = c.SetReadDeadline(time.Now())
	start, room := time.Now(), make([]byte, 64)
	n, err := c.Read(room)
	if err != nil || string(room[:n]) != under.answer {
		t.Fatalf("%q, error %v", room[:n], err)
	}
	want := time.Hour / extensionOf
	if got := under.reads[1].Sub(start); got < want || got > want+time.Minute {
		t.Errorf("it looked for %s more, want %s", got, want)
	}
}

// TestReadLooksOnlyOnceMore: a server that hangs costs one extension for each deadline, though it be set again.
func TestReadLooksOnlyOnceMore(t *testing.T) {
	c, under := late(t, 100)
	deadline, room := time.Now(), make([]byte, 64)
	for range 3 {
		_ = c.SetReadDeadline(deadline)
		for range 2 {
			if _, err := c.Read(room); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("error %v, want a timeout", err)
			}
		}
	}
	if len(under.reads) != 4 || under.tried != 7 {
		t.Errorf("%d deadlines, %d reads; want 3 and one extension, 6 and one more look", len(under.reads), under.tried)
	}
	_ = c.SetReadDeadline(deadline.Add(time.Second))
	if _, _ = c.Read(room); len(under.reads) != 6 {
		t.Errorf("another deadline was not extended")
	}
}

// TestLateWrites: a batch that is sent after its deadline, since this process had no time, is sent, and has as long for its
// answer as any other.
func TestLateWrites(t *testing.T) {
	c, under := late(t, 2)
	_ = c.SetDeadline(time.Now().Add(-time.Second))
	start := time.Now()
	if n, err := c.Write([]byte("PING\r\n")); err != nil || n != under.written {
		t.Fatalf("%d bytes were written, error %v", n, err)
	}
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if got := under.reads[1].Sub(start); got < c.timeout || got > c.timeout+time.Minute {
		t.Errorf("the answer was awaited for %s, want %s", got, c.timeout)
	}
	under.writes[1] = time.Now().Add(-time.Second)
	if _, err := c.Write([]byte("PING\r\n")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want a timeout: the deadline was extended before", err)
	}
}
