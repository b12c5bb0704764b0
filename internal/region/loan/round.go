// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// laterMax is the greatest number of questions about one counter that are put off until the current
// round has ended. Further questions are dropped.
const laterMax = 64

// round is a set of questions about one counter that are under way at the same time. Each question
// may bring units, so a request that waits for one of them waits until all of them have ended.
type round struct {
	need     atomic.Int64 // the units for which requests wait
	lent     atomic.Int64 // the units that other regions have lent
	restored atomic.Int64 // those of them that this region can use
	back     atomic.Bool  // units were given back
	moving   atomic.Bool  // other regions wait for units that are under way
	refused  atomic.Int64 // for how many milliseconds no request should wait: see [Agent.deem]

	// The lock of the rounds guards the fields below.
	key    string
	active int       // questions under way
	ids    []string  // the IDs of the questions for which requests wait
	later  *Question // what is asked after this round, or nil
	lateID []string  // the IDs of those questions in later for which requests wait
}

// rounds holds the rounds under way, by the keys of their counters.
type rounds struct {
	mu    sync.Mutex
	byKey map[string]*round
}

// rounds.join adds a question to the round of its counter, and returns the round.
func (s *rounds) join(q *Question) *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinLocked(q)
}

// rounds.has reports whether a counter has a round.
func (s *rounds) has(key []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[string(key)] != nil
}

func (s *rounds) joinLocked(q *Question) *round {
	r := s.byKey[string(q.Key)]
	if r == nil {
		r = &round{key: string(q.Key)}
		s.byKey[r.key] = r
	}
	r.active++
	return r
}

// rounds.await adds a question for whose answer requests wait. If such a question is already under
// way, it returns nil and puts q off until the round has ended. The result dropped is true if too
// many questions are already put off, so that q is never asked.
func (s *rounds) await(q *Question, ids []string) (r *round, dropped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r = s.byKey[string(q.Key)]; r == nil || r.need.Load() == 0 {
		r = s.joinLocked(q)
		r.need.Store(q.Need)
		r.refused.Store(0)
		r.ids = ids
		return r, false
	}
	if len(r.lateID)+len(ids) > laterMax {
		return nil, true
	}
	if r.lateID = append(r.lateID, ids...); r.later == nil {
		later := *q
		r.later = &later
	} else {
		r.later.Need = min(r.later.Need+q.Need, counter.CountMax)
		r.later.Want = min(r.later.Want+q.Need, counter.CountMax)
	}
	return nil, false
}

// rounds.leave ends a question of a round, and reports whether it was the round's last question.
func (s *rounds) leave(r *round) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.active--; r.active > 0 {
		return false
	}
	delete(s.byKey, r.key)
	return true
}

// Agent.await asks the other regions for units for which requests of this region wait. The argument
// ids contains the IDs of the questions that the proxies have asked.
func (a *Agent) await(ctx context.Context, q *Question, ids []string) {
	p, key := a.pauseOf(q)
	if !p.endsFor(key, time.Now()) {
		a.counts.repeated.Add(1)
		a.publish(ctx, &regionstore.Answer{Key: q.Key, Done: ids, RefusedMillis: p.refused(key, time.Now())})
		return
	}
	r, dropped := a.rounds.await(q, ids)
	switch {
	case dropped:
		a.counts.dropped.Add(1)
		a.refuse(ctx, q, ids)
	case r != nil && !a.start(ctx, q, r):
		p.noteDropped(key)
		a.leave(ctx, r)
	}
}

// Agent.leave ends a question of a round. After the last one, it informs the proxies that the round
// brings no more units. It then asks the questions that were put off.
func (a *Agent) leave(ctx context.Context, r *round) {
	if !a.rounds.leave(r) {
		return
	}
	if refused := r.refused.Load(); len(r.ids) > 0 || refused > 0 {
		more := len(r.ids) > 0 && (r.lent.Load() >= r.need.Load() || r.back.Load())
		if more {
			refused = 0
		}
		a.publish(ctx, &regionstore.Answer{Key: []byte(r.key), Done: r.ids, More: more, Moving: refused == 0 && r.moving.Load(),
			RefusedMillis: refused})
	}
	if r.later != nil {
		a.await(ctx, r.later, r.lateID)
	}
}

// Agent.publish sends an answer to the proxies of this region. If the message is lost, requests
// wait until their time is over.
func (a *Agent) publish(ctx context.Context, answer *regionstore.Answer) {
	message, err := json.Marshal(answer)
	if err != nil {
		return // unreachable
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if err := a.o.Publish(ctx, message); err != nil {
		a.o.Logger.Warn("the proxies of the region could not be informed of a loan", "error", err)
	}
}

// Agent.refuse informs the proxies that a question brings no units.
func (a *Agent) refuse(ctx context.Context, q *Question, ids []string) {
	a.publish(ctx, &regionstore.Answer{Key: q.Key, Done: ids})
}
