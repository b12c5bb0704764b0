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

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hotPolicy has one limit that all clients share.
const hotPolicy = "name: shop\non_error: deny\nlease: LEASE\nrules: [{name: all, per: [], limit: 6000/31d fixed_window}]\n"

const (
	hotLimit       = 6_000
	hotConnections = 32
)

// startHot starts a Caddy with the policy, with or without leases.
func startHot(t *testing.T, redis *redistest.Server, policy, lease string) (*process, *policyFile) {
	t.Helper()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(strings.Replace(policy, "LEASE", lease, 1))
	return startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path), file
}

// figure returns the value of a metric without labels.
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

// awaitReturned waits until the node holds no units.
func (p *process) awaitReturned() {
	p.t.Helper()
	eventually.Until(p.t, patience, "nothing is in hand", func() bool { return p.figure("penstock_lease_units_in_hand") == 0 })
}

// useUpLimit waits until unused units are returned, and then sends requests until the limit is used
// up. It returns how many requests were admitted in total, including those before the call.
func useUpLimit(t *testing.T, got *tally, nodes ...*process) int64 {
	t.Helper()
	for _, p := range nodes {
		p.awaitReturned()
	}
	for _, p := range nodes {
		p.useUp(t, got)
		p.awaitReturned()
	}
	return got.admitted.Load()
}

// useUp sends requests until the limit is used up. A node remembers a denial for rememberedMax, and
// another node may return units meanwhile. So the limit is used up when all requests have been
// denied for longer than this time. The test's patience applies to rounds that admit nothing,
// because it may take long to use up a large limit on a busy machine.
func (p *process) useUp(t *testing.T, got *tally) {
	t.Helper()
	const connections, round = 8, 100
	deniedSince, deadline := time.Now(), time.Now().Add(patience)
	for time.Since(deniedSince) <= rememberedMax {
		admitted, denied := got.admitted.Load(), got.refused.Load()
		startLoad(p, connections, got, times(round)).Wait()
		now := time.Now()
		if got.admitted.Load() > admitted {
			deadline = now.Add(patience)
		}
		inHand := p.figure("penstock_lease_units_in_hand")
		if got.refused.Load() != denied+round || inHand > 0 {
			deniedSince = now
		}
		if got.refused.Load() == denied+round {
			pass(rememberedMax / 20)
		}
		if now.After(deadline) {
			t.Fatalf("nothing was admitted for %v, and the limit is not used up: %d admitted, %d denied, %d broken, %v units in hand", patience,
				got.admitted.Load(), got.refused.Load(), got.broken.Load(), inHand)
		}
	}
}

// TestLeasesAdmitTheLimit tests that two Caddys together admit exactly one limit, without leases
// and with leases. With leases, they make at most a tenth of the Redis calls.
func TestLeasesAdmitTheLimit(t *testing.T) {
	t.Parallel()
	calls := map[string]int64{}
	for _, lease := range []string{"off", "auto"} {
		redis := redistest.Start(t)
		one, _ := startHot(t, redis, hotPolicy, lease)
		two, _ := startHot(t, redis, hotPolicy, lease)
		var got tally
		before, start := redis.Calls("evalsha"), time.Now()
		groups := []*sync.WaitGroup{startLoad(one, hotConnections, &got, times(2_700)), startLoad(two, hotConnections, &got, times(2_700))}
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
		if admitted := useUpLimit(t, &got, one, two); admitted != hotLimit || got.broken.Load() != 0 {
			t.Errorf("lease: %s: %d admitted in all with %d broken, want exactly %d", lease, admitted, got.broken.Load(), hotLimit)
		}
	}
	if calls["auto"]*10 > calls["off"] {
		t.Errorf("%d calls with leases and %d without: want a tenth at most", calls["auto"], calls["off"])
	}
}

// TestLeasesFarOverTheLimit tests two Caddys that get several times as many requests as a limit per
// second admits. Few of the requests cause a Redis call, and no window admits more than the limit.
func TestLeasesFarOverTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 1000 // a second
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			policy := fmt.Sprintf("name: shop\non_error: deny\nlease: LEASE\nrules: [{name: all, per: [], limit: %d/1s %s}]\n", limit, algorithm)
			one, _ := startHot(t, redis, policy, "auto")
			two, _ := startHot(t, redis, policy, "auto")
			var got tally
			before, start := redis.Calls("evalsha"), time.Now()
			groups := []*sync.WaitGroup{startLoad(one, hotConnections, &got, times(4_000)), startLoad(two, hotConnections, &got, times(4_000))}
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

