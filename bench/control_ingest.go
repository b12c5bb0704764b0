// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	ingestMin  = 20_000 // rows a second
	besideMin  = 0.98   // as a part of the requests a second without events
	batchLines = 5_000  // the largest number of events in one batch of a node
	batchKinds = 20     // number of different batches
	feeds      = 4      // nodes that send at the same time
	// Every batch whose number is a multiple of repeatEach is sent twice, as if its answer had been
	// lost.
	repeatEach = 5
)

// batchOf returns a compressed batch of events as a node sends it, and the number of decisions in
// it.
func batchOf(random *rand.Rand, now time.Time) (body []byte, decisions int64, err error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for range batchLines {
		count := 1 + random.Int64N(20)
		decisions += count
		client := int(100_000 * random.Float64() * random.Float64())
		if _, err := fmt.Fprintf(w, `{"time":"%s","kind":"denied","policy":"shop","version":"1685a0ccd389","rule":"api-%d","limit":"100/1m",`+
			`"decision":"denied","client":"%s:c%d","tier":"gold","ip":"10.%d.%d.%d","method":"GET","path":"/v1/items/%d/*","node":"node-%d","status":429,"count":%d}`+"\n",
			now.Add(-time.Duration(random.Int64N(int64(time.Hour)))).UTC().Format("2006-01-02T15:04:05.000Z"), random.IntN(10), customerKind, client,
			client>>16, client>>8&255, client&255, random.IntN(20), random.IntN(20), count); err != nil {
			return nil, 0, err
		}
	}
	err = w.Close()
	return packed.Bytes(), decisions, err
}

// arrivals counts what was sent.
type arrivals struct{ batches, decisions int64 }

// ingested measures how fast the control plane writes batches of events into the database.
func (c *controlBench) ingested() error {
	p, err := c.planeAlone()
	if err != nil {
		return err
	}
	token, err := p.nodeToken()
	if err != nil {
		return err
	}
	random, bodies, decisions := rand.New(rand.NewPCG(1, 2)), make([][]byte, batchKinds), make([]int64, batchKinds)
	for i := range bodies {
		if bodies[i], decisions[i], err = batchOf(random, time.Now()); err != nil {
			return err
		}
	}
	sums, problems := make([]arrivals, feeds), make([]error, feeds)
	var all sync.WaitGroup
	began := time.Now()
	for f := range feeds {
		all.Go(func() {
			for number := 1; time.Since(began) < c.ingest && problems[f] == nil; number++ {
				kind := (f + number) % batchKinds
				if problems[f] = p.sendBatch(token, f, number, bodies[kind]); problems[f] == nil {
					sums[f].batches, sums[f].decisions = sums[f].batches+1, sums[f].decisions+decisions[kind]
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return c.counted(p, sums, took)
}

// sendBatch sends a batch as a node would. Some batches are sent twice (see repeatEach).
func (p *plane) sendBatch(token string, feed, number int, body []byte) error {
	times := 1
	if number%repeatEach == 0 {
		times = 2
	}
	path := fmt.Sprintf("/v1/batches/%032x/%d", feed+1, number)
	for range times {
		if _, err := p.sendText("PUT", path, body, "Content-Encoding", "gzip", "Content-Type", "application/x-ndjson", "Authorization", "Bearer "+token); err != nil {
			return err
		}
	}
	return nil
}

// controlBench.counted compares the rows of the database with what was sent, and writes a row of
// the table.
func (c *controlBench) counted(p *plane, sums []arrivals, took time.Duration) error {
	var sent arrivals
	for _, s := range sums {
		sent.batches, sent.decisions = sent.batches+s.batches, sent.decisions+s.decisions
	}
	var rows, decisions int64
	if err := p.rows.QueryRow(context.Background(), "SELECT count(*), sum(events)::bigint FROM rate_limit_events").Scan(&rows, &decisions); err != nil {
		return err
	}
	exact := rows == sent.batches*batchLines && decisions == sent.decisions
	perSecond := float64(rows) / took.Seconds()
	text := fmt.Sprintf("%s rows/s, every row and decision once", thousands(perSecond))
	if !exact {
		text = fmt.Sprintf("%s rows/s, but %d rows of %d, and %d decisions of %d", thousands(perSecond), rows, sent.batches*batchLines, decisions, sent.decisions)
	}
	c.reached("events from batches in PostgreSQL", "≥ 20,000 rows/s, exactly once", exact && perSecond >= ingestMin, text,
		fmt.Sprintf("%s rows in %s from %d nodes; each %dth batch sent twice", thousands(float64(rows)), formatSpan(took), feeds, repeatEach))
	return nil
}

// besideEvents compares a Caddy that sends events and usage to a control plane with the same Caddy
// that does not.
func (c *controlBench) besideEvents() error {
	p, err := c.planeAlone()
	if err != nil {
		return err
	}
	secret, err := p.nodeToken()
	if err != nil {
		return err
	}
	token, err := c.file("token", secret+"\n")
	if err != nil {
		return err
	}
	script, err := c.manyUsers(known)
	if err != nil {
		return err
	}
	const site = "\tpenstock {\n\t\tname shop\n\t\tidentify header X-User unverified\n\t\trule api 1000000000/1h\n\t}\n\trespond \"ok\""
	sending := fmt.Sprintf("\tpenstock {\n\t\tname bench\n\t\tcontrol http://%s {\n\t\t\ttoken_file %s\n\t\t\tspool %s\n\t\t}\n\t\tevents\n\t}",
		p.address, token, filepath.Join(c.dir, "spool"))
	systems := make([]*system, 2)
	for i, global := range []string{"", sending} {
		node, url, err := c.caddyNode(caddySetting{global: global, site: site})
		if err != nil {
			return err
		}
		systems[i] = &system{name: []string{"without", "with"}[i], url: url, processes: []*process{node}, traffic: traffic{script: script}}
	}
	return c.paired(p, systems[0], systems[1])
}

// controlBench.paired measures both systems alternately, and compares the two results of each pair.
func (c *controlBench) paired(p *plane, without, with *system) error {
	if err := interleaved(options{rounds: 0}, []*system{without, with}, callers); err != nil {
		return err
	}
	var ratios, cpus []float64
	for i := range c.pairs {
		pair := []*system{without, with}
		if i%2 == 1 {
			pair[0], pair[1] = pair[1], pair[0]
		}
		for _, s := range pair {
			f, err := s.once(c.run, callers)
			if err != nil {
				return err
			}
			s.seen = append(s.seen, f)
		}
		ratios = append(ratios, with.seen[i].perSecond/without.seen[i].perSecond)
		cpus = append(cpus, with.seen[i].total()/without.seen[i].total())
	}
	// After the runs, it takes a few seconds until the usage is in the database.
	if err := p.process.until(planePatience, "has usage", func() bool {
		var admitted int64
		err := p.rows.QueryRow(context.Background(), "SELECT coalesce(sum(admitted), 0)::bigint FROM client_usage").Scan(&admitted)
		return err == nil && admitted > 0
	}); err != nil {
		return err
	}
	ratio := median(ratios)
	c.reached("requests/s of a Caddy with events and usage, beside the same without; control plane and PostgreSQL on the same cores", "≥ 0.98",
		ratio >= besideMin, fmt.Sprintf("%.3f (from %.3f to %.3f), %s requests/s; CPU of the Caddy a request %.3f", ratio, slices.Min(ratios), slices.Max(ratios),
			thousands(of(with.seen, perSecond)), median(cpus)),
		fmt.Sprintf("%d pairs of %v, %s clients, counters in memory", c.pairs, c.run, thousands(known)))
	return nil
}
