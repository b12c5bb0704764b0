// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const callers = 64

const threeRules = `	penstock {
		rule one {
			limit %[1]s/1m token_bucket
		}
		rule two {
			limit %[1]s/1h
		}
		rule three {
			match path /*
			limit %[1]s/1d fixed_window
		}
	}
	respond "ok"`

// refusal is the body of the response to a denied request.
const refusal = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded",` +
	`"status":429,"violated-policies":["one"],"error":"Rate limit exceeded"}`

// oneRule returns a Caddy site with one rule and the given limit. The argument named words holds
// further lines of its policy.
func oneRule(limit, words string) string {
	return fmt.Sprintf("\tpenstock {\n\t\tname bench-site\n\t\ton_error deny\n%s\n\t\trule one %s\n\t}\n\trespond \"ok\"", words, limit)
}

// hourly returns a limit per hour in the syntax of a policy.
func hourly(limit int) string { return fmt.Sprintf("%d/1h", limit) }

// overRedis returns the global option for a store in Redis.
func overRedis(address string) string {
	return fmt.Sprintf("\tpenstock {\n\t\tname bench\n\t\tstore redis redis://%s {\n\t\t\ttimeout 1s\n\t\t}\n\t}", address)
}

// ofCaddy returns a function that starts Caddys with the same Caddyfile. The argument named site is
// called with the limit and returns the site's directives. If withRedis is set, the nodes share one
// Redis.
func ofCaddy(withRedis bool, site func(limit int) string) func(b *bench, limit, nodes int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		s := &system{sends: []string{"evalsha"}}
		global := ""
		var store *process
		if withRedis {
			var err error
			if store, s.redis, err = b.redis(); err != nil {
				return nil, err
			}
			global = overRedis(s.redis)
		}
		for range nodes {
			p, url, err := b.caddyNode(caddySetting{global: global, site: site(limit)})
			if err != nil {
				return nil, err
			}
			s.url, s.processes, s.nodes = url, append(s.processes, p), append(s.nodes, getting(url))
		}
		if withRedis {
			s.processes = append(s.processes, store)
		}
		return s, nil
	}
}

// always returns a function that ignores the limit and returns the given site.
func always(site string) func(int) string { return func(int) string { return site } }

// zoned returns a site that is limited by caddy-ratelimit.
func zoned(limit int) string {
	// caddy-ratelimit has a ring buffer with a place for each event that the limit allows.
	return fmt.Sprintf("\trate_limit {\n\t\tzone one {\n\t\t\tkey {http.request.remote.host}\n\t\t\twindow 1h\n\t\t\tevents %d\n\t\t}\n\t}\n\trespond \"ok\"",
		min(limit, 10_000_000))
}

// leasing is the policy line that turns leases on.
const leasing = "\t\tlease auto"

// caddyCompared compares Caddys under the requests of one hot client: without a limit, with
// Penstock in memory, over Redis, and over Redis with leases, and with caddy-ratelimit.
func caddyCompared(o options, s *section) error {
	base := &contender{name: "a handler that only sets the same headers", unasked: true, start: ofCaddy(false, always("\tbench_headers\n\trespond \"ok\""))}
	three := &contender{name: "Penstock, memory, 3 rules", unasked: true,
		start: ofCaddy(false, func(limit int) string { return fmt.Sprintf(threeRules, fmt.Sprint(limit)) })}
	memory := &contender{name: "Penstock, memory", start: ofCaddy(false, func(limit int) string { return oneRule(hourly(limit), "") })}
	exact := &contender{name: "Penstock, Redis", start: ofCaddy(true, func(limit int) string { return oneRule(hourly(limit), "") })}
	leased := &contender{name: "Penstock, Redis, `lease: auto`", start: ofCaddy(true, func(limit int) string { return oneRule(hourly(limit), leasing) })}
	rival := &contender{name: "caddy-ratelimit (memory, no headers)", start: ofCaddy(false, zoned)}
	all := []*contender{base, three, memory, exact, leased, rival}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	beyond := of(leased.seen.seen, totalCPU) - of(memory.seen.seen, totalCPU)
	cheaper := of(exact.seen.seen, redisUsed) / of(leased.seen.seen, redisUsed)
	above := of(three.seen.seen, totalCPU) - of(base.seen.seen, totalCPU)
	s.targets(
		fmt.Sprintf("With leases, a request of the busy client costs %+.1f µs compared with memory, including Redis (%s).", beyond, against(beyond <= 3, "within 3 µs")),
		fmt.Sprintf("Leases need %s × fewer Redis calls (%s).", thousands(cheaper), against(cheaper >= 50, "50 ×")),
		fmt.Sprintf("Three rules in memory cost %+.1f µs more than the handler (%s).", above, against(above <= 3, "3 µs")))
	return nil
}

// getting returns a function that sends GET requests over kept-alive connections.
func getting(url string) ask {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: callers,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}}
	return func() (bool, error) {
		answer, err := client.Get(url)
		if err != nil {
			return false, err
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		switch answer.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusTooManyRequests:
			return false, nil
		}
		return false, fmt.Errorf("%s answered %s", url, answer.Status)
	}
}
