// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2"
)

// laterStores are store types that a later version will support.
var laterStores = map[string]bool{"postgres": true}

// redisModes are modes of the redis store that users may mistake for store types.
var redisModes = map[string]bool{"sentinel": true, "cluster": true, "ring": true}

// replicaWords are the settings by which other Redis clients enable reads from replicas.
var replicaWords = map[string]bool{"replicas": true, "replica_reads": true, "read_only": true, "readonly": true, "read_from": true,
	"read_from_replicas": true, "route_by_latency": true, "route_randomly": true}

// readStore reads "store memory|redis [URL]" with an optional block. Messages do not repeat text
// that could be a URL with a password.
func (b *block) readStore() {
	d := b.d
	if b.store != nil {
		b.problem("store", "is listed twice", "keep one")
		b.skip()
		return
	}
	at, args := place(d), d.RemainingArgs()
	if len(args) == 0 {
		b.problem("store", "has no type", "write store memory, or store redis redis://localhost:6379")
		b.skip()
		return
	}
	b.store = &Store{Type: args[0]}
	switch {
	case laterStores[args[0]]:
		b.problem("store", fmt.Sprintf("%q is not yet in this version", args[0]), "write store memory, or store redis with one server")
		b.skip()
		return
	case redisModes[args[0]]:
		b.problem("store", fmt.Sprintf("%q is a mode of Redis", args[0]), "write store redis { mode cluster; addrs host:6379 … }, a line "+
			"each")
		b.skip()
		return
	case args[0] == storeRedis && len(args) == 2:
		b.store.URL = args[1]
	case len(args) > 1:
		b.problem("store", "has too many arguments", "write store memory, or store redis redis://localhost:6379")
		b.skip()
		return
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.storeWord()
	}
	for _, problem := range b.store.misplacedSettings() {
		b.problemAt(at, "store", problem.Error(), "")
	}
}

func (b *block) storeWord() {
	d, s := b.d, b.store
	texts := s.texts()
	lists := map[string]*[]string{"addrs": &s.Addrs, "addrs_before": &s.AddrsBefore}
	numbers := map[string]*int{"counters_max": &s.CountersMax, "bytes_max": &s.BytesMax, "queue_max": &s.QueueMax}
	word := d.Val()
	text, isText := texts[word]
	number, isNumber := numbers[word]
	args := d.RemainingArgs()
	defer b.noBlock(word)
	switch {
	case replicaWords[word]:
		b.problem("store."+word, "would read from replicas", "leave it out: a check reads and charges its counters in one step, on the "+
			"master only; a replica lags behind, so limits would not hold")
	case !isText && !isNumber && word != "timeout" && word != "remember_denials" && lists[word] == nil:
		b.problem("store."+word, "is an unknown field", "the fields are url, mode, addrs, addrs_before, master, username, password, "+
			"password_file, sentinel_username, sentinel_password, sentinel_password_file, ca, cert, key, server_name, timeout, queue_max "+
			"and remember_denials for redis, counters_max and bytes_max for memory")
	case lists[word] != nil && len(args) == 0:
		b.problem("store."+word, "is empty", "write "+word+" host:6379 host:6379")
	case lists[word] != nil:
		*lists[word] = append(*lists[word], args...)
	case len(args) != 1:
		b.problem("store."+word, "takes one value", "")
	case isText && *text != "", isNumber && *number != 0, word == "timeout" && s.Timeout != 0,
		word == "remember_denials" && s.RememberDenials != nil:
		b.problem("store."+word, "is listed twice", "keep one")
	case isText:
		*text = args[0]
	case isNumber:
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			b.problem("store."+word, fmt.Sprintf("%q is not a number above 0", args[0]), "")
		}
		*number = n
	case word == "remember_denials":
		on := args[0] == "on"
		if !on && args[0] != "off" {
			b.problem("store.remember_denials", fmt.Sprintf("%q is neither on nor off", args[0]), "write off, or leave it out")
		}
		s.RememberDenials = &on
	default:
		timeout, err := caddy.ParseDuration(args[0])
		if err != nil || timeout <= 0 {
			b.problem("store.timeout", fmt.Sprintf("%q is not a duration", args[0]), "write 50ms")
		}
		s.Timeout = caddy.Duration(timeout)
	}
}
