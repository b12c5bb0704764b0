// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// hotPolicy is one limit for everybody, which nobody reaches alone.
const hotPolicy = "name: shop\non_error: deny\nlease: LEASE\nrules: [{name: all, per: [], limit: 20000/31d fixed_window}]\n"

const (
	hotLimit       = 20_000
	hotConnections = 32
)

// startHot starts a Caddy with the policy, with leases or without.
func startHot(t *testing.T, redis *redistest.Server, policy, lease string) (*process, *policyFile) {
	t.Helper()
	file := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(strings.Replace(policy, "LEASE", lease, 1))
	return startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path), file
}

// figure is what a metric without labels says.
func (p *process) figure(name string) float64 {
	p.t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(p.scrape())
	if found == nil {
		p.t.Fatalf("there is no metric %s", name)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// awaitGivenBack waits until nothing is in hand.
func (p *process) awaitGivenBack() {
	p.t.Helper()
	await.Until(p.t, patience, "nothing is in hand", func() bool { return p.figure("penstock_lease_units_in_hand") == 0 })
}

// finish asks until the limit is used up, after what is left was given back, and returns how many were admitted in all. A refusal is
// remembered for a while, in which something may be given back: so it is used up when all are refused for longer than that.
func finish(t *testing.T, got *tally, nodes ...*process) int64 {
	t.Helper()
	for _, p := range nodes {
		p.awaitGivenBack()
	}
	for _, p := range nodes {
		since := time.Now()
		await.Until(t, patience, "the limit is used up", func() bool {
			before := got.refused.Load()
			crowd(p, 4, got, times(100)).Wait()
			if got.refused.Load() != before+100 || p.figure("penstock_lease_units_in_hand") > 0 {
				since = time.Now()
			}
			return time.Since(since) > rememberedMax
		})
		p.awaitGivenBack()
	}
	return got.admitted.Load()
}

// TestLeasesAdmitTheLimit: two Caddies use up one limit, first asking for each request, then with leases. Both admit exactly
// the limit; Redis is asked for a small part of the requests only.
func TestLeasesAdmitTheLimit(t *testing.T) {
	calls := map[string]int64{}
	for _, lease := range []string{"off", "auto"} {
		redis := redistest.Start(t)
		one, _ := startHot(t, redis, hotPolicy, lease)
		two, _ := startHot(t, redis, hotPolicy, lease)
		var got tally
		before, start := redis.Calls("evalsha"), time.Now()
		groups := []*sync.WaitGroup{crowd(one, hotConnections, &got, times(9_000)), crowd(two, hotConnections, &got, times(9_000))}
		for _, group := range groups {
			group.Wait()
		}
		calls[lease] = redis.Calls("evalsha") - before
		t.Logf("lease: %s: %d admitted, %d refused, %d broken in %v: %d calls, %v and %v from hand, %v and %v given back", lease,
			got.admitted.Load(), got.refused.Load(), got.broken.Load(), time.Since(start), calls[lease],
			one.figure("penstock_leased_decisions_total"), two.figure("penstock_leased_decisions_total"),
			one.figure("penstock_lease_units_returned_total"), two.figure("penstock_lease_units_returned_total"))
		if got.refused.Load() != 0 {
			t.Errorf("lease: %s: %d refused below the limit", lease, got.refused.Load())
		}
		if admitted := finish(t, &got, one, two); admitted != hotLimit || got.broken.Load() != 0 {
			t.Errorf("lease: %s: %d admitted in all with %d broken, want exactly %d", lease, admitted, got.broken.Load(), hotLimit)
		}
	}
	if calls["auto"]*10 > calls["off"] {
		t.Errorf("%d calls with leases and %d without: want a tenth at most", calls["auto"], calls["off"])
	}
}

// TestLeasesFarOverTheLimit: two Caddies several times over a limit that lives from what flows in, or ends every second. Redis is
// asked for a small part of the requests, and no window admits more than its limit.
func TestLeasesFarOverTheLimit(t *testing.T) {
	const limit = 1000 // a second
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			redis := redistest.Start(t)
			policy := fmt.Sprintf("name: shop\non_error: deny\nlease: LEASE\nrules: [{name: all, per: [], limit: %d/1s %s}]\n", limit, algorithm)
			one, _ := startHot(t, redis, policy, "auto")
			two, _ := startHot(t, redis, policy, "auto")
			var got tally
			before, start := redis.Calls("evalsha"), time.Now()
			groups := []*sync.WaitGroup{crowd(one, hotConnections, &got, times(10_000)), crowd(two, hotConnections, &got, times(10_000))}
			for _, group := range groups {
				group.Wait()
			}
			took, calls := time.Since(start), redis.Calls("evalsha")-before
			admitted, asked := got.admitted.Load(), got.admitted.Load()+got.refused.Load()
			t.Logf("%d of %d admitted in %v, %d broken: %d calls, one for %d requests", admitted, asked, took, got.broken.Load(), calls, asked/max(1, calls))
			if most := limit * int64(took/time.Second+2); admitted > most {
				t.Errorf("%d admitted in %v, want at most %d", admitted, took, most)
			}
			if calls*10 > asked {
				t.Errorf("%d calls for %d requests, want a tenth at most", calls, asked)
			}
		})
	}
}

