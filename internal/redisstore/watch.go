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
func (s *Store) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	warned := "" // what the log was last told, so that an outage does not make it say so again
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.opened:
			s.probe()
		case <-timer.C:
		}
		timer.Stop()
		if s.breaker.State() != BreakerClosed || !s.inspect(&warned) {
			timer.Reset(checkEvery)
		}
	}
}

// probe asks Redis until it answers, and then lets the breaker try.
func (s *Store) probe() {
	start := time.Now()
	for s.breaker.State() == BreakerOpen {
		pause := probeEveryMin + rand.N(probeEveryMax-probeEveryMin)
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
		if s.warm() == nil || time.Since(start) >= openMax {
			s.breaker.tryAgain()
		}
	}
}

// warm makes as many connections as there are lanes, or finds that they are alive. It takes them from the pool all at
// once, so that each is another one, and the lanes find them there.
func (s *Store) warm() error {
	ctx, cancel := context.WithTimeout(s.ctx, max(connectTimeMin, s.settings.timeout))
	defer cancel()
	for range s.settings.lanes {
		conn := s.client.Conn()
		defer conn.Close()
		if err := conn.Ping(ctx).Err(); err != nil {
			return err
		}
	}
	return nil
}

// inspect reports whether the server could be asked how it is set up; what is wrong with it is logged.
func (s *Store) inspect(warned *string) bool {
	err := s.warm()
	if err == nil {
		ctx, cancel := context.WithTimeout(s.ctx, max(connectTimeMin, s.settings.timeout))
		defer cancel()
		err = s.Check(ctx)
	}
	var unsafe *unsafeError
	switch {
	case err == nil:
		return true
	case errors.As(err, &unsafe):
		if text := err.Error(); text != *warned {
			*warned = text
			s.settings.logger.Warn(text, "redis", s.reporter.server)
		}
		return true
	case s.ctx.Err() == nil:
		s.reporter.failed(time.Now(), failureOf(err), 0)
	}
	return false
}

// unsafeError is a server that answers but cannot keep every promise.
type unsafeError struct{ text string }

func (e *unsafeError) Error() string { return e.text }

// Check asks Redis whether it answers and whether it is set up so that limits hold: its version, and what it does when
// its memory is full. The store does so by itself in the background and logs the answer; Check is for health pages. One
// asks at a time, so that those who ask cannot take the connections of those who are limited.
func (s *Store) Check(ctx context.Context) error {
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errClosed
	}
	text, err := s.client.Info(ctx, "server", "memory").Result()
	switch {
	case redis.IsPermissionError(err):
		// A user without INFO gave up the warnings, not the limits.
		return s.client.Ping(ctx).Err()
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
