// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// sendsMax is the greatest number of times that a call is sent. Each answer but the last has
	// proved that the call was not executed.
	sendsMax = 16
	// pauseMin and pauseMax bound the pause before a call is resent to servers that do not agree
	// yet. The pause doubles each time.
	pauseMin = time.Millisecond
	pauseMax = 16 * time.Millisecond
)

// course is the action to take after a failure.
type course uint8

const (
	// do not resend: the call was or might have been executed, or it would fail again
	courseOver  course = iota
	courseMoved        // resend: another server has the slot
	// resend: another server already has these counters, but does not own the slot yet
	courseAsk
	courseApart // resend: one server has some of these keys and another has the rest
	// resend: this server is not serving at the moment, but another might soon
	courseLater
	courseRetired // resend: the server was replaced before the call was sent
)

// notExecuted maps the first word of an error reply to the action to take. These replies prove that
// a script was not run, or that its first write was rejected. In both cases the script has written
// nothing. NOSCRIPT is handled where calls are sent.
var notExecuted = map[string]course{
	"MOVED": courseMoved, "ASK": courseAsk, "TRYAGAIN": courseApart, "CLUSTERDOWN": courseLater, "LOADING": courseLater,
	"MASTERDOWN": courseLater, "READONLY": courseLater,
}

// Failure.course returns how to handle a failure, and the text of the server's reply.
func (f *Failure) course() (course, string) {
	if f == errRetired {
		return courseRetired, ""
	}
	var reply redis.Error
	if f.Kind != KindScript || f.whole || !errors.As(f.Cause, &reply) {
		return courseOver, ""
	}
	text := reply.Error()
	word, _, _ := strings.Cut(errorReplyIn(text), " ")
	return notExecuted[word], text
}

// Store.redirect selects the server to which a failed part is resent, and the pause before that.
// The argument named sent is the number of times that the part was sent. Store.redirect returns
// false if the failure is final.
func (s *Store) redirect(p *part, sent int) (pause time.Duration, again bool) {
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
		slot, addr, ok := parseRedirection(text, asked.address.target)
		if !ok || s.cluster == nil || slot != p.place {
			return 0, false
		}
		p.asking = what == courseAsk
		if p.asking {
			p.node = s.cluster.node(addr)
		} else {
			s.rediscover()
			p.node = s.cluster.learn(slot, addr)
		}
		if p.node == nil {
			return 0, false
		}
		if p.node != asked && sent < sendsMax/2 {
			return 0, true
		}
	default:
		s.rediscover()
		p.node = nil
	}
	return min(pauseMax, pauseMin<<min(sent-1, 10)), true
}
