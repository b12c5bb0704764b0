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
)

// How the background watch works.
const (
	// probeEveryMin and probeEveryMax bound the time between two probes while the breaker is open; it is random so that
	// nodes do not probe in step.
	probeEveryMin = 100 * time.Millisecond
	probeEveryMax = 250 * time.Millisecond
	// openMax is how long the breaker stays open when no probe gets through, which may be the probe's own fault.
	openMax = 30 * time.Second
	// connectTimeMin is what connecting in the background may take at least. A check's deadline may be too short for it:
	// TCP, TLS, the greeting and the script are five round trips.
	connectTimeMin = 500 * time.Millisecond
	// checkEvery is how long after a failed start-up check the next one follows.
	checkEvery = time.Second
)

// The oldest Redis that the script is tested for.
const (
	versionMajorMin = 6
	versionMinorMin = 2
)

// watch connects at the start, looks once at how the server is set up (again after each outage: it may be another), and
// probes while the breaker is open.
func (n *node) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	warned := "" // what the log was last told, so that an outage does not make it say so again
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.opened:
			n.probe()
		case <-timer.C:
		}
		timer.Stop()
		if n.breaker.State() != BreakerClosed || !n.inspect(&warned) {
			timer.Reset(checkEvery)
		}
	}
}

// probe asks Redis until it answers, and then lets the breaker try.
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
		}
	}
}

// warm makes as many connections as there are lanes, or finds that they are alive. It takes them from the pool all at
// once, so that each is another one, and the lanes find them there.
func (n *node) warm() error {
	ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
	defer cancel()
	for range n.store.settings.lanes {
		conn := n.client.Conn()
		defer conn.Close()
		if err := conn.Ping(ctx).Err(); err != nil {
			return err
		}
	}
	return nil
}

// inspect reports whether the server could be asked how it is set up; what is wrong with it is logged.
func (n *node) inspect(warned *string) bool {
	err := n.warm()
	if err == nil {
		ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
		defer cancel()
		if err = n.check(ctx); err == nil {
			err = n.agree(ctx)
		}
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
		n.store.reporter.failed(time.Now(), failureOf(err), 0)
	}
	return false
}

// unsafeError is a server that answers but cannot keep every promise.
type unsafeError struct{ text string }

func (e *unsafeError) Error() string { return e.text }

// check asks the server whether it answers and whether it is set up so that limits hold: its version, and what it does when
// its memory is full. One asks at a time, so that those who ask cannot take the connections of those who are limited.
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
		// A user without INFO gave up the warnings, not the limits.
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
		return nil // a server that speaks Redis' protocol and has numbers of its own
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

// infoField returns a field of INFO's answer, "" if it is not there.
func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
