// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

func (b *block) readStore() error {
	d := b.d
	if b.store != nil {
		return d.Errf("store stands here twice; keep one")
	}
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Errf("store takes memory, or redis and a URL; write store redis redis://localhost:6379")
	}
	b.store = &Store{Type: args[0]}
	switch {
	case args[0] == storeRedis && len(args) == 2:
		b.store.URL = args[1]
	case args[0] == storeRedis && len(args) == 1:
		// the URL may stand in the block
	case args[0] != storeMemory && args[0] != storeRedis:
		return d.Errf("store %q is unknown; write memory or redis", args[0])
	case len(args) > 1:
		return d.Errf("store %s cannot take %q", args[0], strings.Join(args[1:], " "))
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.storeWord(); err != nil {
			return err
		}
	}
	if problems := b.store.misplaced(); len(problems) > 0 {
		return d.WrapErr(problems[0])
	}
	return nil
}

func (b *block) storeWord() error {
	d, s := b.d, b.store
	texts := map[string]*string{"url": &s.URL, "username": &s.Username, "password": &s.Password,
		"password_file": &s.PasswordFile, "ca": &s.CA, "cert": &s.Cert, "key": &s.Key, "server_name": &s.ServerName}
	numbers := map[string]*int{"counters_max": &s.CountersMax, "queue_max": &s.QueueMax}
	word := d.Val()
	var value string
	if !d.Args(&value) || d.NextArg() {
		return d.Errf("%s takes one value", word)
	}
	if text, ok := texts[word]; ok {
		*text = value
		return nil
	}
	if number, ok := numbers[word]; ok {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return d.Errf("%s: %q is not a number above 0", word, value)
		}
		*number = n
		return nil
	}
	if word != "timeout" {
		return d.Errf("%q is not a word of a store; the words are url, username, password, password_file, ca, cert, key, "+
			"server_name, timeout and queue_max for redis, counters_max for memory", word)
	}
	timeout, err := caddy.ParseDuration(value)
	if err != nil || timeout <= 0 {
		return d.Errf("timeout: %q is not a duration; write 50ms", value)
	}
	s.Timeout = caddy.Duration(timeout)
	return nil
}
