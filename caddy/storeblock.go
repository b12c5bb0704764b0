// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2"
)

// laterStores are types of stores that a later version will have.
var laterStores = map[string]bool{"sentinel": true, "cluster": true, "ring": true, "postgres": true}

// readStore reads "store memory|redis [URL]" with an optional block. No message repeats what was written where a URL with
// a password may stand.
func (b *block) readStore() {
	d := b.d
	if b.store != nil {
		b.problem("store", "stands here twice", "keep one")
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
	case args[0] == storeRedis && len(args) == 2:
		b.store.URL = args[1]
	case len(args) > 1:
		b.problem("store", "has more words on its line than it takes", "write store memory, or store redis redis://localhost:6379")
		b.skip()
		return
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		b.storeWord()
	}
	for _, problem := range b.store.misplaced() {
		b.problemAt(at, "store", problem.Error(), "")
	}
}

func (b *block) storeWord() {
	d, s := b.d, b.store
	texts := map[string]*string{"url": &s.URL, "username": &s.Username, "password": &s.Password,
		"password_file": &s.PasswordFile, "ca": &s.CA, "cert": &s.Cert, "key": &s.Key, "server_name": &s.ServerName}
	numbers := map[string]*int{"counters_max": &s.CountersMax, "queue_max": &s.QueueMax}
	word := d.Val()
	text, isText := texts[word]
	number, isNumber := numbers[word]
	args := d.RemainingArgs()
	defer b.noBlock(word)
	switch {
	case !isText && !isNumber && word != "timeout" && word != "remember_denials":
		b.problem("store."+word, "is not a word that can stand here", "the words are url, username, password, password_file, ca, "+
			"cert, key, server_name, timeout, queue_max and remember_denials for redis, counters_max for memory")
	case len(args) != 1:
		b.problem("store."+word, "takes one value", "")
	case isText && *text != "", isNumber && *number != 0, word == "timeout" && s.Timeout != 0,
		word == "remember_denials" && s.RememberDenials != nil:
		b.problem("store."+word, "stands here twice", "keep one")
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
