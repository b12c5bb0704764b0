// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/lua"
)

// Parameters of the background watch.
const (
	// probeEveryMin and probeEveryMax bound the time between two probes while the breaker is open.
	// The time is random, so that nodes do not probe at the same time.
	probeEveryMin = 100 * time.Millisecond
	probeEveryMax = 250 * time.Millisecond
	// openMax is how long the breaker stays open if no probe succeeds, in case the probe itself is
	// the problem.
	openMax = 30 * time.Second
	// connectTimeMin is the minimum time allowed for connecting in the background. A check's
	// deadline can be too short for connecting, because TCP, TLS, the handshake and the script take
	// five round trips.
	connectTimeMin = 500 * time.Millisecond
	// checkEvery is the interval between start-up checks until one succeeds.
	checkEvery = time.Second
)

// The oldest supported version of Redis.
const (
	versionMajorMin = 6
	versionMinorMin = 2
)

// node.watch connects, checks the server's settings once (and again after each outage, because the
// server might be a different one), and probes while the breaker is open.
func (n *node) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	warned := "" // the last logged warning, so that an outage does not repeat it
	for first := true; ; first = false {
		select {
		case <-n.ctx.Done():
			return
		case <-n.opened:
			n.probe()
		case <-timer.C:
			n.probe() // in case a panic has ended the last probe
			n.try()
			n.breaker.whileHalfOpen(n.reporter.untried)
		}
		timer.Stop()
		if n.breaker.State() != BreakerClosed || !n.inspect(&warned) {
			timer.Reset(checkEvery)
		}
		if first {
			n.inspection.Do(func() { close(n.inspected) })
		}
	}
}

// node.probe pings Redis until it answers, then sets the breaker to half open and tries it.
func (n *node) probe() {
	start := time.Now()
	for n.breaker.State() == BreakerOpen {
		pause := probeEveryMin + rand.N(probeEveryMax-probeEveryMin)
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(pause):
		}
		if n.warm() == nil || time.Since(start) >= openMax {
			n.breaker.tryAgain()
			n.try()
		}
	}
}

// trialLimit is the limit of the counter that a trial resets.
var trialLimit, _ = counter.NewLimit(counter.FixedWindow, 1, counter.Second, 0)

// node.try runs the script as the trial of a half-open breaker. The trial deletes a counter that
// does not exist, so it changes nothing. A server that rejects charges rejects the trial too.
// Without this method, the breaker of a node without requests would stay half open, and on_error
// would decide all but one request of the next burst.
func (n *node) try() {
	if admitted, trial := n.breaker.admit(); !admitted || !trial {
		return
	}
	epoch := n.breaker.epoch.Load()
	ctx, cancel := context.WithTimeout(n.ctx, n.store.settings.patience)
	defer cancel()
	reset := newTake(ctx, 0, []counter.Check{{Key: n.trialKey(), Limit: &trialLimit, Op: counter.OpReset}})
	_, err := n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ScriptLoad(ctx, lua.Take) // the server may have been restarted, or its scripts flushed
		return pipe.Process(ctx, reset)
	})
	n.finishTrial(epoch, err)
}

// trialKey returns a key on this server, in the slot of a call that has failed here. If the slot
// has moved in the meantime, the trial has no result.
func (n *node) trialKey() []byte {
	tag := "~trial"
	if key := n.failedKey.Load(); key != nil {
		_, rest, _ := strings.Cut(*key, "{")
		if inner, _, found := strings.Cut(rest, "}"); found && inner != "" {
			tag = inner
		}
	}
	return []byte("rl1:~trial:{" + tag + "}")
}

// finishTrial ends a trial that began in the given epoch of the breaker. Some errors concern only
// the trial's key: it can be on another server by now, or the rights to it can be missing. Such
// errors are no evidence about checks, so the next call is tried instead.
func (n *node) finishTrial(epoch uint64, err error) {
	switch {
	case err == nil:
		n.breaker.report(epoch, false)
	case n.ctx.Err() == nil && !LacksRights(err) && failureOf(err).storeWide():
		n.breaker.report(epoch, true)
	default:
		n.breaker.release()
	}
}

// node.warm opens one connection per lane, or verifies that these connections are alive. It takes
// them from the pool at the same time, so that each is a different one, and then returns them to
// the pool for the lanes.
func (n *node) warm() error {
	ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
	defer cancel()
	for range n.store.settings.lanes {
		conn := n.client.(*redis.Client).Conn()
		defer conn.Close()
		if err := conn.Ping(ctx).Err(); err != nil {
			return err
		}
	}
	return nil
}

// node.inspect reports whether the server's settings could be checked. It logs their problems.
func (n *node) inspect(warned *string) bool {
	err := n.warm()
	if err == nil {
		ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
		defer cancel()
		if err = n.check(ctx); err == nil {
			err = n.agree(ctx)
		}
		_ = n.values.Ping(ctx).Err() // so that the first value need not wait for a connection
	}
	var unsafe *unsafeError
	switch {
	case err == nil:
		return true
	case errors.As(err, &unsafe):
		if text := err.Error(); text != *warned {
			*warned = text
			n.store.settings.logger.Warn(text, "redis", n.reporter.server)
		}
		return true
	case n.ctx.Err() == nil:
		n.store.reporter.recordFailures(time.Now(), failureOf(err), 0)
	}
	return false
}

// unsafeError reports a server that answers, but that might not enforce limits correctly.
type unsafeError struct{ text string }

func (e *unsafeError) Error() string { return e.text }

// node.check returns an error unless the server answers, and has a version and a policy for full
// memory with which limits are safe. Only one check runs at a time, so that health checks cannot
// take the connections of requests.
func (n *node) check(ctx context.Context) error {
	select {
	case n.checking <- struct{}{}:
		defer func() { <-n.checking }()
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return n.gone()
	}
	text, err := n.client.Info(ctx, "server", "memory").Result()
	switch {
	case redis.IsPermissionError(err):
		// Without the right to INFO, there are no warnings, but limits work.
		return n.client.Ping(ctx).Err()
	case err != nil:
		return err
	}
	return errors.Join(checkVersion(infoField(text, "redis_version")), checkPolicy(infoField(text, "maxmemory_policy")))
}

func checkVersion(version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	majorNumber, err := strconv.Atoi(major)
	if err != nil {
		return nil // this is the version of a compatible server, not of Redis itself
	}
	minorNumber, _ := strconv.Atoi(minor)
	if majorNumber > versionMajorMin || majorNumber == versionMajorMin && minorNumber >= versionMinorMin {
		return nil
	}
	return &unsafeError{fmt.Sprintf("redis %s is too old: %d.%d or newer is needed", version, versionMajorMin,
		versionMinorMin)}
}

func checkPolicy(policy string) error {
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return &unsafeError{fmt.Sprintf("redis has maxmemory-policy %q: when its memory is full it forgets counters, and "+
		"limits do not hold: set noeviction", policy)}
}

// infoField returns a field of INFO's reply, or "" if it is missing.
func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
