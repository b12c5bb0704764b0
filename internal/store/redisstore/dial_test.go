// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

func TestLazyConnDialsUnderTheWriteDeadline(t *testing.T) {
	var deadline time.Time
	c := &lazyConn{gone: func(*lazyConn) {}, dial: func(ctx context.Context) (net.Conn, error) {
		deadline, _ = ctx.Deadline()
		return nil, errors.New("refused")
	}}
	want := time.Now().Add(time.Minute)
	if err := c.SetWriteDeadline(want); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err == nil || err.Error() != "refused" {
		t.Errorf("write: error %v, want the dial's", err)
	}
	if deadline.Before(want) || deadline.After(want.Add(readLateMax)) {
		t.Errorf("dialled with the deadline %s, want the write's, %s, or at most %s later", deadline, want, readLateMax)
	}
}

func TestLazyConnCloseEndsTheDial(t *testing.T) {
	dialling := make(chan struct{})
	c := &lazyConn{gone: func(*lazyConn) {}, dial: func(ctx context.Context) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	failed := make(chan error)
	go func() {
		_, err := c.Write([]byte("x"))
		failed <- err
	}()
	<-dialling
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("write: error %v, want canceled", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: error %v, want net.ErrClosed", err)
	}
}

// TestLazyConnSaysWhatItHasNotWritten: if nothing of a batch was written, the error of Write says
// so. The units of the batch are then charged later.
func TestLazyConnSaysWhatItHasNotWritten(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := &lazyConn{timeout: time.Millisecond, gone: func(*lazyConn) {}, dial: func(context.Context) (net.Conn, error) { return near, nil }}
	defer c.Close()
	fails := func() (unwritten bool) {
		t.Helper()
		if err := c.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Write([]byte("evalsha")) // this fails, because the other end does not read
		if failure := failureOf(err); failure.Kind != KindTimeout {
			t.Fatalf("write: error %v", err)
		}
		return failureOf(err).Unsent()
	}
	if !fails() {
		t.Error("a first write that wrote nothing counts as sent")
	}
	if fails() {
		t.Error("a second write counts as unsent")
	}
}

func TestLazyConnWritesToWhatItDialled(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	dials := 0
	c := &lazyConn{gone: func(*lazyConn) {}, dial: func(context.Context) (net.Conn, error) {
		dials++
		return near, nil
	}}
	defer c.Close()
	go func() {
		_, _ = c.Write([]byte("a"))
		_, _ = c.Write([]byte("b"))
	}()
	got := make([]byte, 1)
	for _, want := range "ab" {
		if _, err := far.Read(got); err != nil || got[0] != byte(want) {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
	}
	if dials != 1 {
		t.Errorf("%d dials, want 1", dials)
	}
}
