// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestAFullRedisGivesNobodyMore: a client fills the memory of Redis with made-up names. A client
// whose counter exists gets exactly its limit from the two nodes together. A new client gets at
// most the limit from each node, and its units are charged as soon as Redis has memory again.
func TestAFullRedisGivesNobodyMore(t *testing.T) {
	const count = 5
	server := redistest.Start(t)
	var nodes []*store.Store
	for range 2 {
		nodes = append(nodes, open(t, store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax}}))
	}
	limit, err := counter.ParseLimit("5/30d fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	admits := func(node int, client string, onError counter.OnError) bool {
		t.Helper()
		check := counter.Check{Key: fmt.Appendf(nil, "rl1:full:r:{ip:%s}:2592000s:fw", client), Limit: &limit, Cost: 1, OnError: onError}
		var result [1]counter.Result
		if err := nodes[node].Requests.Take(t.Context(), []counter.Check{check}, result[:]); err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		return !result[0].Denied
	}
	full := func(bytes string) {
		t.Helper()
		if err := server.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, onError := range []counter.OnError{counter.OnErrorAllow, counter.OnErrorLocal} {
		name := fmt.Sprint("known", onError)
		total, fresh := 0, [2]int{}
		got := func(n *int, admitted bool) {
			if admitted {
				*n++
			}
		}
		got(&total, admits(0, name, onError))
		full("1")
		for i := range 300 {
			admits(i%2, fmt.Sprint("made-up-", onError, i), onError)
			got(&total, admits(i%2, name, onError))
			got(&fresh[i%2], admits(i%2, fmt.Sprint("new", onError), onError))
		}
		if total != count {
			t.Errorf("on_error %v: a client whose counter exists got %d of %d", onError, total, count)
		}
		if fresh[0] > count || fresh[1] > count || fresh[0]+fresh[1] == 0 {
			t.Errorf("on_error %v: a new client got %d from the nodes, at most %d each are allowed", onError, fresh, count)
		}
		full("0")
		for i := range 4 {
			if admits(i%2, name, onError) {
				t.Errorf("on_error %v: more than the limit after the memory is free", onError)
			}
		}
	}
	if breaker := nodes[0].Redis.Stats().Breaker; breaker != redisstore.BreakerClosed {
		t.Errorf("the breaker is %s", breaker)
	}
}

// TestAFullRedisCountsBesideNewNames: the memory of Redis is full, and the counter of a client
// exists. Each request of the client is also counted under a new made-up name. The client gets
// exactly its limit from the two nodes together, whatever on_error says about the made-up name.
// Denied requests charge nothing.
func TestAFullRedisCountsBesideNewNames(t *testing.T) {
	const count = 6
	server := redistest.Start(t)
	var nodes []*store.Store
	for range 2 {
		nodes = append(nodes, open(t, store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax}}))
	}
	full := func(bytes string) {
		if err := server.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"6/30d fixed_window", "6/30d sliding_window", "6/30d sliding_log", "6/30d token_bucket"} {
		limit, err := counter.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		check := func(name string, onError counter.OnError) counter.Check {
			return counter.Check{Key: []byte("rl1:full:r:{ip:" + name + text + "}:2592000s:x"), Limit: &limit, Cost: 1, OnError: onError,
				Refundable: true}
		}
		full("0")
		for _, onError := range []counter.OnError{counter.OnErrorAllow, counter.OnErrorLocal, counter.OnErrorDeny} {
			call := func(i int) counter.Call {
				checks := []counter.Check{check(fmt.Sprint("known", onError), onError), check(fmt.Sprint("new", onError, i), counter.OnErrorAllow+2*counter.OnError(i%2))}
				return counter.Call{Checks: checks, Results: make([]counter.Result, 2)}
			}
			full("0")
			first := call(0)
			first.Checks = first.Checks[:1]
			if err := nodes[0].Requests.Take(t.Context(), first.Checks, first.Results); err != nil {
				t.Fatal(err)
			}
			full("1")
			total := 1
			for i := range 40 {
				calls := []counter.Call{call(2 * i), call(2*i + 1)}
				takeEither(t, nodes[i%2], calls, i%4 < 2)
				for _, c := range calls {
					if c.Err != nil {
						t.Fatalf("%s: %v", text, c.Err)
					}
					if !c.Results[0].Denied && !c.Results[1].Denied {
						total++
					}
				}
			}
			if total != count {
				t.Errorf("%s, on_error %v: %d of %d were admitted", text, onError, total, count)
			}
		}
	}
}

// takeEither sends calls to a node, in one batch or one by one.
func takeEither(t *testing.T, node *store.Store, calls []counter.Call, batch bool) {
	t.Helper()
	if batch {
		node.Requests.(counter.Batcher).TakeAll(t.Context(), calls)
		return
	}
	for i := range calls {
		calls[i].Err = node.Requests.Take(t.Context(), calls[i].Checks, calls[i].Results)
	}
}
