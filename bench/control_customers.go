// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The longest permitted times: for the publication of one customer, for the publication of all
	// ten million, for the check of a request during that publication, and for the answer to the
	// first request that a customer sends to a node.
	oneMax        = 100 * time.Millisecond
	allMax        = 5 * time.Minute
	allTarget     = 10_000_000
	checkMax      = 10 * time.Millisecond
	firstMax      = 5 * time.Millisecond
	ownLimit      = 777 // the limit of each tenth customer
	known         = 1_000
	checksASecond = 500
	checkers      = 10

	generationKey = "rl1:~generation:{~directory}"
)

// customerRows holds the statements that insert the customers. In the statements, %d stands for the
// number of customers. All customers have a tier, and every tenth has a limit of its own.
var customerRows = []string{
	"INSERT INTO tiers (tier, revision, updated_at) VALUES ('gold', 1, now())",
	"INSERT INTO clients (kind, id, tier, revision, updated_at) SELECT '" + customerKind + "', 'c' || i, 'gold', 1, now() FROM generate_series(1, %d) i",
	"INSERT INTO overrides (kind, id, rule, limits, reason) SELECT '" + customerKind + "', 'c' || i, 'api', '{777/1h}', 'bench' FROM generate_series(10, %d, 10) i",
}

// population is a control plane with many customers, together with one node.
type population struct {
	*plane
	redis *redis.Client
	node  *node
	size  string
}

// manyCustomers measures how long it takes to publish many customers, and one of many, in Redis. It
// also measures the first requests of these customers.
func (c *controlBench) manyCustomers() error {
	p, err := c.population()
	if err != nil {
		return err
	}
	if err := p.publishAll(); err != nil {
		return err
	}
	if err := p.publishOne(); err != nil {
		return err
	}
	return p.firstContact()
}

func (c *controlBench) population() (*population, error) {
	_, address, err := c.bench.redis()
	if err != nil {
		return nil, err
	}
	p := &population{redis: redis.NewClient(&redis.Options{Addr: address}), size: thousands(float64(c.customers)) + " customers"}
	c.closers = append(c.closers, func() { _ = p.redis.Close() })
	if p.plane, err = c.plane(address); err != nil {
		return nil, err
	}
	for i, statement := range customerRows {
		if i > 0 {
			statement = fmt.Sprintf(statement, c.customers)
		}
		if err := p.sql(statement); err != nil {
			return nil, err
		}
	}
	global := "\tpenstock {\n\t\tname bench\n\t\tstore redis redis://" + address + " {\n\t\t\ttimeout 1s\n\t\t}\n\t\tdirectory\n\t}"
	site := "\tpenstock {\n\t\tname shop\n\t\tidentify header X-User unverified\n\t\trule api " + hourly(usual) + "\n\t}\n\trespond \"ok\""
	_, url, err := c.caddyNode(caddySetting{global: global, site: site})
	p.node = newNode(url)
	return p, err
}

// population.filled waits until Redis has a generation other than the former one.
func (p *population) filled(former string) error {
	return p.process.until(time.Hour, "writes all records", func() bool {
		generation := p.redis.Get(context.Background(), generationKey).Val()
		return generation != "" && generation != former
	})
}

// publishAll measures how long it takes to write all records to a Redis that was emptied, and how
// long checks take meanwhile.
func (p *population) publishAll() error {
	ctx := context.Background()
	if err := p.filled(""); err != nil { // any generation, with or without the customers
		return err
	}
	alone := p.checks(func() { time.Sleep(p.c.before) })
	former := p.redis.Get(ctx, generationKey).Val()
	began, took, err := time.Now(), time.Duration(0), error(nil)
	// A synchronous FLUSHALL would block Redis, and so the checks, until all memory is freed.
	if err := p.redis.FlushAllAsync(ctx).Err(); err != nil {
		return err
	}
	during := p.checks(func() {
		err = p.filled(former)
		took = time.Since(began)
	})
	if err != nil {
		return err
	}
	if records := p.redis.Exists(ctx, "rl1:~who:"+ofHeader("c1"), fmt.Sprintf("rl1:~who:%s", ofHeader(fmt.Sprint("c", p.c.customers)))).Val(); records != 2 {
		return fmt.Errorf("after all records were written, %d of two are in Redis", records)
	}
	perSecond := float64(p.c.customers) / took.Seconds()
	p.c.reached("all customers published, from FLUSHALL until Redis has all", "10,000,000 in ≤ 5 min: 33,334/s", perSecond >= allTarget/allMax.Seconds(),
		fmt.Sprintf("%s, %s/s", formatSpan(took), thousands(perSecond)), p.size)
	_, before, _ := spread(alone.spans)
	_, p99, text := spread(during.spans)
	p.c.reached("checks meanwhile, as whole requests to a Caddy", "p99 < 10 ms", p99 < checkMax && during.failed == 0,
		fmt.Sprintf("%s; %d of %s failed; before, p99 %s", text, during.failed, thousands(float64(len(during.spans))), formatSpan(before)),
		fmt.Sprintf("%s; %d requests/s of %s customers", p.size, checksASecond, thousands(known)))
	return nil
}

