// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
)

// Kind is the reason why a call failed.
type Kind uint8

// The kinds of failure.
const (
	KindTimeout     Kind = iota // no answer by the deadline; the charge might have been executed
	KindCanceled                // the caller gave up; the charge might have been executed
	KindQueueFull               // the queue was full; not executed
	KindBreakerOpen             // Redis failed recently and was not called; the charge was not executed
	KindConnection              // there was no connection, or it broke; the charge might have been executed
	KindScript                  // Redis answered with an error
	KindClosed                  // the store is closed; the charge might have been executed
	// Redis' clock is outside the calendar window's boundaries; the call was not executed
	KindStale
	// the counters' slot was moving until the deadline, or its move was aborted; the charge might
	// have been executed
	KindMoving
	KindOverloaded // the call was in the queue for too long, though Redis answered; it was not executed
	// there was no answer by the deadline, though Redis answered later calls or a PING, or this
	// process was late; the charge might have been executed
	KindSlow
	kindCount
)

var kindNames = [kindCount]string{"timeout", "canceled", "queue_full", "breaker_open", "connection", "script", "closed",
	"stale", "moving", "overloaded", "slow"}

// String returns the kind's name in metrics and logs.
func (k Kind) String() string {
	if k >= kindCount {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Failure is the error of a failed [Store.Take], except for invalid arguments. A Failure wraps
// counter.ErrUnavailable and its cause, which is counter.ErrStale for KindStale. KindQueueFull,
// KindOverloaded and KindSlow wrap counter.ErrOverloaded instead.
type Failure struct {
	Kind  Kind
	Cause error // nil if Kind is the whole reason

	whole  bool // whether the server rejected the connection rather than a single command
	unsent bool // whether no server was called, or the server certainly did not execute the call
	// callerLate reports that the caller's own deadline passed first.
	callerLate bool
	newKeys    []string // the counters that do not exist, if the server's memory is full
}

// NewCounter reports whether the call was not executed because the server's memory is full and the
// counter with that key does not exist. Without its new counters the call would be executed.
func (f *Failure) NewCounter(key []byte) bool {
	for _, k := range f.newKeys {
		if k == string(key) {
			return true
		}
	}
	return false
}

// Unsent reports whether the call was certainly not executed, because it was not sent or the server
// rejected every command. After any other failure it might have been executed, or might still be
// executed.
func (f *Failure) Unsent() bool { return f.unsent }

// notSent returns the failure of a call that was not sent.
func (f *Failure) notSent() *Failure {
	if f.unsent {
		return f
	}
	failure := *f
	failure.unsent = true
	return &failure
}

// ofCall returns the failure of a call with several parts. The call is unsent if each of its parts
// is.
func (f *Failure) ofCall(unsent bool) *Failure {
	if unsent == f.unsent {
		return f
	}
	failure := *f
	failure.unsent = unsent
	return &failure
}

// Failure.slow returns the failure of a call whose batch timed out although the server works. If
// the batch had no connection in time, the call was not sent, and its failure says so.
func (f *Failure) slow() *Failure {
	if f != nil && f.unsent {
		return errSlowUnsent
	}
	return errSlow
}

// Error describes the failure.
func (f *Failure) Error() string {
	text := failureTexts[f.Kind]
	if f.Cause != nil {
		text += ": " + f.Cause.Error()
	}
	return text
}

// Unwrap returns counter.ErrUnavailable or counter.ErrOverloaded, and the cause.
func (f *Failure) Unwrap() []error {
	err := counter.ErrUnavailable
	if f.overload() {
		err = counter.ErrOverloaded
	}
	if f.Cause == nil {
		return []error{err}
	}
	return []error{err, f.Cause}
}

// Failure.overload reports whether the call failed although the server works: too many calls were
// waiting, the server was too slow for them, or the caller's own deadline was too short.
func (f *Failure) overload() bool {
	return f.Kind == KindQueueFull || f.Kind == KindOverloaded || f.Kind == KindSlow || f.callerLate
}

var failureTexts = [kindCount]string{
	KindTimeout:     "redis did not answer in time",
	KindCanceled:    "the caller gave up waiting for redis",
	KindQueueFull:   "too many calls are waiting for redis",
	KindBreakerOpen: "redis failed recently and gets no calls until it answers a probe",
	KindConnection:  "no working connection to redis",
	KindScript:      "redis rejected a call",
	KindClosed:      "the redis store is closed",
	KindMoving: "the slot of the counters is moving between two servers of the cluster, or was left halfway " +
		"(penstock redis health says which)",
	KindOverloaded: "too many calls are waiting for redis, though it answers",
	KindSlow:       "redis did not answer in time, though it answered later calls",
	KindStale:      "the clocks of redis and of this process are more than a period apart",
}

// Common failures are allocated once, because every call returns one while Redis hangs.
var (
	errTimeout     = &Failure{Kind: KindTimeout}
	errNotAsked    = &Failure{Kind: KindTimeout, unsent: true}
	errCallerLate  = &Failure{Kind: KindTimeout, Cause: context.DeadlineExceeded, unsent: true, callerLate: true}
	errQueueFull   = &Failure{Kind: KindQueueFull, unsent: true}
	errOverloaded  = &Failure{Kind: KindOverloaded, unsent: true}
	errSlow        = &Failure{Kind: KindSlow}
	errSlowUnsent  = &Failure{Kind: KindSlow, unsent: true}
	errBreakerOpen = &Failure{Kind: KindBreakerOpen, unsent: true}
	errClosed      = &Failure{Kind: KindClosed}
	errStale       = &Failure{Kind: KindStale, Cause: counter.ErrStale, unsent: true}
	errNoServer    = &Failure{Kind: KindConnection, Cause: errors.New("no server is known for these counters"), unsent: true}
	// A server was replaced by another one, before the call was sent or while it was in flight.
	errRetired = &Failure{Kind: KindConnection, Cause: errors.New("the server was replaced before the call was sent"), unsent: true}
	errGone    = &Failure{Kind: KindConnection, Cause: errors.New("the server was replaced while the call was in flight")}
)

// contextFailure returns the failure of a caller whose context is done. A context's deadline is a
// timeout, but not an outage. Only the store's own timeout shows that Redis does not answer. A
// caller whose deadline is shorter than that might just be late because of a burst.
func contextFailure(ctx context.Context) *Failure {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return &Failure{Kind: KindTimeout, Cause: cause, callerLate: true}
	}
	return &Failure{Kind: KindCanceled, Cause: cause}
}

// errUnanswered marks a command without a reply. If the server rejects the connection itself (a
// wrong password), go-redis sets no error on the commands of a pipeline, so without this mark they
// would appear to have succeeded.
var errUnanswered = errors.New("no reply was read")

// failureOf converts an error of go-redis to a Failure.
func failureOf(err error) *Failure {
	var reply redis.Error
	switch {
	case redis.HasErrorPrefix(err, "STALE"):
		return errStale
	case errors.As(err, &reply):
		failure := &Failure{Kind: KindScript, Cause: addRemedy(err)}
		failure.unsent = failure.failsEveryCommand() || isOutOfMemory(err)
		return failure
	}
	_, unsent := errors.AsType[*unwrittenError](err)
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		unsent = true
	}
	var network net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout() {
		return &Failure{Kind: KindTimeout, Cause: err, unsent: unsent}
	}
	return &Failure{Kind: KindConnection, Cause: err, unsent: unsent}
}

