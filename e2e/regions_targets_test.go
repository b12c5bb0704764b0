// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// lentTraffic is the traffic of one client to three regions, and the counts of its answers.
type lentTraffic struct {
	name   string
	rate   float64 // as a multiple of the limit
	region func(since time.Duration, random *rand.Rand) string
	// decidedMin is the least share of all requests that must be decided without a wait for another
	// region. denialsMin is the same for the denied requests.
	decidedMin, denialsMin float64

	mu                                 sync.Mutex
	sent, atOnce, denied, deniedAtOnce int
	admitted                           map[int64]int // by the number of the window
}

// lentTraffic.note counts an answer. A request that waits for another region takes at least a round
// trip. Other requests take only milliseconds.
func (l *lentTraffic) note(window int64, status int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	atOnce := took < roundTripMillis/2*time.Millisecond
	l.sent++
	if atOnce {
		l.atOnce++
	}
	if status == http.StatusOK {
		l.admitted[window]++
		return
	}
	l.denied++
	if atOnce {
		l.deniedAtOnce++
	}
}

func shareOf(part, whole int) float64 {
	if whole == 0 {
		return 1
	}
	return float64(part) / float64(whole)
}

// TestLoansMeetTheirTargets sends the kinds of traffic of the simulation to three regions that are
// 200 ms apart. No more requests than the limit are admitted in any window. In "make exam", the
// windows are a minute long, and the machine does nothing else. There the test also checks that as
// many requests are decided without a wait for another region as docs/explanation/regions.md
// promises.
func TestLoansMeetTheirTargets(t *testing.T) {
	t.Parallel()
	const windows = 2
	limit, window, span := examOr(3000, 200), examOr("1m", "10s"), examOr(time.Minute, 10*time.Second)
	l := startLending(t, fmt.Sprintf(`name: shop
on_error: deny
regions: {us: 40, eu: 30, ap: 30}
across: lease
identify: [{header: {name: X-User, unverified: true}}]
rules: [{name: all, limit: %d/%s sliding_window}]
`, limit, window))
	evenly := func(_ time.Duration, random *rand.Rand) string { return l.names[random.IntN(len(l.names))] }
	skewed := func(since time.Duration, random *rand.Rand) string {
		if random.Float64() < 0.9 {
			return "us"
		}
		return evenly(since, random)
	}
	single := func(time.Duration, *rand.Rand) string { return "ap" }
	moving := func(since time.Duration, _ *rand.Rand) string {
		return l.names[int(since/(5*time.Second))%len(l.names)]
	}
	all := []*lentTraffic{
		{name: "even", rate: 0.95, region: evenly, decidedMin: 0.98},
		{name: "skewed", rate: 0.95, region: skewed, decidedMin: 0.98},
		{name: "single", rate: 0.95, region: single, decidedMin: 0.98},
		{name: "moving", rate: 0.95, region: moving, decidedMin: 0.90},
		{name: "even-twice", rate: 2, region: evenly, denialsMin: 0.90},
		{name: "single-twice", rate: 2, region: single, denialsMin: 0.90},
		{name: "moving-twice", rate: 2, region: moving, denialsMin: 0.90},
	}
	start := time.Now().Truncate(span).Add(span)
	var sending sync.WaitGroup
	for i, traffic := range all {
		traffic.admitted = map[int64]int{}
		sending.Go(func() {
			l.send(traffic, rand.New(rand.NewPCG(1, uint64(i))), start, windows*span, span, float64(limit))
		})
	}
	sending.Wait()
	for _, traffic := range all {
		l.checkTraffic(traffic, limit, examOr(true, false))
	}
}

// lending.send sends the requests of the traffic at random times after the start, and waits until
// all are answered. It omits requests near the end of a window, because it would be unknown in
// which window they count.
func (l *lending) send(traffic *lentTraffic, random *rand.Rand, start time.Time, length, span time.Duration, limit float64) {
	const margin = 2 * time.Second
	perSecond := traffic.rate * limit / (span - margin).Seconds()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	var answers sync.WaitGroup
	for since := time.Duration(0); ; {
		since += time.Duration(random.ExpFloat64() / perSecond * float64(time.Second))
		if since >= length {
			break
		}
		region := traffic.region(since, random)
		if since%span > span-margin {
			continue
		}
		<-time.After(time.Until(start.Add(since)))
		answers.Go(func() {
			began := time.Now()
			a, err := ask(client, "http://"+l.sites[region].address+"/", "X-User", traffic.name)
			if err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
				l.t.Errorf("%s, %s: status %d, error %v", traffic.name, region, a.status, err)
				return
			}
			traffic.note(began.UnixNano()/int64(span), a.status, time.Since(began))
		})
	}
	answers.Wait()
}

// checkTraffic checks the counts of the traffic's answers.
func (l *lending) checkTraffic(traffic *lentTraffic, limit int, targets bool) {
	l.t.Helper()
	decided, denials := shareOf(traffic.atOnce, traffic.sent), shareOf(traffic.deniedAtOnce, traffic.denied)
	l.t.Logf("%-13s %6d sent, %v admitted by window, %.2f %% decided at once, %d denied, %.2f %% of them at once",
		traffic.name, traffic.sent, traffic.admitted, 100*decided, traffic.denied, 100*denials)
	for window, admitted := range traffic.admitted {
		if admitted > limit {
			l.t.Errorf("%s: %d requests were admitted in window %d, and the limit is %d", traffic.name, admitted, window, limit)
		}
	}
	if targets && (decided < traffic.decidedMin || denials < traffic.denialsMin) {
		l.t.Errorf("%s: %.4f of the requests and %.4f of the denials did not wait for another region, want %.2f and %.2f",
			traffic.name, decided, denials, traffic.decidedMin, traffic.denialsMin)
	}
}
