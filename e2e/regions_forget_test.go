// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestForgetARegion tests the loss of a region with its Redis and its agent. After "penstock
// regions forget", the two other regions together admit exactly the whole limit. If the Redis of
// one of them is emptied, the agent of that region stores again that the lost region is forgotten.
// When the lost region comes back without its data, it learns that it was forgotten. It then admits
// nothing until the next window, even after "penstock regions restore".
func TestForgetARegion(t *testing.T) {
	t.Parallel()
	l := startLending(t, lendingPolicy)
	l.redis["us"].Kill()
	l.agents["us"].kill()
	l.names = []string{"eu", "ap"}
	at := map[string]string{}
	for name, redis := range l.redis {
		at[name] = name + "=" + redis.URL()
	}
	since := time.Now().Add(-32 * 24 * time.Hour).UTC().Format(time.RFC3339) // longer ago than the window
	forget := []string{"regions", "forget", "us", "--region", at["eu"], "--since", since}
	penstock(t, forget...).mustFail(t, "--it-is-down")
	forget = append(forget, "--it-is-down")
	penstock(t, forget...).mustFail(t, "--region ap=")
	forget = append(forget, "--region", at["ap"])
	for _, line := range []string{"ap now knows: us is written off, ap lends", "ap knew already: us is written off, ap lends"} {
		out := penstock(t, forget...).mustSucceed(t)
		if !strings.Contains(out, line) || !strings.Contains(out, "at most its own part in addition") || strings.Count(out, "\n") != 3 {
			t.Errorf("penstock regions forget prints\n%s", out)
		}
	}
	for _, region := range l.names {
		eventually.Until(t, patience, "the agent of "+region+" knows", func() bool {
			return strings.Contains(penstock(t, "regions", "--agent", "unix:"+l.admin[region]).out, "us is written off")
		})
	}
	if err := l.redis["eu"].Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the Redis of eu knows again", func() bool {
		return l.redis["eu"].Client().Exists(t.Context(), writeoff.Key).Val() == 1
	})
	admitted := 0
	eventually.Until(t, patience, "ann gets 20 units in eu", func() bool {
		if l.take("eu", "ann") {
			admitted++
		}
		return admitted == 20
	})
	l.admitAll("ap", "ann", 10)
	l.checkNothingLeft("ann")

	l.redis["us"].Restart()
	l.startAgent("us")
	site, clients := l.sites["us"], 0
	eventually.Until(t, patience, "us denies new clients", func() bool {
		clients++
		a, err := ask(http.DefaultClient, "http://"+site.address+"/", "X-User", fmt.Sprintf("bob-%d", clients))
		return err == nil && a.status == http.StatusTooManyRequests
	})
	if l.take("us", "carol") {
		t.Error("a region that was written off admits a request")
	}
	restore := []string{"regions", "restore", "us", "--region", at["us"]}
	penstock(t, restore...).mustFail(t, "--region ap=")
	restore = append(restore, "--region", at["ap"])
	for _, word := range []string{"us now knows: us uses its part", "us knew already: us uses its part"} {
		if out := penstock(t, restore...).mustSucceed(t); !strings.Contains(out, word) {
			t.Errorf("penstock regions restore prints\n%s", out)
		}
	}
	eventually.Until(t, patience, "eu hears of it", func() bool {
		return !strings.Contains(penstock(t, "regions", "--agent", "unix:"+l.admin["eu"]).out, "written off")
	})
	l.names = slices.Insert(l.names, 0, "us")
	if l.take("us", "dave") {
		t.Error("a region that was taken back uses its part in a window in which another has lent it")
	}
}
