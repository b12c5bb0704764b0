// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
)

func TestReporterBoundsTheRate(t *testing.T) {
	var out bytes.Buffer
	start := time.Unix(0, 0)
	r := &reporter{logger: slog.New(slog.NewTextHandler(&out, nil)), server: "redis://host:6379/0", start: start}
	b := &breakerReporter{logger: r.logger, server: r.server, start: start}
	for millis := range 60_000 {
		now := start.Add(time.Duration(millis) * time.Millisecond)
		r.recordFailures(now, errTimeout, 3)
		r.recordFailures(now, errBreakerOpen, 1)
		b.recordState(now, BreakerOpen)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3*6 {
		t.Errorf("%d lines in a minute of three kinds, want 18:\n%s", len(lines), out.String())
	}
	for _, want := range []string{"kind=timeout calls=3 ", "kind=timeout calls=30000 ", "kind=breaker_open calls=10000 ",
		"state=open changes=10000 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line contains %q:\n%s", want, out.String())
		}
	}
	if n := r.kinds[KindTimeout].total.Load(); n != 180_000 {
		t.Errorf("%d timeouts counted, want 180000", n)
	}
}

// TestReporterReportsTheEndOfAnOutage: if the log says that the breaker opened, it also says that
// the breaker closed.
func TestReporterReportsTheEndOfAnOutage(t *testing.T) {
	var out bytes.Buffer
	start := time.Unix(0, 0)
	r := &breakerReporter{logger: slog.New(slog.NewTextHandler(&out, nil)), start: start}
	for millis := 0; millis < 60_000; millis += 1000 {
		now := start.Add(time.Duration(millis) * time.Millisecond)
		r.recordState(now, BreakerOpen)
		r.recordState(now.Add(200*time.Millisecond), BreakerHalfOpen)
		r.recordState(now.Add(201*time.Millisecond), BreakerClosed)
	}
	told := regexp.MustCompile(`state=\w+`).FindAllString(out.String(), -1)
	var want []string
	for range 6 {
		want = append(want, "state=open", "state=closed")
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("lines of a minute in which the breaker opens every second (-want +got):\n%s", diff)
	}
}

