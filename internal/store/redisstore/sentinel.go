// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// listenAgain is the pause before reconnecting to a sentinel.
	listenAgain = time.Second
	// listenPing is the silence after which the listener pings a sentinel.
	listenPing = 5 * time.Second
	// switchMaster is the channel on which sentinels announce a failover: NAME OLD-IP OLD-PORT
	// NEW-IP NEW-PORT.
	switchMaster = "+switch-master"
)

// masterView is a master as a sentinel reports it.
type masterView struct {
	addr  string
	epoch int64 // number of failovers
}

// askSentinels queries the sentinels in turn for the master and adopts the first credible answer.
// askSentinels ignores a sentinel that has recorded fewer failovers than the store, because that
// sentinel was cut off from the other sentinels. askSentinels also ignores an answer whose master
// does not confirm its role. If all answers are ignored for several rounds, and most sentinels
// report fewer failovers than the store, the sentinels have lost their state or were set up again.
// Then askSentinels adopts the latest of their answers, and ignores older state that another
// sentinel still remembers.
func (s *Store) askSentinels(ctx context.Context) error {
	var problems []error
	var behind []masterView
	var unconfirmed *masterView
	known, old := s.epoch.Load(), s.outdatedView.Load()
	for _, seed := range s.settings.seeds {
		w, err := s.masterOf(ctx, seed)
		switch {
		case err == nil && w.epoch < known:
			behind = append(behind, w)
			err = fmt.Errorf("it knows of failover %d only, but there was failover %d", w.epoch, known)
		case err == nil && old != nil && *old == w:
			behind = append(behind, w)
			err = fmt.Errorf("it remembers failover %d, and most sentinels have forgotten that", w.epoch)
		case err == nil:
			if err = s.switchTo(ctx, w); err == nil {
				s.behindRounds.Store(0)
				return nil
			}
			unconfirmed = &w
		}
		problems = append(problems, fmt.Errorf("sentinel %s: %w", seed, err))
	}
	if 2*len(behind) <= len(s.settings.seeds) {
		s.behindRounds.Store(0)
		return errors.Join(problems...)
	}
	if s.behindRounds.Add(1) >= behindRoundsMin {
		err := s.switchToLatest(ctx, behind)
		if err == nil {
			s.outdatedView.Store(unconfirmed)
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// behindRoundsMin is the number of consecutive rounds, about two seconds, in which most sentinels
// must report fewer failovers before the store adopts their answer. The number is large because
// several sentinels can share one host name. One of them that is cut off can answer in several
// rounds in a row.
const behindRoundsMin = 20

// switchToLatest adopts an answer with the highest failover count. Sentinels that have lost their
// state can disagree for a while, so it adopts the first of these answers whose master confirms its
// role.
func (s *Store) switchToLatest(ctx context.Context, all []masterView) (err error) {
	latest := slices.MaxFunc(all, func(a, b masterView) int { return cmp.Compare(a.epoch, b.epoch) })
	for _, w := range all {
		if w.epoch != latest.epoch {
			continue
		}
		if err = s.switchTo(ctx, w); err == nil {
			return nil
		}
	}
	return err
}

// switchTo makes a sentinel's master the target of calls. The master must first confirm its role,
// unless it is the target already and its breaker is closed.
func (s *Store) switchTo(ctx context.Context, w masterView) error {
	old := s.only.Load()
	same := old != nil && old.address.target == w.addr
	if !same || old.breaker.State() != BreakerClosed {
		if err := s.confirmMaster(ctx, w.addr); err != nil {
			return err
		}
	}
	s.epoch.Store(w.epoch)
	if same {
		return nil
	}
	s.only.Store(newNode(s, s.settings.at(w.addr)))
	if old != nil {
		s.settings.logger.Warn("the sentinels report a new master", "redis", s.reporter.server,
			"master", w.addr, "before", old.address.target)
		s.running.Go(old.close)
	}
	return nil
}

// confirmMaster checks that a server is a master. If the user has no right to run ROLE, the
// sentinel's answer is accepted, because a replica would reject writes anyway.
func (s *Store) confirmMaster(ctx context.Context, addr string) error {
	role := ""
	err := s.once(ctx, s.settings.at(addr), func(ctx context.Context, client Client) error {
		answer, err := client.Do(ctx, "role").Slice()
		if err == nil && len(answer) > 0 {
			role, _ = answer[0].(string)
		}
		return err
	})
	switch {
	case redis.IsPermissionError(err):
		return nil
	case err != nil:
		return fmt.Errorf("the master %s: %w", addr, err)
	case role != "master":
		return fmt.Errorf("the master %s says that it is a %s", addr, role)
	}
	return nil
}

// masterOf queries a sentinel for the master.
func (s *Store) masterOf(ctx context.Context, seed string) (w masterView, err error) {
	err = s.once(ctx, s.settings.sentinelAt(seed), func(ctx context.Context, client Client) error {
		fields, err := client.Do(ctx, "sentinel", "master", s.settings.master).Slice()
		if err != nil {
			return err
		}
		w, err = readMasterView(fields, seed)
		return err
	})
	return w, err
}

// sentinelAt returns the address and credentials of a sentinel.
func (s *settings) sentinelAt(seed string) address {
	a := s.at(seed)
	a.username, a.password, a.database = s.sentinelUser, s.sentinelPassword, 0
	return a
}

// readMasterView reads the reply to SENTINEL MASTER: alternating names and values.
func readMasterView(fields []any, asked string) (masterView, error) {
	values := map[string]string{}
	for i := 0; i+1 < len(fields); i += 2 {
		name, _ := fields[i].(string)
		values[name], _ = fields[i+1].(string)
	}
	addr, ok := completeAddress(values["ip"]+":"+values["port"], asked)
	epoch, err := strconv.ParseInt(values["config-epoch"], 10, 64)
	if !ok || err != nil {
		return masterView{}, errors.New("the reply to SENTINEL MASTER cannot be parsed")
	}
	return masterView{addr, epoch}, nil
}

// Store.listen starts a round of discovery as soon as a sentinel announces a failover.
func (s *Store) listen() {
	for i := 0; s.ctx.Err() == nil; i++ {
		s.listenTo(s.settings.seeds[i%len(s.settings.seeds)])
		select {
		case <-s.ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// listenTo subscribes to a sentinel's failover messages until the connection fails.
func (s *Store) listenTo(seed string) {
	a := s.settings.sentinelAt(seed)
	d := newDialer(a, s.settings.tls, s.settings.timeout, s.settings.timeout)
	options := clientOptions(a, d, 1)
	options.OnConnect = nil
	client := redis.NewClient(options)
	stop := context.AfterFunc(s.ctx, d.close)
	defer stop()
	topic := client.Subscribe(s.ctx, switchMaster)
	defer func() {
		_ = topic.Close()
		d.close()
		_ = client.Close()
	}()
	for silent := false; s.ctx.Err() == nil; {
		message, err := topic.ReceiveTimeout(s.ctx, listenPing)
		var network net.Error
		switch {
		case err == nil:
			silent = false
			if _, told := message.(*redis.Message); told {
				s.rediscover()
			}
		case silent || !errors.Is(err, os.ErrDeadlineExceeded) && !(errors.As(err, &network) && network.Timeout()):
			return
		default:
			silent = true
			if topic.Ping(s.ctx) != nil {
				return
			}
		}
	}
}
