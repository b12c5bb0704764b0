// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const shardedSite = `:PORT {
	penstock {
		name shop
		rule api 8/30d fixed_window {
			shards 4
		}
		rule all 640/30d fixed_window 6400/31d fixed_window {
			per []
			expose
			shards 64
		}
	}
	penstock_status /quota
	respond "ok"
}`

// TestShardsAreSummedAndReset: clients see the sum of a limit's shards, operators see each shard,
// and a reset resets all of them.
func TestShardsAreSummedAndReset(t *testing.T) {
	s := start(t, shardedSite)
	left := func(want string) {
		t.Helper()
		if body := s.get("/quota").body; strings.Join(readRemaining(body), " ") != want {
			t.Errorf("%s, want %s", body, want)
		}
	}
	left("8 640 6400")
	for range 3 {
		s.get("/").wantField(t, "X-RateLimit-Limit", "8")
	}
	left("5 637 6397")
	status, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1&rule=api")
	counter := firstObject(t, answer, "counters")
	if n := len(answer["counters"].([]any)); status != 200 || n != 4 || counter["shard_of"] != "8/30d fixed_window" ||
		counter["limit"] != "2/30d fixed_window" || counter["key"] != "rl1:shop:api:{~0:ip:127.0.0.1}:2592000s:fw" {
		t.Errorf("%d of %d: %v", status, n, counter)
	}
	if status, answer := s.ask(http.MethodGet, "client?client=ip:127.0.0.1"); status != 200 || len(answer["counters"].([]any)) != 4+2*64 {
		t.Errorf("%d: %d counters", status, len(answer["counters"].([]any)))
	}
	if status, answer := s.ask(http.MethodPost, "reset?client=ip:127.0.0.1"); status != 200 || len(answer["counters"].([]any)) != 4 {
		t.Errorf("%d: %v", status, answer)
	}
	left("8 637 6397")
	admitted := strings.Count(s.statuses(40, "/"), "200")
	if admitted != 8 {
		t.Errorf("%d of 8 let through", admitted)
	}
	left("0 629 6389")
}

// readRemaining returns the remaining units in a status answer.
func readRemaining(body string) (left []string) {
	for _, part := range strings.Split(body, `"remaining":`)[1:] {
		var n int
		_, _ = fmt.Sscan(part[:strings.IndexByte(part, ',')], &n)
		left = append(left, fmt.Sprint(n))
	}
	return left
}