// TestReporterTellsThatNoRequestComes checks an outage that ends while there are no requests: the
// last log line reports that no request comes, rather than an open breaker.
func TestReporterTellsThatNoRequestComes(t *testing.T) {
	var out bytes.Buffer
	start := time.Unix(0, 0)
	r := &breakerReporter{logger: slog.New(slog.NewTextHandler(&out, nil)), start: start}
	r.recordState(start, BreakerOpen)
	r.recordState(start.Add(20*time.Second), BreakerHalfOpen)
	for range 3 {
		r.untried()
	}
	r.recordState(start.Add(90*time.Second), BreakerClosed)
	r.untried()
	told := regexp.MustCompile(`state=\w+|open=\w+`).FindAllString(out.String(), -1)
	if diff := cmp.Diff([]string{"state=open", "state=half_open", "state=closed", "open=1m30s"}, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReporterLeavesCallersOut(t *testing.T) {
	var out bytes.Buffer
	r := &reporter{logger: slog.New(slog.NewTextHandler(&out, nil)), start: time.Unix(0, 0)}
	r.recordFailures(time.Unix(0, 0), &Failure{Kind: KindCanceled}, 1)
	r.recordFailures(time.Unix(0, 0), errClosed, 1)
	if out.Len() > 0 {
		t.Errorf("callers who give up are logged: %s", out.String())
	}
}

// serverError is an error as a server sends it.
type serverError string

func (r serverError) Error() string { return string(r) }
func (serverError) RedisError()     {}

var _ redis.Error = serverError("")

// errorBefore7 returns the error that a Redis before 7 sends for an error inside a script.
func errorBefore7(text string) serverError {
	return serverError("ERR Error running script (call to f_9a3f): @user_script:9: @user_script: 9: " + text)
}

// Error texts of the ACL of a Redis before 7 inside a script.
const (
	deniedCommandBefore7 = "The user executing the script can't run this command or subcommand"
	deniedKeyBefore7     = "The user executing the script can't access at least one of the keys mentioned in the command arguments"
)

func TestFailureKindsAndBreaker(t *testing.T) {
	for _, test := range []struct {
		err       error
		kind      Kind
		storeWide bool
	}{
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, KindTimeout, true},
		{fmt.Errorf("dial: %w", context.DeadlineExceeded), KindTimeout, true},
		{io.EOF, KindConnection, true},
		{errors.New("connection refused"), KindConnection, true},
		{redis.ErrClosed, KindConnection, true},
		{serverError("LOADING Redis is loading the dataset in memory"), KindScript, true},
		{serverError("BUSY Redis is busy running a script"), KindScript, true},
		{serverError("READONLY You can't write against a read only replica."), KindScript, true},
		{serverError("OOM command not allowed when used memory > 'maxmemory'."), KindScript, false},
		{serverError("MISCONF Redis is configured to save RDB snapshots"), KindScript, true},
		{serverError("NOAUTH Authentication required."), KindScript, true},
		{serverError("WRONGPASS invalid username-password pair"), KindScript, true},
		{serverError("NOPERM this user has no permissions"), KindScript, true},
		{serverError("ERR The user executing the script can't run this command or subcommand"), KindScript, true}, // Redis 7.0
		{serverError("ERR max number of clients reached"), KindScript, true},
		{serverError("WRONGTYPE Operation against a key holding the wrong kind of value"), KindScript, false},
		{serverError("ERR user_script:12: attempt to index a nil value"), KindScript, false},
		{errorBefore7("-READONLY You can't write against a read only replica."), KindScript, true},
		{errorBefore7("-OOM command not allowed when used memory > 'maxmemory'."), KindScript, false},
		{errorBefore7("-MISCONF Redis is configured to save RDB snapshots"), KindScript, true},
		{errorBefore7(deniedCommandBefore7), KindScript, true},
		{errorBefore7(deniedKeyBefore7), KindScript, true},
		{errorBefore7("WRONGTYPE Operation against a key holding the wrong kind of value"), KindScript, false},
		{errorBefore7("attempt to compare nil with number"), KindScript, false},
		{serverError("ERR user_script:12: The user executing the script can't"), KindScript, false},
		{serverError("CORRUPT counter of \"x: -OOM y\": too short"), KindScript, false},
	} {
		f := failureOf(test.err)
		if f.Kind != test.kind || f.storeWide() != test.storeWide {
			t.Errorf("%v: kind %s, counts for the breaker: %v; want %s, %v", test.err, f.Kind, f.storeWide(), test.kind,
				test.storeWide)
		}
		if !errors.Is(f, counter.ErrUnavailable) || !errors.Is(f, test.err) {
			t.Errorf("%v: the failure does not wrap core.ErrUnavailable and its cause", test.err)
		}
	}
}

// TestRemediesBefore7: the error contains a hint, whatever prefix the server puts before its reply.
func TestRemediesBefore7(t *testing.T) {
	for text, want := range map[string]string{
		"-READONLY You can't write against a read only replica.":   "give the primary's",
		"-OOM command not allowed when used memory > 'maxmemory'.": "raise maxmemory",
		deniedCommandBefore7: "the ACL user needs more rights",
		deniedKeyBefore7:     "the ACL user needs more rights",
	} {
		if err := failureOf(errorBefore7(text)); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want that it says %q", err, want)
		}
	}
}

// TestErrorsOfRights: the errors of an ACL are distinguished from other errors, even if they occur
// inside a script of a Redis before 7.2.
func TestErrorsOfRights(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{serverError("NOPERM this user has no permissions"), true},
		{errorBefore7(deniedCommandBefore7), true},
		{errorBefore7(deniedKeyBefore7), true},
		{serverError("ERR " + deniedCommandBefore7 + " script: 2b58b113, on @user_script:1."), true},
		{serverError("ERR user_script:12: The user executing the script can't"), false},
		{errorBefore7("-OOM command not allowed when used memory > 'maxmemory'."), false},
		{errors.New("connection refused"), false},
	} {
		if got := LacksRights(c.err); got != c.want {
			t.Errorf("%q: %t, want %t", c.err, got, c.want)
		}
	}
}