// TestLeasesLostWithANode: what a Caddy has in hand when it is killed is lost to the window, and nobody is admitted for it.
// What one has in hand that is stopped, or reloaded, is given back.
func TestLeasesLostWithANode(t *testing.T) {
	for _, how := range []struct {
		name  string
		end   func(p *process, file *policyFile)
		short int64 // of the limit, at most
	}{
		{"killed", func(p *process, _ *policyFile) { p.kill() }, hotLimit / 10},
		{"stopped", func(p *process, _ *policyFile) { p.signal(syscall.SIGTERM) }, 0},
		{"reloaded", func(p *process, _ *policyFile) {
			if err := p.reload(); err != nil {
				p.t.Error(err)
			}
		}, 0},
		{"policy edited", func(p *process, file *policyFile) {
			file.edit(strings.Replace(strings.Replace(hotPolicy, "LEASE", "off", 1), "20000", "19999", 1))
			await.Until(p.t, patience, "the edit is in force", func() bool { return strings.Contains(p.log.String(), "is in force") })
			file.edit(strings.Replace(hotPolicy, "LEASE", "auto", 1))
		}, 0},
	} {
		t.Run(how.name, func(t *testing.T) {
			redis := redistest.Start(t)
			one, file := startHot(t, redis, hotPolicy, "auto")
			two, _ := startHot(t, redis, hotPolicy, "auto")
			var got tally
			done := make(chan struct{})
			groups := []*sync.WaitGroup{crowd(one, hotConnections, &got, until(done)), crowd(two, hotConnections, &got, until(done))}
			await.Until(t, 20*time.Second, "both have units in hand", func() bool {
				return one.figure("penstock_lease_units_in_hand") > 0 && two.figure("penstock_lease_units_in_hand") > 0 ||
					got.refused.Load() > 0
			})
			how.end(one, file)
			close(done)
			for _, group := range groups {
				group.Wait()
			}
			nodes := []*process{two}
			if how.short == 0 && how.name != "stopped" {
				nodes = append(nodes, one)
			} else {
				<-one.done
			}
			admitted, broken := finish(t, &got, nodes...), got.broken.Load()
			t.Logf("%d admitted of %d, %d broken", admitted, hotLimit, broken)
			// A request whose connection was closed may have been charged without an answer.
			if admitted > hotLimit || admitted+broken+how.short < hotLimit {
				t.Errorf("%d admitted with %d broken, want %d and no more, and at most %d lost", admitted, broken, hotLimit, how.short)
			}
		})
	}
}

// until returns a stop when done is closed.
func until(done <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
}

// TestLeasedCostsAreGivenBack: a rule that is leased gives back what a response says was not used, and the limit holds. So it does
// for a token bucket, which is then not leased.
func TestLeasedCostsAreGivenBack(t *testing.T) {
	const policy = "name: shop\non_error: deny\nrules: [{name: all, per: [], limit: 5000/31d LIMIT, lease: auto, refund_on: {status: 404}}]\n"
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			redis := redistest.Start(t)
			file := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
			file.edit(strings.Replace(policy, "LIMIT", algorithm, 1))
			p := startCaddy(t, strings.Replace(editedCaddyfile, `respond "ok"`, "respond /nothing 404\n\trespond ok", 1),
				"PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
			var nothing tally
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hotConnections, MaxConnsPerHost: hotConnections}}
			// What was charged is given back once the store answers: no more than half the limit is on its way at a time.
			for round := range 4 {
				more := times(2_000)
				var group sync.WaitGroup
				for range hotConnections {
					group.Go(func() {
						for more() {
							nothing.ask(client, "http://"+p.address+"/nothing")
						}
					})
				}
				group.Wait()
				await.Until(t, patience, "all is settled", func() bool {
					return p.figure(`penstock_settlements_total{result="settled"}`) >= float64(2_000*(round+1))
				})
			}
			p.awaitGivenBack()
			if nothing.refused.Load() != 0 || nothing.broken.Load() != 0 {
				t.Errorf("%d refused and %d broken of requests that cost nothing", nothing.refused.Load(), nothing.broken.Load())
			}
			var got tally
			if admitted := finish(t, &got, p); admitted > 5_000 || algorithm != "token_bucket" && admitted != 5_000 {
				t.Errorf("%d admitted, want %d", admitted, 5_000)
			}
			t.Logf("%d calls, %v from hand", redis.Calls("evalsha"), p.figure("penstock_leased_decisions_total"))
		})
	}
}

// TestALookDoesNotTakeLeases: what an operator, the client's own question and explain see leaves what is in hand where it is,
// and counts it as used.
func TestALookDoesNotTakeLeases(t *testing.T) {
	redis := redistest.Start(t)
	p, file := startHot(t, redis, hotPolicy, "auto")
	var got tally
	done := make(chan struct{})
	group := crowd(p, hotConnections, &got, until(done))
	await.Until(t, 20*time.Second, "units are in hand", func() bool { return p.figure("penstock_lease_units_in_hand") > 0 })
	for range 2 {
		// What is admitted while the look is on its way may be in it or not; what was admitted before it must be.
		before := got.admitted.Load()
		var told clientTold
		penstock(t, "client", "--admin", p.admin, "--client", "ip:127.0.0.1").read(t, &told)
		if len(told.Counters) != 1 || told.Counters[0].Remaining > hotLimit-before {
			t.Errorf("%d admitted before, and a look says %+v", before, told)
		}
		penstock(t, "explain", "--policy", file.path, "--ip", "127.0.0.1", "--redis", redis.URL())
	}
	close(done)
	group.Wait()
	if admitted := finish(t, &got, p); admitted != hotLimit || got.broken.Load() != 0 {
		t.Errorf("%d admitted with %d broken, want exactly %d", admitted, got.broken.Load(), hotLimit)
	}
	p.operate(t, "client", "127.0.0.1")
	penstock(t, "reset", "--admin", p.admin, "--client", "ip:127.0.0.1", "--rule", "all")
	if a := p.get("/"); a.status != http.StatusOK || a.number("X-RateLimit-Remaining") > hotLimit {
		t.Errorf("after a reset: %d, %s left", a.status, fmt.Sprint(a.header))
	}
}
