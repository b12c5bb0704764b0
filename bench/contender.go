// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// unlimited is a limit that is never reached.
const unlimited = 1_000_000_000

// The limit and the requests that show how many requests a contender admits.
const (
	allowed = 1_000 // of one client in an hour
	asked   = 3_000
	askers  = 12
	pace    = 1_500 // requests per second, over all nodes
)

// ask sends one request to a node and reports whether it was admitted.
type ask func() (admitted bool, err error)

// contender is one of the systems that are compared.
type contender struct {
	name string
	// start starts the given number of nodes with a limit per hour, or per minute if the limit must
	// not be reached.
	start func(b *bench, limit, nodes int) (*system, error)
	// unasked means that the number of admitted requests is not measured. For example, a baseline
	// admits every request.
	unasked bool
	// earlier holds the cells of the table's row, except for the name, from an earlier measurement
	// on a machine of the same kind. They are shown if the rival is not installed.
	earlier []string
	// seen is the measured system, or nil if the contender is not installed.
	seen *system
	// The fields named one and three are the numbers of requests that one node and three nodes
	// admit under a limit of 1,000.
	one, three string
}

// compare measures the contenders in turn. It then measures how many requests each of them admits.
func compare(o options, all []*contender, connections int) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	var systems []*system
	for _, c := range all {
		if c.seen, err = c.start(b, unlimited, 1); isAbsent(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.seen.name = c.name
		systems = append(systems, c.seen)
	}
	if err := interleaved(o, systems, connections); err != nil {
		return err
	}
	b.close()
	for _, c := range all {
		if c.seen == nil || c.unasked {
			continue
		}
		for _, nodes := range []int{1, 3} {
			if o.quick && nodes == 1 {
				continue
			}
			n, err := c.admits(o, nodes)
			if err != nil {
				return fmt.Errorf("%s, %d nodes: %w", c.name, nodes, err)
			}
			if nodes == 1 {
				c.one = n
			} else {
				c.three = n
			}
		}
	}
	return nil
}

// contender.admits sends requests to the nodes in turn, under a limit of 1,000 per hour, and
// returns how many requests are admitted.
func (c *contender) admits(o options, nodes int) (string, error) {
	b, err := newBench(o)
	if err != nil {
		return "", err
	}
	defer b.close()
	s, err := c.start(b, allowed, nodes)
	if err != nil {
		return "", err
	}
	if len(s.nodes) != nodes {
		return "", fmt.Errorf("it has %d nodes", len(s.nodes))
	}
	// Limits aligned to the clock restart at the full hour.
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < time.Minute {
		time.Sleep(left + time.Second)
	}
	admitted, err := steady(s.nodes, asked, askers, pace)
	return thousands(float64(admitted)), err
}

// steady sends requests to the nodes in turn and returns how many were admitted. The argument named
// times is the number of requests, and perSecond is their rate.
func steady(nodes []ask, times, askers, perSecond int) (int, error) {
	var admitted, next atomic.Int64
	failures := make([]error, askers)
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range askers {
		wait.Go(func() {
			for {
				turn := int(next.Add(1) - 1)
				if turn >= times {
					return
				}
				time.Sleep(time.Until(begin.Add(time.Duration(turn) * time.Second / time.Duration(perSecond))))
				ok, err := nodes[turn%len(nodes)]()
				if failures[i] = err; err != nil {
					return
				}
				if ok {
					admitted.Add(1)
				}
			}
		})
	}
	wait.Wait()
	return int(admitted.Load()), errors.Join(failures...)
}

// describe writes a table of the comparison. Its figures in the column × are relative to the first
// system.
func describe(s *section, all []*contender) {
	s.table("", "requests/s", "×", "p50 µs", "CPU µs/request", "of it", "Redis calls/request", "admitted of 1,000 allowed: one node", "three nodes")
	base := all[0].seen
	for _, c := range all {
		if c.seen == nil {
			if c.earlier == nil {
				s.row(c.name, "not installed", "", "", "", "", "", "", "")
				continue
			}
			s.row(append([]string{c.name + " (not installed; **measured earlier**)"}, c.earlier...)...)
			continue
		}
		seen := c.seen.seen
		calls := ""
		if c.seen.redis != "" {
			calls = small(of(seen, redisUsed))
		}
		s.row(c.name, thousands(of(seen, perSecond)), fmt.Sprintf("%.2f", of(seen, perSecond)/of(base.seen, perSecond)),
			thousands(of(seen, p50Micros)), fmt.Sprintf("%.1f", of(seen, totalCPU)), c.seen.parts(), calls, c.one, c.three)
	}
}

// thousands writes a whole number with commas.
func thousands(f float64) string {
	text := fmt.Sprintf("%.0f", f)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// small writes a figure that can be far below one.
func small(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f >= 0.1:
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.2g", f)
}
