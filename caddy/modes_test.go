// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// twoLimits is a site with a limit for each client and a limit for all clients. A cluster keeps
// them in different slots.
const twoLimits = `
:PORT {
	penstock {
		rule each 9/30d fixed_window
		rule everybody 3/30d fixed_window {
			per []
		}
	}
	respond "ok"
}`

// TestCluster: a client is not charged when the limit of all clients denies the request, although
// another server holds that limit.
func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t)
	s := start(t, `{
	penstock {
		name shop
		store redis {
			mode cluster
			addrs `+strings.Join(c.Addrs()[:2], " ")+`
			timeout 10s
			remember_denials off
		}
	}
}`+twoLimits)
	equal(t, "statuses", s.statuses(5, "/"), "200 200 200 429 429")
	keys := []string{"rl1:shop:each:{ip:127.0.0.1}:2592000s:fw", "rl1:shop:everybody:{everybody}:2592000s:fw"}
	if c.Slot(keys[0]) == c.Slot(keys[1]) {
		t.Fatal("the keys have one slot")
	}
	for _, key := range keys {
		counter, err := c.Client().Get(context.Background(), key).Result()
		if err != nil || len(strings.Fields(counter)) < 2 || strings.Fields(counter)[1] != "3" {
			t.Errorf("%s is %q, want 3 used (%v)", key, counter, err)
		}
	}
}

// TestRing is TestCluster with independent servers: a client is not charged when the limit of all
// clients denies the request.
func TestRing(t *testing.T) {
	servers := []*redistest.Server{redistest.StartTCP(t), redistest.StartTCP(t), redistest.StartTCP(t)}
	s := start(t, `{
	penstock {
		name shop
		store redis {
			mode ring
			addrs `+servers[0].Addr+` `+servers[1].Addr+` `+servers[2].Addr+`
			timeout 10s
			remember_denials off
		}
	}
}`+twoLimits)
	equal(t, "statuses", s.statuses(5, "/"), "200 200 200 429 429")
	for _, key := range []string{"rl1:shop:each:{ip:127.0.0.1}:2592000s:fw", "rl1:shop:everybody:{everybody}:2592000s:fw"} {
		var found []string
		for _, server := range servers {
			if counter, err := server.Client().Get(context.Background(), key).Result(); err == nil {
				found = append(found, strings.Fields(counter)[1])
			}
		}
		if len(found) != 1 || found[0] != "3" {
			t.Errorf("%s has used %q in the servers, want 3 in one", key, found)
		}
	}
}

// TestSentinels: the replica continues where the master stopped.
func TestSentinels(t *testing.T) {
	w := redistest.StartSentinel(t)
	s := start(t, `{
	penstock {
		name shop
		store redis {
			mode sentinel
			addrs `+strings.Join(w.Addrs(), " ")+`
			master `+w.Name+`
			timeout 10s
			remember_denials off
		}
	}
}`+twoLimits)
	equal(t, "before", s.statuses(2, "/"), "200 200")
	w.Failover()
	equal(t, "after", s.statuses(3, "/"), "200 429 429")
}
