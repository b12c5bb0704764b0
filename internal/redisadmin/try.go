// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redisstore"
)

// This file tries things out on a server: what the user may do, what its clock says, how long the script takes.

// throwAway is how long a key of the doctor's stays if it cannot be deleted.
const throwAway = 10 * time.Second

// ownKey returns a key of nobody's counter that the server has the slot of.
func (n *Node) ownKey() string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s~doctor:~doctor:{%d}:60s:sw", keyPrefix, i)
		slot := redisstore.Slot(key)
		if len(n.Slots) == 0 || slices.ContainsFunc(n.Slots, func(s Slots) bool { return s.First <= slot && slot <= s.Last }) {
			return key
		}
	}
}

// tries are commands that show whether the user may run one, by its name in [redisstore.LeastPrivilege]. KEY and SET stand
// for throw-away keys. Whatever else they are answered is no matter.
var tries = map[string][]any{
	"ping": {"ping"}, "info": {"info", "server"}, "select": {"select", "DATABASE"}, "time": {"time"},
	"script|load": {"script", "load", "return 1"}, "evalsha": {"evalsha", strings.Repeat("0", 40), 0},
	"get": {"get", "KEY"}, "set": {"set", "KEY", "1", "px", throwAway.Milliseconds()}, "pexpire": {"pexpire", "KEY", throwAway.Milliseconds()},
	"del": {"del", "KEY"}, "zadd": {"zadd", "SET", 1, "m"}, "zcount": {"zcount", "SET", 0, 1}, "zrange": {"zrange", "SET", 0, 0},
	"zrangebyscore": {"zrangebyscore", "SET", 0, 1}, "zremrangebyrank": {"zremrangebyrank", "SET", 0, 0},
	"zremrangebyscore": {"zremrangebyscore", "SET", 0, 1},
	"cluster|slots":    {"cluster", "slots"}, "cluster|info": {"cluster", "info"}, "asking": {"asking"}, "client|setname": {"client", "setname", "penstock"}, "role": {"role"},
}

// leastRights are what the store needs.
func (d *Deployment) leastRights() string {
	switch d.Mode {
	case ModeCluster:
		return redisstore.LeastPrivilege + " " + redisstore.ClusterPrivilege
	case ModeSentinel:
		return redisstore.LeastPrivilege + " " + redisstore.SentinelPrivilege
	}
	return redisstore.LeastPrivilege
}

// rights tries whether the user may do what the store does, and reports whether it may.
func (e *examination) rights(ctx context.Context) bool {
	key, missing, keys := e.n.ownKey(), []string{}, false
	for word := range strings.FieldsSeq(e.d.leastRights()) {
		name, wanted := strings.CutPrefix(word, "+")
		words, known := tries[name]
		if !wanted || !known || name == "select" && e.n.options.DB == 0 {
			continue
		}
		err := e.n.said(ctx, e.filledIn(words, key)...).Err()
		switch text := fmt.Sprint(err); {
		case !redis.IsPermissionError(err):
		case strings.Contains(text, "key"):
			keys = true
		default:
			missing = append(missing, word)
		}
	}
	_ = e.n.said(ctx, "del", key, key+":z").Err()
	if keys {
		missing = append(missing, "~"+keyPrefix+"*")
	}
	if len(missing) > 0 {
		e.say(LevelWrong, "rights", fmt.Sprintf("the user %q may not do all that the store does", e.n.user()),
			append([]string{e.n.cli(append([]string{"ACL", "SETUSER", e.n.user()}, missing...)...)}, e.keepUsers(ctx)...)...)
		return false
	}
	e.say(LevelOK, "rights", fmt.Sprintf("the user %q may do all that the store does", e.n.user()))
	return true
}

// keepUsers returns the command that keeps a change of users for after a restart, if it is known.
func (e *examination) keepUsers(ctx context.Context) []string {
	switch file, _ := e.config(ctx, "aclfile"); {
	case file != "":
		return []string{e.n.cli("ACL", "SAVE")}
	case e.n.info["config_file"] != "":
		return []string{e.n.cli("CONFIG", "REWRITE")}
	}
	return nil
}

