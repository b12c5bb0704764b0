// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// keyPrefix begins every key of a counter.
const keyPrefix = "rl1:"

// penaltyRule takes the place of the rule in the key of a client's penalty.
const penaltyRule = "~penalty"

// parsedKey is a parsed key.
type parsedKey struct {
	key       string // the key without the suffix of a second key
	namespace string
	rule      string // the rule; penaltyRule for a penalty
	whose     string // the client, in words
	limit     counter.Limit
	shard     int // shard of the rule's counter, from 0; -1 if the rule is not sharded
}

// example is an example of a key.
const example = "rl1:shop:api:{user:u_42}:60s:sw"

// parseKey parses the key of a counter or a penalty. parseKey also accepts the second key of
// either: the sum of a sliding log, or the end of a penalty.
func parseKey(key string) (*parsedKey, error) {
	wrong := func(why string) error {
		return fmt.Errorf("%q is not a key of a counter: %s; write the whole key in quotes, such as '%s'", key, why, example)
	}
	n := &parsedKey{key: key, shard: -1}
	if beside, ok := strings.CutSuffix(key, ":n"); ok {
		n.key = beside
	} else if beside, ok := strings.CutSuffix(key, ":until"); ok {
		n.key = beside
	}
	before, rest, ok := strings.Cut(n.key, "{")
	tag, after, closed := strings.Cut(rest, "}")
	scope := strings.Split(before, ":")
	switch {
	case !strings.HasPrefix(key, keyPrefix):
		return nil, wrong("it does not begin with " + keyPrefix)
	case !ok || !closed || len(scope) != 4 || scope[3] != "":
		return nil, wrong("the braces are not where they belong")
	}
	n.namespace, n.rule = unescapePart(scope[1]), unescapePart(scope[2])
	if shard, ok := counter.ShardOf([]byte(n.key)); ok {
		n.shard = shard
		_, tag, _ = strings.Cut(tag, ":")
	} else if strings.HasPrefix(tag, "~") {
		return nil, wrong(fmt.Sprintf("the shard is none from ~0 to ~%d", counter.ShardsMax-1))
	}
	words := strings.Split(strings.TrimPrefix(after, ":"), ":")
	if scope[2] == penaltyRule && after == "" {
		n.whose, ok = dimensions(strings.Split(tag, ":"))
		if !ok {
			return nil, wrong("the penalty has no client")
		}
		return n, nil
	}
	if after == "" || len(words) < 2 {
		return nil, wrong("it does not end in a window and an algorithm")
	}
	label, algorithm := words[len(words)-2], words[len(words)-1]
	for a := counter.FixedWindow; a <= counter.TokenBucket; a++ {
		if a.Label() == algorithm {
			limit, err := counter.ParseLimit("1/" + label + " " + a.String())
			if err != nil {
				return nil, wrong(fmt.Sprintf("the window is %q", label))
			}
			n.limit = limit
		}
	}
	if n.limit.Algorithm() == 0 {
		return nil, wrong(fmt.Sprintf("the algorithm is %q, and there are fw, sw, sl and tb", algorithm))
	}
	if n.whose, ok = describeClient(tag, scope[2], words[:len(words)-2]); !ok {
		return nil, wrong("its client has no kind and value")
	}
	return n, nil
}

// parsedKey.keys returns all keys of the counter.
func (n *parsedKey) keys() []string {
	switch {
	case n.rule == penaltyRule:
		return []string{n.key, n.key + ":until"}
	case n.limit.Algorithm() == counter.SlidingLog:
		return []string{n.key, n.key + ":n"}
	default:
		return []string{n.key}
	}
}

// describeClient describes the client of the counter in words; the result named ok is false if the
// key does not contain the client.
func describeClient(tag, rule string, more []string) (whose string, ok bool) {
	if tag == rule && len(more) == 0 {
		return "everybody", true
	}
	return dimensions(append(strings.Split(tag, ":"), more...))
}

// dimensions describes pairs of kind and value in words.
func dimensions(words []string) (text string, ok bool) {
	if len(words)%2 != 0 {
		return "", false
	}
	var parts []string
	for i := 0; i < len(words); i += 2 {
		kind, value := unescapePart(words[i]), unescapePart(words[i+1])
		switch {
		case kind == "":
			return "", false
		case value == "":
			parts = append(parts, "no "+kind)
		default:
			parts = append(parts, kind+" "+value)
		}
	}
	return strings.Join(parts, ", "), true
}

// unescapePart decodes a part of a key. unescapePart quotes a part with unprintable characters,
// which must not be sent to a terminal.
func unescapePart(part string) string {
	text, err := url.PathUnescape(part)
	if err != nil {
		text = part
	}
	for _, c := range text {
		if !strconv.IsPrint(c) {
			return strconv.Quote(text)
		}
	}
	return text
}
