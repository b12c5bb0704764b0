// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/redistest"
)

// makeFourChecks returns four checks, one for each algorithm.
func makeFourChecks(t testing.TB) []counter.Check {
	var checks []counter.Check
	for a := counter.FixedWindow; a <= counter.TokenBucket; a++ {
		l := mustLimit(t, a, 10, counter.Minute)
		checks = append(checks, counter.Check{Key: []byte("key " + a.Label()), Limit: &l, Cost: 1})
	}
	return checks
}

// goodReply is the reply to the checks of makeFourChecks on fresh counters.
const goodReply = "1700000000000000 1 0 0 0 0 0 0 1700000000000000 1 1 1700000000000000 0 0 0 0"

// TestMalformedReplies: for replies that the script never sends, the decoder returns an error and
// does not panic.
func TestMalformedReplies(t *testing.T) {
	checks := makeFourChecks(t)
	decode := func(text string) error {
		cmd := newTake(context.Background(), 0, checks)
		cmd.SetVal(text)
		return cmd.results(checks, make([]counter.Result, len(checks)))
	}
	if err := decode(goodReply); err != nil {
		t.Fatalf("a good reply: %v", err)
	}
	for end := range goodReply {
		if err := decode(goodReply[:end]); err == nil {
			t.Errorf("a reply cut at %d is taken: %q", end, goodReply[:end])
		}
	}
	for _, junk := range []string{" ", " 1", "x", "\n", "-", "."} {
		if decode(goodReply+junk) == nil || decode(junk+goodReply) == nil {
			t.Errorf("%q before or after a reply is taken", junk)
		}
	}
	for _, text := range []string{"OK", strings.Replace(goodReply, "1700", "-1700", 1), strings.Replace(goodReply, " 1 ", " 2 ", 1),
		strings.Replace(goodReply, "1700000000000000", "0", 1), strings.Replace(goodReply, " ", "  ", 1),
		strings.Replace(goodReply, "1700000000000000", "17000000000000000000000", 1),
		strings.Replace(goodReply, "1700000000000000", "9007199254740993", 1),
		goodReply[:len(goodReply)-5] + "1 1 0", strings.Replace(goodReply, " ", ",", 1), goodReply + ",", goodReply + ",x",
		goodReply + ",1,1", "," + goodReply, strings.Replace(goodReply, " 0 0 0", ",0 0 0", 1),
		strings.Replace(goodReply, " 0 0 0", " 0,0 0", 1), strings.Replace(goodReply, " 1 1 1700", " 1,1 1 1700", 1)} {
		if decode(text) == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if err := decode(strings.Replace(goodReply, " 0 0 0", " 0 0 0,9007199254740992", 2)); err != nil {
		t.Errorf("counters of which units are out: %v", err)
	}
	if err := decode(strings.Replace(goodReply, " 1 ", " 0 ", 1)); err == nil || !strings.Contains(err.Error(), "differently") {
		t.Errorf("a refusal that core does not see: %v, want an error that says so", err)
	}
}

// FuzzReply decodes random replies.
func FuzzReply(f *testing.F) {
	f.Add(goodReply)
	f.Add("1700000000000000 1 1 9007199254740992 9007199254740992 1 1 1 1 1 1 1 1 1 9007199254740992 1")
	f.Add("1700000000000000 1 1 1 1,1 1 1 1,9007199254740992 1 1 1 1 1 9007199254740992 1 1")
	f.Add("")
	checks := makeFourChecks(f)
	f.Fuzz(func(t *testing.T, text string) {
		cmd := newTake(context.Background(), 0, checks)
		cmd.SetVal(text)
		results := make([]counter.Result, len(checks))
		if cmd.results(checks, results) != nil {
			return
		}
		for i, r := range results {
			if r.At < 1 || r.Remaining < 0 || r.Wait < 0 || r.Reset < 0 || r.Granted < 0 {
				t.Errorf("%q: result %d: %+v", text, i, r)
			}
		}
	})
}

// TestTakeOwnsItsBytes: changing the keys after newTake has returned does not change the command.
func TestTakeOwnsItsBytes(t *testing.T) {
	checks := makeFourChecks(t)
	cmd := newTake(context.Background(), 0, checks)
	want := cmd.String()
	for _, c := range checks {
		clear(c.Key)
	}
	if got := cmd.String(); got != want {
		t.Errorf("the command changed with its caller's keys:\n%q\n%q", want, got)
	}
}

// TestAllocations: the only allocations of a call are the command, go-redis' part of it, and its
// bytes. Decoding the answer does not allocate.
func TestAllocations(t *testing.T) {
	checks := makeFourChecks(t)[:2]
	ctx, results := context.Background(), make([]counter.Result, 2)
	if n := testing.AllocsPerRun(100, func() { newTake(ctx, 0, checks) }); n > 3 {
		t.Errorf("newTake allocates %v times, want 3", n)
	}
	cmd := newTake(ctx, 0, checks)
	cmd.SetVal("1700000000000000 1 0 0 0 1699999980000000 3 4")
	if n := testing.AllocsPerRun(100, func() {
		if err := cmd.results(checks, results); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("results allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = counter.ValidateChecks(checks, results) }); n != 0 {
		t.Errorf("ValidateChecks allocates %v times", n)
	}
}

// TestNotSentTwice breaks the connection after the command was written: go-redis must not resend
// it, even if configured to retry.
func TestNotSentTwice(t *testing.T) {
	var calls atomic.Int32
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go hangUpOnTake(conn, &calls)
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), MaxRetries: 5, MinRetryBackoff: time.Microsecond,
		Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }()
	// go-redis does resend an ordinary command, so the following checks are meaningful.
	if _ = client.Process(t.Context(), redis.NewCmd(t.Context(), "evalsha", "x", 0)); calls.Load() != 6 {
		t.Fatalf("an ordinary command is sent %d times, want 6", calls.Load())
	}
	checks := makeFourChecks(t)
	for name, send := range map[string]func(cmd redis.Cmder) error{
		"alone": func(cmd redis.Cmder) error { return client.Process(t.Context(), cmd) },
		"in a pipeline": func(cmd redis.Cmder) error {
			pipe := client.Pipeline()
			_ = pipe.Process(t.Context(), cmd)
			_, err := pipe.Exec(t.Context())
			return err
		},
		"as a copy": func(cmd redis.Cmder) error { return client.Process(t.Context(), cmd.Clone()) },
	} {
		calls.Store(0)
		if err := send(newTake(t.Context(), 0, checks)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want EOF", name, err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: sent %d times", name, n)
		}
	}
}

