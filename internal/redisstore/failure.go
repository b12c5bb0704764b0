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

	"github.com/penstock/penstock/core"
)

// Kind says why a call failed.
type Kind uint8

// The kinds of failure.
const (
	KindTimeout     Kind = iota // no answer by the deadline; the charge may have been executed
	KindCanceled                // the caller gave up; the charge may have been executed
	KindQueueFull               // too many calls were waiting; not executed
	KindBreakerOpen             // Redis failed shortly before and was not asked; not executed
	KindConnection              // no connection, or it broke; the charge may have been executed
	KindScript                  // Redis answered with an error
	KindClosed                  // the store is closed; the charge may have been executed
	KindStale                   // Redis' clock is outside of a calendar window's boundaries; not executed
	KindMoving                  // the counters' slot moved, or had stopped moving halfway, until the deadline; the charge may have been executed
	KindOverloaded              // too long in the queue, though Redis answered; not executed
	KindSlow                    // no answer by the deadline, though Redis answered what was sent later; the charge may have been executed
	kindCount
)

var kindNames = [kindCount]string{"timeout", "canceled", "queue_full", "breaker_open", "connection", "script", "closed",
	"stale", "moving", "overloaded", "slow"}

// String returns the kind's name as it stands in metrics and logs.
func (k Kind) String() string {
	if k >= kindCount {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Failure is every error of [Store.Take] but the caller's own. It wraps core.ErrUnavailable, but for KindQueueFull and
// KindOverloaded core.ErrOverloaded, and its cause, which is core.ErrStale for KindStale.
type Failure struct {
	Kind  Kind
	Cause error // nil where Kind says it all

	whole bool // the server refused the connection, not one command
}

// Error says what failed.
func (f *Failure) Error() string {
	text := failureTexts[f.Kind]
	if f.Cause != nil {
		text += ": " + f.Cause.Error()
	}
	return text
}

// Unwrap returns core.ErrUnavailable or core.ErrOverloaded, and the cause.
func (f *Failure) Unwrap() []error {
	if f.overload() {
		return []error{core.ErrOverloaded}
	}
	if f.Cause == nil {
		return []error{core.ErrUnavailable}
	}
	return []error{core.ErrUnavailable, f.Cause}
}

// overload reports whether the call failed since too many others waited, and not since the server is away.
func (f *Failure) overload() bool { return f.Kind == KindQueueFull || f.Kind == KindOverloaded }

var failureTexts = [kindCount]string{
	KindTimeout:     "redis did not answer in time",
	KindCanceled:    "the caller gave up waiting for redis",
	KindQueueFull:   "too many calls are waiting for redis",
	KindBreakerOpen: "redis failed just now and is not asked until it answers a probe",
	KindConnection:  "no working connection to redis",
	KindScript:      "redis refused",
	KindClosed:      "the redis store is closed",
	KindMoving: "the slot of the counters is moving between two servers of the cluster, or was left halfway " +
		"(penstock redis health says which)",
	KindOverloaded: "too many calls wait for redis, which answers",
	KindSlow:       "redis did not answer in time, though it answered later calls",
	KindStale:      "the clocks of redis and of this process are more than a period apart",
}

// The failures that every call may meet are made once: when Redis hangs they are all that is left of the hot path.
var (
	errTimeout     = &Failure{Kind: KindTimeout}
	errQueueFull   = &Failure{Kind: KindQueueFull}
	errOverloaded  = &Failure{Kind: KindOverloaded}
	errSlow        = &Failure{Kind: KindSlow}
	errBreakerOpen = &Failure{Kind: KindBreakerOpen}
	errClosed      = &Failure{Kind: KindClosed}
	errStale       = &Failure{Kind: KindStale, Cause: core.ErrStale}
	errNoServer    = &Failure{Kind: KindConnection, Cause: errors.New("no server is known that has these counters")}
	// A server was given up for another one: before the call was sent, or while it was under way.
	errRetired = &Failure{Kind: KindConnection, Cause: errors.New("the server was given up for another before it was asked")}
	errGone    = &Failure{Kind: KindConnection, Cause: errors.New("the server was given up for another while it was asked")}
)

// gaveUp is the failure of a caller whose context is done. A context's deadline is a timeout like the store's own.
func gaveUp(ctx context.Context) *Failure {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return &Failure{Kind: KindTimeout, Cause: cause}
	}
	return &Failure{Kind: KindCanceled, Cause: cause}
}

// errUnanswered marks a command to which no reply has been read. go-redis leaves the commands of a pipeline unmarked when
// the server refuses the connection itself (a wrong password), which would look like success.
var errUnanswered = errors.New("no reply was read")

// failureOf turns what go-redis reports into a Failure.
func failureOf(err error) *Failure {
	var reply redis.Error
	switch {
	case redis.HasErrorPrefix(err, "STALE"):
		return errStale
	case errors.As(err, &reply):
		return &Failure{Kind: KindScript, Cause: remedy(err)}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return &Failure{Kind: KindTimeout, Cause: err}
	}
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return &Failure{Kind: KindTimeout, Cause: err}
	}
	return &Failure{Kind: KindConnection, Cause: err}
}

// remedy adds what to do to the errors of a server that is set up in a way that cannot work.
func remedy(err error) error {
	switch {
	case redis.IsAuthError(err):
		return fmt.Errorf("%w (check username and password)", err)
	case redis.IsPermissionError(err):
		return fmt.Errorf("%w (the ACL user needs more rights, see the documentation for the least)", err)
	case redis.IsReadOnlyError(err):
		return fmt.Errorf("%w (the address is a replica's: give the primary's)", err)
	case redis.IsOOMError(err), strings.HasPrefix(refusalIn(err.Error()), "OOM "):
		return fmt.Errorf("%w (raise maxmemory)", err)
	}
	return err
}

// everyCheckRefused are the first words of replies that do not concern one check: every other would get the same. They
// count for the breaker. The others (WRONGTYPE, an error inside the script) concern a key, and one bad key must not take
// the good ones down.
var everyCheckRefused = []string{"LOADING", "BUSY", "READONLY", "OOM", "MISCONF", "MASTERDOWN", "NOREPLICAS",
	"CLUSTERDOWN", "NOAUTH", "WRONGPASS", "NOPERM", "NOSCRIPT", "max number of clients"}

// refusalIn returns the server's refusal in the text of an error. A Redis before 7 that refuses a script a command says first where in
// the script: "ERR Error running script (call to f_SHA): @user_script:9: @user_script: 9: -READONLY You can't write". What the
// command itself answers (WRONGTYPE), and what is wrong in the script, has no such hyphen.
func refusalIn(text string) string {
	if strings.HasPrefix(text, "ERR Error running script ") {
		if _, refusal, found := strings.Cut(text, ": -"); found {
			return refusal
		}
	}
	return text
}

// storeWide reports whether the failure is the whole store's and not one check's.
func (f *Failure) storeWide() bool {
	if f.Kind == KindStale {
		return false
	}
	if f.whole || f.Kind != KindScript {
		return true
	}
	var reply redis.Error
	if !errors.As(f.Cause, &reply) {
		return false
	}
	text := strings.TrimPrefix(refusalIn(reply.Error()), "ERR ")
	for _, prefix := range everyCheckRefused {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