// addRemedy adds a hint to errors that are caused by a server's configuration.
func addRemedy(err error) error {
	switch {
	case redis.IsAuthError(err):
		return fmt.Errorf("%w (check username and password)", err)
	case LacksRights(err):
		return fmt.Errorf("%w (the ACL user needs more rights, see the documentation for the least)", err)
	case redis.IsReadOnlyError(err):
		return fmt.Errorf("%w (the address is a replica's: give the primary's)", err)
	case isOutOfMemory(err):
		return fmt.Errorf("%w (its memory is full, so it makes no new counters: raise maxmemory)", err)
	}
	return err
}

// LacksRights reports whether an ACL denied the command, or a command of the script.
func LacksRights(err error) bool {
	text := errorReplyIn(err.Error())
	return redis.IsPermissionError(err) || strings.HasPrefix(text, "NOPERM ")
}

// lacksCommand reports whether the server has no such command, for example because the server's
// configuration renames the command.
func lacksCommand(err error) bool { return strings.HasPrefix(err.Error(), "ERR unknown command") }

// isOutOfMemory reports whether the server did not execute a call because its memory is full and
// the call has a new counter. The server answers calls whose counters all exist. So an OOM error
// does not concern the whole server.
func isOutOfMemory(err error) bool {
	return redis.IsOOMError(err) || strings.HasPrefix(errorReplyIn(err.Error()), "OOM ")
}

// storeWideReplies are the first words of error replies that every check would get. Such replies
// count as failures for the breaker. Other errors (WRONGTYPE, an error inside the script) concern
// one key, and must not make the other keys fail.
var storeWideReplies = []string{"LOADING", "BUSY", "READONLY", "MISCONF", "MASTERDOWN", "NOREPLICAS",
	"CLUSTERDOWN", "NOAUTH", "WRONGPASS", "NOPERM", "NOSCRIPT", "max number of clients"}

// errorReplyIn returns the server's error reply in the text of an error. A Redis before 7 prefixes
// the error of a command inside a script with its location: "ERR Error running script (call to
// f_SHA): @user_script:9: @user_script: 9: -READONLY You can't write". An ACL error of that release
// has no hyphen and no code, and in Redis 7.0, it has the code ERR. Such an error is returned with
// the code that Redis 7.2 uses. A command's own error (WRONGTYPE) and an error of the script have
// no hyphen either; they are returned unchanged.
func errorReplyIn(text string) string {
	if rest, found := strings.CutPrefix(text, "ERR "+deniedInScript); found {
		return "NOPERM " + deniedInScript + rest
	}
	if !strings.HasPrefix(text, "ERR Error running script ") {
		return text
	}
	if _, rest, found := strings.Cut(text, ": "+deniedInScript); found {
		return "NOPERM " + deniedInScript + rest
	}
	if _, refusal, found := strings.Cut(text, ": -"); found {
		return refusal
	}
	return text
}

// deniedInScript is how the error of a Redis before 7.2 begins when its ACL denies a command, a key
// or a channel inside a script.
const deniedInScript = "The user executing the script can't "

// storeWide reports whether the failure concerns the whole server rather than one check.
func (f *Failure) storeWide() bool {
	if f.Kind == KindStale {
		return false
	}
	return f.whole || f.Kind != KindScript || f.failsEveryCommand()
}

// failsEveryCommand reports whether the server would give this error to every command.
func (f *Failure) failsEveryCommand() bool {
	var reply redis.Error
	if !errors.As(f.Cause, &reply) {
		return false
	}
	text := strings.TrimPrefix(errorReplyIn(reply.Error()), "ERR ")
	for _, prefix := range storeWideReplies {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