// checked is the result of sending requests at a constant rate: how long each took, and how many
// failed.
type checked struct {
	spans  []time.Duration
	failed int
}

// population.checks sends requests at a constant rate until work() returns. If a request must wait
// for an earlier one, its span still begins at the instant when it was due.
func (p *population) checks(work func()) checked {
	done, results := make(chan struct{}), make([]checked, checkers)
	var all sync.WaitGroup
	const every = checkers * time.Second / checksASecond
	began := time.Now()
	for i := range checkers {
		all.Go(func() {
			r := &results[i]
			for due := began.Add(time.Duration(i) * every / checkers); ; due = due.Add(every) {
				select {
				case <-done:
					return
				case <-time.After(time.Until(due)):
				}
				status, _, err := p.node.ask(fmt.Sprint("c", 1+rand.IntN(min(known, p.c.customers))))
				r.spans = append(r.spans, time.Since(due))
				if err != nil || status != http.StatusOK && status != http.StatusTooManyRequests {
					r.failed++
				}
			}
		})
	}
	work()
	close(done)
	all.Wait()
	var sum checked
	for _, r := range results {
		sum.spans, sum.failed = append(sum.spans, r.spans...), sum.failed+r.failed
	}
	return sum
}

// publishOne measures the time from a change of one customer until its record is in Redis.
func (p *population) publishOne() error {
	ctx := context.Background()
	var spans []time.Duration
	for i := range p.c.writes {
		name := fmt.Sprint("c", 1+rand.IntN(p.c.customers))
		key := "rl1:~who:" + ofHeader(name)
		former := p.redis.Get(ctx, key).Val()
		began := time.Now()
		if err := p.limit(name, 1_000+i); err != nil {
			return err
		}
		if err := p.process.until(planePatience, "publishes "+name, func() bool { return p.redis.Get(ctx, key).Val() != former }); err != nil {
			return err
		}
		spans = append(spans, time.Since(began))
	}
	_, p99, text := spread(spans)
	p.c.reached("one customer published, from the request to the API until Redis has the record", "≤ 100 ms", p99 <= oneMax, text,
		fmt.Sprintf("%s, %d changes", p.size, len(spans)))
	return nil
}

// firstContact measures the first and the second request that each customer sends to a node.
func (p *population) firstContact() error {
	firsts := min(p.c.firsts, p.c.customers-known)
	var spans [2][]time.Duration
	own := 0
	for turn := range spans {
		for i := range firsts {
			customer := p.c.customers - i
			began := time.Now()
			status, limit, err := p.node.ask(fmt.Sprint("c", customer))
			if err != nil {
				return err
			}
			spans[turn] = append(spans[turn], time.Since(began))
			if status != http.StatusOK {
				return fmt.Errorf("the first request of a customer is answered %d", status)
			}
			if limit == fmt.Sprint(ownLimit) {
				own++
			}
		}
	}
	if own < firsts/10 {
		return fmt.Errorf("%d of %d customers have their own limit at their first requests", own, firsts)
	}
	slices.Sort(spans[1])
	_, p99, text := spread(spans[0])
	p.c.reached("a customer's first request to a Caddy, with its record from Redis", "p99 ≤ 5 ms", p99 <= firstMax,
		fmt.Sprintf("%s; the second, p99 %s", text, formatSpan(percentile(spans[1], 99))),
		fmt.Sprintf("%s, %s of them in turn", p.size, thousands(float64(firsts))))
	return nil
}