// hangUpOnTake answers the client's greeting with errors, and closes the connection on a take.
func hangUpOnTake(conn net.Conn, calls *atomic.Int32) {
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if strings.Contains(string(buf[:n]), "evalsha") {
			calls.Add(1)
			return
		}
		for range strings.Count(string(buf[:n]), "*") {
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
		}
	}
}

// TestLeastPrivilege runs checks as a user with exactly the rights of docs/guides/redis.md.
func TestLeastPrivilege(t *testing.T) {
	s := redistest.Start(t)
	b := bareOn(t, s)
	user := append([]any{"ACL", "SETUSER", "penstock", "on", "nopass", "resetchannels", "~key*"}, scriptRules()...)
	if err := s.Client().Do(t.Context(), user...).Err(); err != nil {
		t.Fatal(err)
	}
	b.client = redis.NewClient(&redis.Options{Network: "unix", Addr: s.Addr, Username: "penstock", DisableIdentity: true})
	defer func() { _ = b.client.Close() }()
	checks, results := makeFourChecks(t), make([]counter.Result, 4)
	now := counter.Micros(1_700_000_000_000_000)
	ask := func(at counter.Micros, op counter.Op, cost int64) {
		t.Helper()
		for i := range checks {
			checks[i].Op, checks[i].Cost, checks[i].Receipt = op, cost, results[i].Receipt
		}
		b.pinned.Store(int64(at))
		if err := b.Take(t.Context(), checks, results); err != nil {
			t.Fatalf("op %d: %v", op, err)
		}
	}
	// These calls execute every branch of the script that uses another Redis command.
	ask(now, counter.OpTake, 1)
	ask(now, counter.OpTake, 1)
	ask(now, counter.OpRefund, 1)
	ask(now+1, counter.OpTake, 2)
	ask(now+1, counter.OpRefund, 2)
	ask(now-counter.Hour, counter.OpForce, 8)
	ask(now+counter.Hour, counter.OpLook, 1)
	ask(0, counter.OpTake, 1)
}

// scriptRules returns the ACL rules for the script's commands, without those for connecting.
func scriptRules() []any {
	return []any{"-@all", "+evalsha", "+time", "+get", "+set", "+del", "+pexpire", "+zadd", "+zcount", "+zrange", "+zrangebyscore",
		"+zremrangebyscore", "+zremrangebyrank"}
}