func (e *examination) filledIn(words []any, key string) []any {
	filled := slices.Clone(words)
	for i, word := range filled {
		switch word {
		case "KEY":
			filled[i] = key
		case "SET":
			filled[i] = key + ":z"
		case "DATABASE":
			filled[i] = e.n.options.DB
		}
	}
	return filled
}

const (
	// trialCalls is how many calls are measured: enough for a median, few enough to go unnoticed.
	trialCalls = 21
	// clockTries is how often the clock is read: the fastest answer is the most exact.
	clockTries = 5
	// clockOffMax is by how much clocks may differ: X-RateLimit-Reset is told in seconds.
	clockOffMax = time.Second
)

// clock compares the server's with this machine's.
func (e *examination) clock(ctx context.Context) {
	off, within := time.Duration(0), answerTimeout
	for range clockTries {
		sent := time.Now()
		ask, cancel := context.WithTimeout(ctx, answerTimeout)
		theirs, err := e.n.client.Time(ask).Result()
		cancel()
		if err != nil {
			e.say(LevelWrong, "clock", e.n.explain(err).Error())
			return
		}
		if took := time.Since(sent); took/2 < within {
			off, within = theirs.Sub(sent.Add(took/2)), took/2
		}
	}
	e.judgeClock(off, within)
}

// judgeClock says what a clock is worth that is off by so much, as far as it could be measured.
func (e *examination) judgeClock(off, within time.Duration) {
	text := fmt.Sprintf("%v from this machine's, to within %v", off.Round(10*time.Microsecond), within.Round(10*time.Microsecond))
	if off.Abs() > clockOffMax+within {
		e.say(LevelWrong, "clock", text+": calendar windows begin at the wrong time, clients are told a wrong X-RateLimit-Reset, and a "+
			"failover to a server with another clock moves counters; on the machine that is wrong", "timedatectl set-ntp true", "chronyc makestep")
		return
	}
	e.say(LevelOK, "clock", text)
}

// script measures the script of the store on a counter of its own.
func (e *examination) script(ctx context.Context) {
	key := e.n.ownKey()
	limit, err := core.ParseLimit("1000000/60s sliding_window")
	if err == nil {
		err = redisstore.ToolLoad(ctx, e.n.client)
	}
	var calls, pings []time.Duration
	for range trialCalls {
		if err != nil {
			break
		}
		ask, cancel := context.WithTimeout(ctx, answerTimeout)
		sent := time.Now()
		err = e.n.client.Ping(ask).Err()
		pings = append(pings, time.Since(sent))
		if err == nil {
			checks, results := []core.Check{{Key: []byte(key), Limit: &limit, Cost: 1}}, make([]core.Result, 1)
			sent = time.Now()
			err = redisstore.ToolAsk(ask, e.n.client, checks, results)
			calls = append(calls, time.Since(sent))
		}
		cancel()
	}
	_ = e.n.said(ctx, "del", key).Err()
	if err != nil {
		e.say(LevelWrong, "script", fmt.Sprintf("it fails, and every check would: %v", e.n.explain(err)), e.n.cli("INFO", "errorstats"))
		return
	}
	slices.Sort(calls)
	slices.Sort(pings)
	median, worst := calls[trialCalls/2], calls[trialCalls-1]
	text := fmt.Sprintf("%v in the median of %d calls, %v at worst; a PING takes %v", median.Round(time.Microsecond), trialCalls,
		worst.Round(time.Microsecond), pings[trialCalls/2].Round(time.Microsecond))
	// Under load it takes longer than for a lone caller: a quarter of the time that there is, is little room for that.
	if timeout := e.d.options.Timeout; median > timeout/4 {
		e.say(LevelWrong, "script", fmt.Sprintf("%s: a check has %v (timeout), so under load many run into it. Bring the server nearer, "+
			"see what keeps it busy, or raise timeout to %v", text, timeout, (10*median).Round(time.Millisecond)), e.n.cli("SLOWLOG", "GET", "10"),
			e.n.cli("--latency-history"))
		return
	}
	e.say(LevelOK, "script", text)
}
