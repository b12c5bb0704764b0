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
	// listenAgain is how long after the end of one connection to a sentinel the next one begins.
	listenAgain = time.Second
	// listenPing is after how much silence a sentinel that is listened to is asked whether it is there.
	listenPing = 5 * time.Second
	// switchMaster is where sentinels tell of a failover: NAME OLD-IP OLD-PORT NEW-IP NEW-PORT.
	switchMaster = "+switch-master"
)

// watched is a master as a sentinel knows it.
type watched struct {
	addr  string
	epoch int64 // counts the failovers
}

// askSentinels asks sentinels in turn which server is the master, and makes that the one that is asked. A sentinel that knows
// of fewer failovers than were known before was cut off from the others, and is not believed. If most of them know of fewer, and
// none that answers of as many, time after time, they have forgotten: they came back without their files, or were told anew whom
// to watch.
func (s *Store) askSentinels(ctx context.Context) error {
	var problems []error
	var behind []watched
	known, remembered := s.epoch.Load(), false
	for _, seed := range s.settings.seeds {
		w, err := s.watchedBy(ctx, seed)
		switch {
		case err == nil && w.epoch < known:
			behind = append(behind, w)
			err = fmt.Errorf("it knows of failover %d, and there was number %d", w.epoch, known)
		case err == nil:
			remembered = true
			if err = s.switchTo(ctx, w); err == nil {
				s.forgetful.Store(0)
				return nil
			}
		}
		problems = append(problems, fmt.Errorf("sentinel %s: %w", seed, err))
	}
	if remembered || 2*len(behind) <= len(s.settings.seeds) {
		s.forgetful.Store(0)
	} else if s.forgetful.Add(1) >= forgetfulMin {
		err := s.switchToLatest(ctx, behind)
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// forgetfulMin is how often in succession sentinels must have forgotten, two seconds or so: behind one name there may be several,
// and one of them cut off.
const forgetfulMin = 20

// switchToLatest believes those sentinels that know of the most failovers. They may differ for a while after they have forgotten:
// then it is the first whose master says that it is one.
func (s *Store) switchToLatest(ctx context.Context, all []watched) (err error) {
	latest := slices.MaxFunc(all, func(a, b watched) int { return cmp.Compare(a.epoch, b.epoch) })
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

// switchTo makes a server the one that is asked, if it is a master in its own eyes as well.
func (s *Store) switchTo(ctx context.Context, w watched) error {
	old := s.only.Load()
	if old != nil && old.address.target == w.addr {
		s.epoch.Store(w.epoch)
		return nil
	}
	role := ""
	err := s.once(ctx, s.settings.at(w.addr), func(ctx context.Context, client *redis.Client) error {
		answer, err := client.Do(ctx, "role").Slice()
		if err == nil && len(answer) > 0 {
			role, _ = answer[0].(string)
		}
		return err
	})
	switch {
	case redis.IsPermissionError(err):
		// Then the sentinels' word must do. A replica would refuse to write.
	case err != nil:
		return fmt.Errorf("the master %s: %w", w.addr, err)
	case role != "master":
		return fmt.Errorf("the master %s says that it is a %s", w.addr, role)
	}
	s.epoch.Store(w.epoch)
	s.only.Store(newNode(s, s.settings.at(w.addr)))
	if old != nil {
		s.settings.logger.Warn("the sentinels have another master", "redis", s.reporter.server, "master", w.addr, "before", old.address.target)
		s.running.Go(old.close)
	}
	return nil
}

// watchedBy asks a sentinel for the master.
func (s *Store) watchedBy(ctx context.Context, seed string) (w watched, err error) {
	err = s.once(ctx, s.settings.sentinelAt(seed), func(ctx context.Context, client *redis.Client) error {
		fields, err := client.Do(ctx, "sentinel", "master", s.settings.master).Slice()
		if err != nil {
			return err
		}
		w, err = readWatched(fields, seed)
		return err
	})
	return w, err
}

// sentinelAt returns how a sentinel is asked.
func (s *settings) sentinelAt(seed string) address {
	a := s.at(seed)
	a.username, a.password, a.database = s.sentinelUser, s.sentinelPassword, 0
	return a
}

// readWatched reads the answer to SENTINEL MASTER: names and values by turns.
func readWatched(fields []any, asked string) (watched, error) {
	values := map[string]string{}
	for i := 0; i+1 < len(fields); i += 2 {
		name, _ := fields[i].(string)
		values[name], _ = fields[i+1].(string)
	}
	addr, ok := completed(values["ip"]+":"+values["port"], asked)
	epoch, err := strconv.ParseInt(values["config-epoch"], 10, 64)
	if !ok || err != nil {
		return watched{}, errors.New("the answer to sentinel master is none that is known")
	}
	return watched{addr, epoch}, nil
}

// listen has the sentinels asked as soon as one of them tells of a failover.
func (s *Store) listen() {
	for i := 0; s.ctx.Err() == nil; i++ {
		s.listenTo(s.settings.seeds[i%len(s.settings.seeds)])
		select {
		case <-s.ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// listenTo listens to a sentinel until it fails.
func (s *Store) listenTo(seed string) {
	a := s.settings.sentinelAt(seed)
	d := newDialer(a, s.settings.tls, s.settings.timeout)
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
				s.nudge()
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
