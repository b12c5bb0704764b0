// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
)

// fault is a row of docs/faults.md.
type fault struct {
	name  string
	redis []string // more options of redis-server
	// begin does it and end takes it back; for what takes no time end is nil.
	begin, end func(f *nodeGroup)
	// harmless says that every request is decided all the same.
	harmless bool
	// forgets says that Redis loses its counters: up to the limit is let through once more. That is the one way past a limit.
	forgets bool
	// always says that make test tries it, and not only make faults.
	always bool
}

// eachLine does something to the lines of all nodes.
func eachLine(do func(l *line)) func(f *nodeGroup) {
	return func(f *nodeGroup) {
		for _, l := range f.lines {
			do(l)
		}
	}
}

// redisSays sends Redis a command.
func redisSays(words string) func(f *nodeGroup) {
	return func(f *nodeGroup) {
		f.t.Helper()
		var args []any
		for _, word := range strings.Fields(words) {
			args = append(args, strings.Trim(word, `"`))
		}
		if err := f.redis.Client().Do(context.Background(), args...).Err(); err != nil {
			f.t.Fatalf("%s: %v", words, err)
		}
	}
}

func heal(f *nodeGroup) { eachLine((*line).heal)(f) }

var faults = []fault{
	{name: "Redis killed, and back empty", always: true, forgets: true,
		begin: func(f *nodeGroup) { f.redis.Kill() }, end: func(f *nodeGroup) { f.redis.Restart() }},
	{name: "Redis stopped (hangs)", always: true,
		begin: func(f *nodeGroup) { f.redis.Pause() }, end: func(f *nodeGroup) { f.redis.Resume() }},
	{name: "Redis slow: 20 ms more each way", harmless: true,
		begin: eachLine(func(l *line) { l.suffer("latency", map[string]int{"latency": 10}) }), end: heal},
	{name: "Redis slower than the deadline: 200 ms",
		begin: eachLine(func(l *line) { l.suffer("latency", map[string]int{"latency": 100}) }), end: heal},
	{name: "network narrow: 2 KB/s",
		begin: eachLine(func(l *line) { l.suffer("bandwidth", map[string]int{"rate": 2}) }), end: heal},
	{name: "Redis flushed", always: true, forgets: true, harmless: true, begin: redisSays("FLUSHALL")},
	{name: "scripts flushed", harmless: true, begin: redisSays("SCRIPT FLUSH")},
	{name: "Redis out of memory",
		begin: redisSays("CONFIG SET maxmemory 1"), end: redisSays("CONFIG SET maxmemory 0")},
	{name: "Redis a read-only replica, then promoted",
		begin: redisSays("REPLICAOF 127.0.0.1 1"), end: redisSays("REPLICAOF NO ONE")},
	{name: "connections reset, again and again",
		begin: eachLine(func(l *line) { l.suffer("reset_peer", map[string]int{"timeout": 20}) }), end: heal},
	{name: "network cut",
		begin: eachLine((*line).cut), end: eachLine((*line).mend)},
	{name: "one node cut off from Redis",
		begin: func(f *nodeGroup) { f.lines[0].cut() }, end: func(f *nodeGroup) { f.lines[0].mend() }},
	{name: "password changed",
		begin: func(f *nodeGroup) {
			redisSays("CONFIG SET requirepass other")(f)
			redisSays("CLIENT KILL TYPE normal SKIPME yes")(f)
		},
		end: redisSays(`CONFIG SET requirepass ""`)},
	{name: "Redis' clock an hour ahead, and back", harmless: true,
		begin: eachLine(func(l *line) { l.suffer("clock", map[string]int{"ahead_seconds": 3600}) }), end: heal},
	{name: "Redis' clock an hour behind, and back", harmless: true,
		begin: eachLine(func(l *line) { l.suffer("clock", map[string]int{"ahead_seconds": -3600}) }), end: heal},
	{name: "a node killed, and back", always: true, begin: func(f *nodeGroup) { f.crash(0) }},
	{name: "policy edited and taken back",
		begin:    func(f *nodeGroup) { f.edit("retry_after: 30s, ") },
		end:      func(f *nodeGroup) { f.edit("") },
		harmless: true},
}
