// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// lending.drain sends a client's requests to the regions in turn until no region admits any. It
// returns the number of admitted requests.
func (l *lending) drain(user string, regions ...string) (admitted int) {
	l.t.Helper()
	for quiet := 0; quiet < 2; quiet++ {
		for _, region := range regions {
			for l.take(region, user) {
				admitted, quiet = admitted+1, -1
			}
		}
	}
	return admitted
}

// lending.count returns the used units of a client's counter in a region, or 0 if there is no
// counter.
func (l *lending) count(user, region string) int {
	l.t.Helper()
	text := l.used(region, user)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// checkNormal checks that a new client gets the whole limit in a region again, and no more. The
// parameter since is the time at which the fault ended.
func (l *lending) checkNormal(region, user string, since time.Time) {
	l.t.Helper()
	l.admitAll(region, user, 30)
	l.t.Logf("%s: %s got 30 units %v after the fault", region, user, time.Since(since).Round(time.Millisecond))
	l.checkNothingLeft(user)
}

// TestARegionForgets tests a region whose Redis is emptied, or is restored from an older backup.
// All regions together exceed the limit by at most the units that this region has forgotten, and
// these are at most its part of the limit. Soon afterwards, new clients get the whole limit, and no
// more.
func TestARegionForgets(t *testing.T) {
	t.Parallel()
	const limit, part = 30, 15
	l := startLending(t, lendingPolicy)
	for _, fault := range []string{"emptied", "restored"} {
		ann := "ann-" + fault
		admitted := 0
		takeUS := func(n int) {
			for range n {
				if l.take("us", ann) {
					admitted++
				}
			}
		}
		takeUS(4)
		before := 0
		if fault == "restored" {
			l.settle(ann) // so that no unit is lent before the count below
			if err := l.redis["us"].Client().Save(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			before = l.count(ann, "us")
		}
		takeUS(4)
		for range 12 { // the region us lends some of these units
			if l.take("eu", ann) {
				admitted++
			}
		}
		l.settle(ann)
		forgotten, since := l.count(ann, "us")-before, time.Now()
		if fault == "restored" {
			l.redis["us"].Restart() // from its dump
			l.awaitAnswers("us")
		} else if err := l.redis["us"].Client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		if left := l.count(ann, "us"); left != before {
			t.Errorf("%s: the counter has %d units, want %d", fault, left, before)
		}
		admitted += l.drain(ann, "us", "eu", "ap")
		t.Logf("%s: %d of %d units admitted, %d were forgotten", fault, admitted, limit, forgotten)
		if forgotten > part || admitted > limit+forgotten || admitted < limit {
			t.Errorf("%s: %d units were admitted, %d were forgotten", fault, admitted, forgotten)
		}
		l.checkNormal("us", "bob-"+fault, since)
		l.checkNormal("eu", "eve-"+fault, since)
	}
}

// lending.settle waits until no units of a client are being lent or returned: until its counters
// have not changed for five round trips. A question and its answer take one round trip, and so does
// the return of units that the borrower could not use.
func (l *lending) settle(user string) {
	l.t.Helper()
	const quiet = 5 * roundTripMillis * time.Millisecond
	last, since := -1, time.Now()
	eventually.Until(l.t, patience, "no loan of "+user+" is under way", func() bool {
		sum := 0
		for _, region := range l.names {
			sum = 100*sum + l.count(user, region)
		}
		if sum != last {
			last, since = sum, time.Now()
		}
		return time.Since(since) >= quiet
	})
}

// awaitAnswers waits until a region admits a new client again.
func (l *lending) awaitAnswers(region string) {
	l.t.Helper()
	clients := 0
	eventually.Until(l.t, patience, region+" answers", func() bool {
		clients++
		a, err := ask(http.DefaultClient, "http://"+l.sites[region].address+"/", "X-User", fmt.Sprintf("probe-%d", clients))
		return err == nil && a.status == http.StatusOK
	})
}

// TestAWayBetweenRegionsIsCut tests faults of the network between two regions. Neither region can
// connect to the other, or only one of them can, or everything that one of them sends is lost. All
// requests are decided, and no more than the limit are admitted. When the network works again, a
// new client soon gets the whole limit.
func TestAWayBetweenRegionsIsCut(t *testing.T) {
	t.Parallel()
	l := startLending(t, lendingPolicy)
	there, back := l.links[[2]string{"us", "eu"}], l.links[[2]string{"eu", "us"}]
	latency := map[string]int{"latency": roundTripMillis / 2}
	heal := func() {
		for _, way := range []*link{there, back} {
			way.heal()
			way.addToxic("latency", latency)
		}
	}
	silence := func(way *link, direction, other string) {
		way.heal()
		way.addToxicOneWay("timeout", map[string]int{"timeout": 0}, direction) // it drops all data
		way.addToxicOneWay("latency", latency, other)
	}
	for _, fault := range []struct {
		name        string
		begin, end  func()
		least       int // units that must be admitted during the fault
		first, last string
	}{
		{"eu cannot connect to us", back.cut, back.reconnect, 30, "eu", "us"},
		{"us cannot connect to eu", there.cut, there.reconnect, 30, "us", "eu"},
		{"us and eu are cut from each other", func() { there.cut(); back.cut() }, func() { there.reconnect(); back.reconnect() }, 30, "eu", "us"},
		{"nothing from us arrives in eu", func() { silence(there, toRedis, fromRedis); silence(back, fromRedis, toRedis) }, heal, 15, "eu", "us"},
		{"nothing from eu arrives in us", func() { silence(there, fromRedis, toRedis); silence(back, toRedis, fromRedis) }, heal, 15, "us", "eu"},
	} {
		ann := "ann: " + fault.name
		begun := l.drainSome(ann)
		fault.begin()
		admitted := begun + l.drain(ann, fault.first, "ap", fault.last)
		t.Logf("%s: %d of 30 units admitted", fault.name, admitted)
		if admitted > 30 || admitted < fault.least {
			t.Errorf("%s: %d units were admitted, want %d to 30", fault.name, admitted, fault.least)
		}
		fault.end()
		since := time.Now()
		l.checkNormal(fault.first, "bob: "+fault.name, since)
		if admitted += l.drain(ann, slices.Concat(l.names, l.names)...); admitted > 30 {
			t.Errorf("%s: %d units were admitted in the end", fault.name, admitted)
		}
	}
}

// drainSome uses a few units of a client in each region, so that the agents connect to each other.
func (l *lending) drainSome(user string) (admitted int) {
	l.t.Helper()
	for range 2 {
		for _, region := range l.names {
			if l.take(region, user) {
				admitted++
			}
		}
	}
	return admitted
}
