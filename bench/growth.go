// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/store/memstore"
)

// doubled holds the steps of charts in which each step doubles the quantity.
var doubled = []int{1, 2, 4, 8}

// options.fewer returns the options with fewer rounds, for a comparison with many steps.
func (o options) fewer() options {
	o.rounds = min(o.rounds, 3)
	return o
}

// rulesOf returns a site with n rules that all match.
func rulesOf(n int, words string) string {
	var rules strings.Builder
	for i := range n {
		fmt.Fprintf(&rules, "\t\trule rule-%d %d/%dh\n", i, unlimited, i+1)
	}
	return "\tpenstock {\n\t\tname bench-site\n\t\ton_error deny\n" + words + "\n" + rules.String() + "\t}\n\trespond \"ok\""
}

// growthOfLimits measures how the CPU time of a request in Caddy grows with the number of limits.
func growthOfLimits(o options, s *section) error {
	c := &chart{title: "CPU of a request, by the number of limits", across: "limits for each request", up: "µs of CPU a request, Caddy and Redis"}
	ways := []struct {
		name  string
		redis bool
		words string
	}{{"memory", false, ""}, {"Redis", true, ""}, {"Redis, lease: auto", true, leasing}}
	var all []*contender
	for _, way := range ways {
		for _, n := range doubled {
			all = append(all, &contender{name: way.name, unasked: true, start: ofCaddy(way.redis, always(rulesOf(n, way.words)))})
		}
	}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	for _, n := range doubled {
		c.steps = append(c.steps, fmt.Sprint(n))
	}
	for i, way := range ways {
		one := series{name: way.name}
		for j := range doubled {
			one.values = append(one.values, of(all[i*len(doubled)+j].seen.seen, totalCPU))
		}
		c.series = append(c.series, one)
	}
	c.table(s, "%.1f")
	if err := c.write(o, s); err != nil {
		return err
	}
	s.say("\nEach further limit costs")
	for i := range c.series {
		one := &c.series[i]
		s.say("%s %.1f µs (%s)", comma(i), (one.values[len(doubled)-1]-one.values[0])/float64(doubled[len(doubled)-1]-1), one.name)
	}
	s.say("; eight cost")
	for i := range c.series {
		s.say("%s %.1f × one (%s)", comma(i), c.series[i].times(), c.series[i].name)
	}
	s.say(".\n")
	return nil
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// tenfold returns a short form of n, such as 1k for 1000.
func tenfold(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n >= 1_000:
		return fmt.Sprintf("%dk", n/1_000)
	}
	return fmt.Sprint(n)
}

// inTurn runs each work function in turn for a while and returns the median nanoseconds per call. A
// work function makes many calls and returns their number.
func inTurn(o options, works []func() int) []float64 {
	// A turn is so short that most turns are not interrupted even if the machine has other work.
	const turn = time.Millisecond
	seen := make([][]float64, len(works))
	for range 60 * o.rounds {
		for i, work := range works {
			begin, n := time.Now(), 0
			for time.Since(begin) < turn {
				n += work()
			}
			seen[i] = append(seen[i], float64(time.Since(begin).Nanoseconds())/float64(n))
		}
	}
	all := make([]float64, len(works))
	for i := range seen {
		all[i] = median(seen[i])
	}
	return all
}

// growthOfRules measures a whole decision in memory, from the request's attributes to the headers
// of the response, with a growing number of rules.
func growthOfRules(o options, s *section) error {
	c := &chart{title: "A decision in memory, by the number of rules", across: "rules, of which three match", up: "ns a decision, headers included"}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		return err
	}
	var works []func() int
	for _, n := range []int{3, 10, 100, 1_000, 10_000} {
		rules, err := manyRules(n)
		if err != nil {
			return err
		}
		plan, writer := new(core.Plan), new(response.Writer)
		works = append(works, func() int {
			const times = 100
			for i := range times {
				if err := oneCheck(plan, writer, rules, store, 0, i); err != nil {
					panic(err) // three rules match, or the benchmark has a bug
				}
			}
			return times
		})
		c.steps = append(c.steps, tenfold(n))
	}
	c.series = []series{{"a decision", inTurn(o, works)}}
	c.table(s, "%.0f")
	if err := c.write(o, s); err != nil {
		return err
	}
	s.say("\n10,000 rules cost %.2f × as much as three: %s. An index finds the rules that match.\n", c.series[0].times(), c.series[0].shape())
	return nil
}

// random returns a function that sends checks to a store, each for a random one of n clients.
func random(store counter.Store, limit *counter.Limit, n int) func() int {
	return func() int {
		const times = 256
		var checks [1]counter.Check
		var results [1]counter.Result
		var key [64]byte
		for range times {
			checks[0] = counter.Check{Key: clientKey(key[:0], rand.IntN(n)), ScopeLen: len("rl1:bench:one:"), Limit: limit, Cost: 1}
			if err := store.Take(context.Background(), checks[:], results[:]); err != nil {
				panic(err) // a store in memory does not fail
			}
		}
		return times
	}
}

// clientKey appends the key of the n-th client.
func clientKey(key []byte, n int) []byte {
	key = append(key, "rl1:bench:one:{ip:"...)
	key = netip.AddrFrom4([4]byte{byte(10 + n>>24), byte(n >> 16), byte(n >> 8), byte(n)}).AppendTo(key)
	return append(key, "}:3600s:tb"...)
}
