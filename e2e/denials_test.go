// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// rememberedMax is the longest time for which a denial is remembered, according to
// docs/guides/redis.md.
const rememberedMax = time.Second

const denialsCaddyfile = `{
	admin ADMIN
	penstock {
		name shop
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
			remember_denials REMEMBER
		}
		on_error deny
	}
}
:SITE {
	penstock LIMIT
	respond "ok"
}
`

// startDenials starts a Caddy with one limit. The argument named remember turns the memory of
// denials "on" or "off".
func startDenials(t *testing.T, redis *redistest.Server, limit, remember string) *process {
	text := strings.NewReplacer("LIMIT", limit, "REMEMBER", remember).Replace(denialsCaddyfile)
	return startCaddy(t, text, "PENSTOCK_REDIS="+redis.URL())
}

// TestAnAttackCostsRedisOneCallAWait tests how often Redis is called for a client that exceeds its
// limit tenfold, over several connections with one request at a time on each. If denials are
// remembered, there is about one call in the time for which a denial is remembered. Otherwise there
// is one call per request.
func TestAnAttackCostsRedisOneCallAWait(t *testing.T) {
	t.Parallel()
	const allowed, asked, connections = 500, 5_000, 4
	for _, remember := range []string{"on", "off"} {
		t.Run(remember, func(t *testing.T) {
			redis := redistest.Start(t)
			p := startDenials(t, redis, "500/31d", remember)
			before, start := redis.Calls("evalsha"), time.Now()
			var got tally
			startLoad(p, connections, &got, times(asked)).Wait()
			took, calls := time.Since(start), redis.Calls("evalsha")-before
			t.Logf("%d admitted, %d refused in %v: %d calls", got.admitted.Load(), got.refused.Load(), took, calls)
			if got.admitted.Load() != allowed || got.refused.Load() != asked-allowed {
				t.Errorf("%d admitted, %d refused, %d broken: want %d and %d", got.admitted.Load(), got.refused.Load(),
					got.broken.Load(), allowed, asked-allowed)
			}
			// Each time that a denial is forgotten, every connection may have a call in flight.
			most := allowed + connections*(int64(took/rememberedMax)+2)
			if remember == "on" && calls > most {
				t.Errorf("%d calls, want at most %d: one for each admitted request, and one a connection and wait", calls, most)
			}
			if remember == "off" && calls != asked {
				t.Errorf("%d calls without memory, want one a request: %d", calls, asked)
			}
			want := "penstock_remembered_refusals_total 0\n"
			if holds := strings.Contains(p.scrape(), want); holds != (remember == "off") {
				t.Errorf("the metrics say %q: %v", want, holds)
			}
		})
	}
}

// TestAResetTakesEffect tests that a reset takes effect at once in the Caddy that made it, and
// within a second in another Caddy. Commands that only look at a counter have no effect.
func TestAResetTakesEffect(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	one, two := startDenials(t, redis, "3/31d", "on"), startDenials(t, redis, "3/31d", "on")
	for range 20 {
		one.get("/")
		two.get("/")
	}
	if before := redis.Calls("evalsha"); one.get("/").status != 429 || two.get("/").status != 429 {
		t.Errorf("not refused after 40 requests; %d calls", before)
	}
	client := "127.0.0.1"
	if reported := one.operate(t, "client", client); len(reported.Counters) != 1 || reported.Counters[0].Remaining != 0 {
		t.Errorf("a look says %+v", reported)
	}
	if one.get("/").status != 429 {
		t.Error("a look lets the client through")
	}
	one.operate(t, "reset", client)
	start := time.Now()
	if got := one.get("/"); got.status != http.StatusOK {
		t.Errorf("after its own reset: %d", got.status)
	}
	eventually.Until(t, patience, "the other one feels the reset", func() bool { return two.get("/").status == http.StatusOK })
	t.Logf("the other one felt it %v after, of %v at most", time.Since(start), rememberedMax)
}

// process.operate runs an operators' command for the client with the given address.
func (p *process) operate(t *testing.T, command, address string) (reported clientReport) {
	t.Helper()
	penstock(t, command, "--json", "--admin", p.admin, "--client", "ip:"+address).read(t, &reported)
	return reported
}
