// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// startForgetfulCaddy starts a Caddy that does not remember denials. Otherwise the Caddy would
// still deny for a second after Redis has failed.
func startForgetfulCaddy(t *testing.T, redis *redistest.Server) *process {
	return startCaddy(t, `{
	admin ADMIN
	penstock {
		name shop
		store redis {env.PENSTOCK_REDIS} {
			remember_denials off
		}
		on_error allow
	}
}
:SITE {
	penstock 100/31d
	respond "{http.penstock.decision}"
}
`, "PENSTOCK_REDIS="+redis.URL())
}

func TestRedisFailsUnderLoad(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *redistest.Server, wait func()){
		"killed": func(r *redistest.Server, wait func()) { r.Kill(); wait(); r.Restart() },
		"frozen": func(r *redistest.Server, wait func()) { r.Pause(); wait(); r.Resume() },
		"paused": func(r *redistest.Server, wait func()) {
			r.Client().Do(context.Background(), "CLIENT", "PAUSE", "700", "ALL")
			wait()
		},
		"slow": func(r *redistest.Server, wait func()) {
			for range 4 {
				r.Client().Do(context.Background(), "DEBUG", "SLEEP", "0.2")
			}
			wait()
		},
		"flushed": func(r *redistest.Server, wait func()) {
			r.Client().FlushAll(context.Background())
			wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--enable-debug-command", "yes")
			p := startForgetfulCaddy(t, redis)
			var got tally
			done := make(chan struct{})
			group := startLoad(p, 16, &got, atLeastUntil(done, 400))
			eventually.Until(t, patience, "the limit is reached", func() bool { return got.refused.Load() > 100 })
			fail(redis, func() {
				<-time.After(700 * time.Millisecond)
				got.eachIsAnswered(t)
			})
			close(done)
			group.Wait()
			if got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
				t.Errorf("%d answers of 5xx and %d broken under on_error allow: %s", got.serverErrors.Load(), got.broken.Load(), got.summarizeOthers())
			}
			if slowest := time.Duration(got.slowest.Load()); slowest > answerWithin {
				t.Errorf("an answer took %v", slowest)
			}
			// If Redis is slow, there is no outage: its late answers still decide the requests.
			outage := name != "flushed" && name != "slow"
			if outage {
				p.showsDegradation(t)
			}
			p.awaitLimit(t)
			if admitted := got.admitted.Load(); name == "slow" && admitted > 100 {
				t.Errorf("%d requests were admitted by a limit of 100", admitted)
			}
			if outage {
				eventually.Until(t, patience, "the log tells the end of the outage", func() bool {
					p.get("/") // an outage ends with the first answer
					return strings.Contains(p.log.String(), "the store answers again")
				})
			}
			t.Logf("%d admitted, %d refused, slowest %v", got.admitted.Load(), got.refused.Load(), time.Duration(got.slowest.Load()))
		})
	}
}

// showsDegradation checks that an outage appears in the metrics, and in at least one but not many
// lines of the log.
func (p *process) showsDegradation(t *testing.T) {
	t.Helper()
	metrics := p.scrape()
	for _, want := range []string{"penstock_store_errors_total{kind=", "penstock_breaker_state"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	const linesMax = 20
	if lines := strings.Count(p.log.String(), "on_error decides"); lines < 1 || lines > linesMax {
		t.Errorf("%d log lines about the outage, want 1 to %d", lines, linesMax)
	}
}

// awaitLimit waits until requests are counted again, and sends requests until the limit denies one.
func (p *process) awaitLimit(t *testing.T) {
	t.Helper()
	eventually.Until(t, patience, "requests are counted again", func() bool { return p.get("/").body != "degraded_allowed" })
	admitted := 0
	eventually.Until(t, patience, "the limit holds again", func() bool {
		a := p.get("/")
		if a.body == "allowed" {
			admitted++
		}
		return a.status == http.StatusTooManyRequests
	})
	if admitted > 100 {
		t.Errorf("%d requests were admitted by a limit of 100", admitted)
	}
}
