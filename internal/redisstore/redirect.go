// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// tripsMax is how often a call is sent at most. Each but the last had an answer that proves that it was not executed.
	tripsMax = 16
	// pauseMin and pauseMax bound the pause before a call is sent again to servers that have yet to agree; it doubles.
	pauseMin = time.Millisecond
	pauseMax = 16 * time.Millisecond
)

// course is what an answer says about sending a call again.
type course uint8

const (
	courseOver    course = iota // it does not: the call was executed, or may have been, or would fail again
	courseMoved                 // another server has the slot
	courseAsk                   // another server has these counters already, though not yet the slot
	courseApart                 // of these keys one server has some and another one the others
	courseLater                 // this server does not serve just now; another may soon
	courseRetired               // the server was given up before the call was sent
)

// notExecuted are the first words of the refusals that prove that a script was not run, or was refused its first write, before
// which it writes nothing. NOSCRIPT is answered where calls are sent.
var notExecuted = map[string]course{
	"MOVED": courseMoved, "ASK": courseAsk, "TRYAGAIN": courseApart, "CLUSTERDOWN": courseLater, "LOADING": courseLater,
	"MASTERDOWN": courseLater, "READONLY": courseLater,
}

// course returns what to do about a failure, and the server's own words.
func (f *Failure) course() (course, string) {
	if f == errRetired {
		return courseRetired, ""
	}
	var reply redis.Error
	if f.Kind != KindScript || f.whole || !errors.As(f.Cause, &reply) {
		return courseOver, ""
	}
	text := reply.Error()
	word, _, _ := strings.Cut(refusalIn(text), " ")
	return notExecuted[word], text
}

// redirect says whom to ask next about a part that failed, and after which pause; trip is how often it was sent. It reports
// false if the failure stands.
func (s *Store) redirect(p *part, trip int) (pause time.Duration, again bool) {
	if s.settings.fixed() {
		return 0, false
	}
	what, text := p.failure.course()
	asked := p.node
	p.asking = false
	switch what {
	case courseOver:
		return 0, false
	case courseMoved, courseAsk:
		slot, addr, ok := redirection(text, asked.address.target)
		if !ok || s.cluster == nil || slot != p.place {
			return 0, false
		}
		p.asking = what == courseAsk
		if p.asking {
			p.node = s.cluster.node(addr)
		} else {
			s.nudge()
			p.node = s.cluster.learn(slot, addr)
		}
		if p.node == nil {
			return 0, false
		}
		if p.node != asked && trip < tripsMax/2 {
			return 0, true
		}
	default:
		s.nudge()
		p.node = nil
	}
	return min(pauseMax, pauseMin<<min(trip-1, 10)), true
}
