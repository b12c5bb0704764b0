// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"fmt"
	"strings"
	"time"
)

// Peer returns how many counters were reported to another region, and when that region's last
// message arrived. The zero time means that none has arrived.
func (a *Agent) Peer(name string) (told uint64, heardAt time.Time) {
	for _, p := range a.o.Peers {
		if p.Name == name {
			told = p.told.Load()
		}
	}
	if h := a.heard[name]; h != nil && h.at.Load() != 0 {
		heardAt = time.UnixMilli(h.at.Load()).UTC()
	}
	return told, heardAt
}

// Metrics returns the agent's metrics as text in Prometheus's format.
func (a *Agent) Metrics(now time.Time) string {
	var b strings.Builder
	head := func(name, help, kind string) {
		fmt.Fprintf(&b, "# HELP penstock_region_gossip_%s %s\n# TYPE penstock_region_gossip_%[1]s %[3]s\n", name, help, kind)
	}
	one := func(name, help string, value uint64) {
		head(name, help, "counter")
		fmt.Fprintf(&b, "penstock_region_gossip_%s %d\n", name, value)
	}
	one("charged_units_total", "Units of other regions that were charged to counters of this one.", a.charged.Load())
	one("invalid_total", "Messages and counters that are not valid under the policy.", a.invalid.Load())
	one("early_total", "Counters of windows that had not begun in this region; they are told again.", a.early.Load())
	one("late_total", "Counters of windows that had ended in this region.", a.late.Load())
	one("dropped_total", "Counters that could not be read or charged: Redis rejected them.", a.failed.Load())
	each := func(name, help, kind string, of func(p *Peer) (value float64, ok bool)) {
		head(name, help, kind)
		for _, p := range a.o.Peers {
			if value, ok := of(p); ok {
				fmt.Fprintf(&b, "penstock_region_gossip_%s{region=%q} %v\n", name, p.Name, value)
			}
		}
	}
	each("told_total", "Counters that another region was told.", "counter", func(p *Peer) (float64, bool) {
		return float64(p.told.Load()), true
	})
	each("failed_total", "Messages that another region did not answer.", "counter", func(p *Peer) (float64, bool) {
		return float64(p.failed.Load()), true
	})
	each("heard_total", "Counters that another region told.", "counter", func(p *Peer) (float64, bool) {
		return float64(a.heard[p.Name].counters.Load()), true
	})
	since := func(millis int64) (float64, bool) {
		return max(0, now.Sub(time.UnixMilli(millis)).Seconds()), millis != 0
	}
	each("age_seconds", "Time since another region told this one what it counts.", "gauge", func(p *Peer) (float64, bool) {
		return since(a.heard[p.Name].at.Load())
	})
	each("told_age_seconds", "Time since another region answered what it was told.", "gauge", func(p *Peer) (float64, bool) {
		return since(p.answered.Load())
	})
	each("told_delay_seconds", "Time from the first change in the last message until another region answered it; 0 without changes.", "gauge",
		func(p *Peer) (float64, bool) { return time.Duration(p.delay.Load()).Seconds(), p.answered.Load() != 0 })
	return b.String()
}
