// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// LatencyKeysMax bounds the number of histograms between two calls of TakeLatencies. Further keys
// of a policy share one histogram, whose endpoint is [EndpointOther].
const LatencyKeysMax = 8192

// EndpointOther is the endpoint of requests that are counted together.
const EndpointOther = "other"

// LatencyKey identifies a histogram. The key's texts must stay valid.
type LatencyKey struct {
	Policy, Rule string
	Endpoint     string // a path pattern of the rule; "" for a rule without one
}

// Buckets is the number of buckets of a histogram. There are four for each power of two, from 1 µs
// to more than a minute. So from 4 µs on, the width of a bucket is at most a quarter of its least
// value.
const Buckets = 104

// BucketOf returns the bucket of a number of microseconds. Numbers beyond the bounds are in the
// first or the last bucket.
func BucketOf(micros int64) int {
	if micros < 4 {
		return int(max(micros, 0))
	}
	power := bits.Len64(uint64(micros)) - 1
	return min(4*(power-1)+int(micros>>(power-2)&3), Buckets-1)
}

// BucketBounds returns the bounds of a bucket in microseconds: from is its least value, and to is
// the first value beyond it.
func BucketBounds(bucket int) (from, to int64) {
	if bucket < 4 {
		return int64(bucket), int64(bucket) + 1
	}
	scale, sub := bucket/4-1, int64(bucket%4)
	return (4 + sub) << scale, (5 + sub) << scale
}

// histogram counts decisions by their latency. The first element counts admitted requests, the
// second denied ones.
type histogram [2][Buckets]atomic.Uint64

// LatencyCount is a bucket with the numbers of its decisions. A bucket without any is left out.
type LatencyCount struct {
	Bucket           int
	Admitted, Denied uint64
}

// LatencyRow is a histogram with its key.
type LatencyRow struct {
	LatencyKey
	Counts []LatencyCount
}

// latencies are the histograms of a meter. Counting takes the lock for reading.
type latencies struct {
	mu sync.RWMutex
	of map[LatencyKey]*histogram
}

// CountLatency counts a decision and the time that it took.
func (m *Meter) CountLatency(k *LatencyKey, micros int64, denied bool) {
	if !m.On() {
		return
	}
	kind := 0
	if denied {
		kind = 1
	}
	m.latencies.addDecisions(k, BucketOf(micros), kind, 1)
}

func (l *latencies) addDecisions(k *LatencyKey, bucket, kind int, n uint64) {
	l.mu.RLock()
	h := l.of[*k]
	if h != nil {
		h[kind][bucket].Add(n)
	}
	l.mu.RUnlock()
	if h != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[LatencyKey]*histogram)
	}
	own := *k
	if l.of[own] == nil && len(l.of) >= LatencyKeysMax {
		own.Rule, own.Endpoint = "", EndpointOther
	}
	if l.of[own] == nil {
		l.of[own] = new(histogram)
	}
	l.of[own][kind][bucket].Add(n)
}

// TakeLatencies returns all histograms, in no order, and begins new ones.
func (m *Meter) TakeLatencies() (rows []LatencyRow) {
	m.latencies.mu.Lock()
	taken := m.latencies.of
	m.latencies.of = nil
	m.latencies.mu.Unlock()
	for k, h := range taken {
		row := LatencyRow{LatencyKey: k}
		for bucket := range Buckets {
			c := LatencyCount{bucket, h[0][bucket].Load(), h[1][bucket].Load()}
			if c.Admitted > 0 || c.Denied > 0 {
				row.Counts = append(row.Counts, c)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// ReturnLatencies adds rows of TakeLatencies back to the meter, if they could not be stored
// elsewhere.
func (m *Meter) ReturnLatencies(rows []LatencyRow) {
	for i := range rows {
		for _, c := range rows[i].Counts {
			for kind, n := range []uint64{c.Admitted, c.Denied} {
				if n > 0 {
					m.latencies.addDecisions(&rows[i].LatencyKey, c.Bucket, kind, n)
				}
			}
		}
	}
}
