// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// This file runs tests on a server: the rights of the user, the clock, and the speed of the script.

// tempKeyTTL is how long a temporary key of the doctor exists if it cannot be deleted.
const tempKeyTTL = 10 * time.Second

// unusedKey returns an unused key in a slot that the server has.
func (n *Node) unusedKey() string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s~doctor:~doctor:{%d}:60s:sw", keyPrefix, i)
		slot := redisstore.Slot(key)
		if len(n.Slots) == 0 || slices.ContainsFunc(n.Slots, func(s Slots) bool { return s.First <= slot && slot <= s.Last }) {
			return key
		}
	}
}

// tries maps a command's name in [redisstore.LeastPrivilege] to a call that shows whether the user
// may run it. KEY and SET stand for temporary keys. Only a permission error in the reply matters.
var tries = map[string][]any{
	"ping": {"ping"}, "info": {"info", "server"}, "select": {"select", "DATABASE"}, "time": {"time"},
	"script|load": {"script", "load", "return 1"}, "evalsha": {"evalsha", strings.Repeat("0", 40), 0},
	"get": {"get", "KEY"}, "set": {"set", "KEY", "1", "px", tempKeyTTL.Milliseconds()}, "pexpire": {"pexpire", "KEY", tempKeyTTL.Milliseconds()},
	"del": {"del", "KEY"}, "zadd": {"zadd", "SET", 1, "m"}, "zcount": {"zcount", "SET", 0, 1}, "zrange": {"zrange", "SET", 0, 0},
	"zrangebyscore": {"zrangebyscore", "SET", 0, 1}, "zremrangebyrank": {"zremrangebyrank", "SET", 0, 0},
	"zremrangebyscore": {"zremrangebyscore", "SET", 0, 1},
	"cluster|slots":    {"cluster", "slots"}, "cluster|info": {"cluster", "info"}, "asking": {"asking"}, "client|setname": {"client", "setname", "penstock"}, "role": {"role"},
}

// leastRights returns the rights that the store needs.
func (d *Deployment) leastRights() string {
	switch d.Mode {
	case ModeCluster:
		return redisstore.LeastPrivilege + " " + redisstore.ClusterPrivilege
	case ModeSentinel:
		return redisstore.LeastPrivilege + " " + redisstore.SentinelPrivilege
	}
	return redisstore.LeastPrivilege
}

// examination.rights tests whether the user has the rights that the store needs, and returns the
// result.
func (e *examination) rights(ctx context.Context) bool {
	key, missing, keys := e.n.unusedKey(), []string{}, false
	for word := range strings.FieldsSeq(e.d.leastRights()) {
		name, wanted := strings.CutPrefix(word, "+")
		words, known := tries[name]
		if !wanted || !known || name == "select" && e.n.server.DB == 0 {
			continue
		}
		err := e.n.send(ctx, e.filledIn(words, key)...).Err()
		switch text := fmt.Sprint(err); {
		case !redis.IsPermissionError(err):
		case strings.Contains(text, "key"):
			keys = true
		default:
			missing = append(missing, word)
		}
	}
	_ = e.n.send(ctx, "del", key, key+":z").Err()
	if keys {
		missing = append(missing, "~"+keyPrefix+"*")
	}
	if len(missing) > 0 {
		text := fmt.Sprintf("the user %q may not do all that the store does", e.n.user())
		commands := []string{e.n.cli(append([]string{"ACL", "SETUSER", e.n.user()}, missing...)...)}
		keep, unknown := e.keepUsers(ctx)
		if unknown != "" {
			text += "; " + unknown
		}
		e.say(LevelWrong, "rights", text, append(commands, keep...)...)
		return false
	}
	e.say(LevelOK, "rights", fmt.Sprintf("the user %q may do all that the store does", e.n.user()))
	return true
}

// keepUsers returns the command that makes a change of users survive a restart. If it is unknown
// whether the server has an ACL file, the result named unknown says which command to use in which
// case.
func (e *examination) keepUsers(ctx context.Context) (commands []string, unknown string) {
	file, unknown := e.config(ctx, "aclfile")
	switch {
	case unknown != "":
		return nil, unknown + ". To keep the change after a restart, run ACL SAVE if the server has an aclfile, " +
			"CONFIG REWRITE otherwise"
	case file != "":
		return []string{e.n.cli("ACL", "SAVE")}, ""
	case e.n.info["config_file"] != "":
		return []string{e.n.cli("CONFIG", "REWRITE")}, ""
	}
	return nil, ""
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
			filled[i] = e.n.server.DB
		}
	}
	return filled
}

const (
	// trialCalls is the number of calls to measure: enough for a median, and too few to disturb the
	// server.
	trialCalls = 21
	// clockTries is the number of times that the clock is read; the fastest reply is the most
	// accurate.
	clockTries = 5
	// clockOffMax is the greatest acceptable difference between the clocks, because
	// X-RateLimit-Reset has a resolution of seconds.
	clockOffMax = time.Second
)

// examination.clock compares the server's clock with this machine's.
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
	e.reportClock(off, within)
}

// reportClock reports a clock that is off by the given amount, measured to within the given
// accuracy.
func (e *examination) reportClock(off, within time.Duration) {
	text := fmt.Sprintf("%v from this machine's, to within %v", off.Round(10*time.Microsecond), within.Round(10*time.Microsecond))
	if off.Abs() > clockOffMax+within {
		e.say(LevelWrong, "clock", text+": calendar windows begin at the wrong time, clients are told a wrong X-RateLimit-Reset, and a "+
			"failover to a server with another clock moves counters; on the machine that is wrong", "timedatectl set-ntp true", "chronyc makestep")
		return
	}
	e.say(LevelOK, "clock", text)
}

// examination.script measures the store's script on a temporary counter.
func (e *examination) script(ctx context.Context) {
	key := e.n.unusedKey()
	limit, err := counter.ParseLimit("1000000/60s sliding_window")
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
			checks, results := []counter.Check{{Key: []byte(key), Limit: &limit, Cost: 1}}, make([]counter.Result, 1)
			sent = time.Now()
			err = redisstore.ToolAsk(ask, e.n.client, checks, results)
			calls = append(calls, time.Since(sent))
		}
		cancel()
	}
	_ = e.n.send(ctx, "del", key).Err()
	if err != nil {
		e.say(LevelWrong, "script", fmt.Sprintf("it fails, and every check would: %v", e.n.explain(err)), e.n.cli("INFO", "errorstats"))
		return
	}
	slices.Sort(calls)
	slices.Sort(pings)
	median, worst := calls[trialCalls/2], calls[trialCalls-1]
	text := fmt.Sprintf("%v in the median of %d calls, %v at worst; a PING takes %v", median.Round(time.Microsecond), trialCalls,
		worst.Round(time.Microsecond), pings[trialCalls/2].Round(time.Microsecond))
	// Under load the script takes longer than for a single caller, so a single call that takes more
	// than a quarter of the timeout leaves too little room.
	if timeout := e.d.options.Timeout; median > timeout/4 {
		e.say(LevelWrong, "script", fmt.Sprintf("%s: a check has %v (timeout), so under load many run into it. Bring the server nearer, "+
			"see what keeps it busy, or raise timeout to %v", text, timeout, (10*median).Round(time.Millisecond)), e.n.cli("SLOWLOG", "GET", "10"),
			e.n.cli("--latency-history"))
		return
	}
	e.say(LevelOK, "script", text)
}