// TestLeasesLostWithANode tests that if a Caddy is killed, the units that it held are lost for the
// rest of the window, and nothing is admitted in their place. A Caddy that is stopped or reloaded
// returns its units.
func TestLeasesLostWithANode(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		name  string
		end   func(p *process, file *policyFile)
		short int64 // units of the limit that may be lost
	}{
		{name: "killed", end: func(p *process, _ *policyFile) { p.kill() }, short: hotLimit / 10},
		{name: "stopped", end: func(p *process, _ *policyFile) { p.signal(syscall.SIGTERM) }},
		{name: "reloaded", end: func(p *process, _ *policyFile) {
			if err := p.reload(); err != nil {
				p.t.Error(err)
			}
		}},
		{name: "policy edited", end: func(p *process, file *policyFile) {
			file.edit(strings.Replace(strings.Replace(hotPolicy, "LEASE", "off", 1), "6000", "5999", 1))
			eventually.Until(p.t, patience, "the edit is in force", func() bool { return strings.Contains(p.log.String(), "is in force") })
			file.edit(strings.Replace(hotPolicy, "LEASE", "auto", 1))
		}},
	} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			one, file := startHot(t, redis, hotPolicy, "auto")
			two, _ := startHot(t, redis, hotPolicy, "auto")
			var got tally
			done := make(chan struct{})
			groups := []*sync.WaitGroup{startLoad(one, hotConnections, &got, untilClosed(done)), startLoad(two, hotConnections, &got, untilClosed(done))}
			eventually.Until(t, 20*time.Second, "both have units in hand", func() bool {
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
			admitted, broken := useUpLimit(t, &got, nodes...), got.broken.Load()
			t.Logf("%d admitted of %d, %d broken", admitted, hotLimit, broken)
			// A request whose connection was closed may have been charged.
			if admitted > hotLimit || admitted+broken+how.short < hotLimit {
				t.Errorf("%d admitted with %d broken, want %d and no more, and at most %d lost", admitted, broken, hotLimit, how.short)
			}
		})
	}
}

// untilClosed returns a function that reports true until the channel named done is closed.
func untilClosed(done <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
}

// TestLeasedCostsAreRefunded tests that a rule with leases refunds a request whose response has the
// status 404, and that the limit is still enforced. It also tests a token bucket, although a rule
// with a token bucket and refunds does not lease units.
func TestLeasedCostsAreRefunded(t *testing.T) {
	t.Parallel()
	const policy = "name: shop\non_error: deny\nrules: [{name: all, per: [], limit: 1000/31d LIMIT, lease: auto, refund_on: {status: 404}}]\n"
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
			file.edit(strings.Replace(policy, "LIMIT", algorithm, 1))
			p := startCaddy(t, strings.Replace(editedCaddyfile, `respond "ok"`, "respond /nothing 404\n\trespond ok", 1),
				"PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
			var nothing tally
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hotConnections, MaxConnsPerHost: hotConnections}}
			// A refund takes effect when the store has answered, so each round charges less than
			// half of the limit.
			for round := range 4 {
				more := times(400)
				var group sync.WaitGroup
				for range hotConnections {
					group.Go(func() {
						for more() {
							nothing.ask(client, "http://"+p.address+"/nothing")
						}
					})
				}
				group.Wait()
				eventually.Until(t, patience, "all is settled", func() bool {
					return p.figure(`penstock_settlements_total{result="settled"}`) >= float64(400*(round+1))
				})
			}
			p.awaitReturned()
			if nothing.refused.Load() != 0 || nothing.broken.Load() != 0 {
				t.Errorf("%d refused and %d broken of requests that cost nothing", nothing.refused.Load(), nothing.broken.Load())
			}
			var got tally
			if admitted := useUpLimit(t, &got, p); admitted > 1_000 || algorithm != "token_bucket" && admitted != 1_000 {
				t.Errorf("%d admitted, want %d", admitted, 1_000)
			}
			t.Logf("%d calls, %v from hand", redis.Calls("evalsha"), p.figure("penstock_leased_decisions_total"))
		})
	}
}

// TestALookDoesNotTakeLeases tests that penstock client and penstock explain do not affect held
// units, and count them as used.
func TestALookDoesNotTakeLeases(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p, file := startHot(t, redis, hotPolicy, "auto")
	var got tally
	done := make(chan struct{})
	group := startLoad(p, hotConnections, &got, untilClosed(done))
	eventually.Until(t, 20*time.Second, "units are in hand", func() bool { return p.figure("penstock_lease_units_in_hand") > 0 })
	for range 2 {
		// The report must include all requests that were admitted before it was made, and may
		// include later ones.
		before := got.admitted.Load()
		var reported clientReport
		penstock(t, "client", "--json", "--admin", p.admin, "--client", "ip:127.0.0.1").read(t, &reported)
		if len(reported.Counters) != 1 || reported.Counters[0].Remaining > hotLimit-before {
			t.Errorf("%d admitted before, and a look says %+v", before, reported)
		}
		penstock(t, "explain", "--policy", file.path, "--ip", "127.0.0.1", "--redis", redis.URL())
	}
	close(done)
	group.Wait()
	if admitted := useUpLimit(t, &got, p); admitted != hotLimit || got.broken.Load() != 0 {
		t.Errorf("%d admitted with %d broken, want exactly %d", admitted, got.broken.Load(), hotLimit)
	}
	p.operate(t, "client", "127.0.0.1")
	penstock(t, "reset", "--admin", p.admin, "--client", "ip:127.0.0.1", "--rule", "all")
	if a := p.get("/"); a.status != http.StatusOK || a.number("X-RateLimit-Remaining") > hotLimit {
		t.Errorf("after a reset: %d, %s left", a.status, fmt.Sprint(a.header))
	}
}
