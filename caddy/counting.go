// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// countedAs says by which windows, algorithms and shards a rule counts, for clients of whatever tier: "60s sw, 86400s fw, 8 shards".
// It stands in the keys, so a rule that counts otherwise after a reload has new counters.
func countedAs(rule *policy.Rule) string {
	var ways []string
	count := func(limits policy.Words) {
		for _, text := range limits {
			if limit, err := core.ParseLimit(text); err == nil {
				ways = append(ways, limit.WindowLabel()+" "+limit.Algorithm().Label())
			}
		}
	}
	count(rule.Limit)
	for _, limits := range rule.Tiers {
		count(limits)
	}
	slices.Sort(ways)
	as := strings.Join(slices.Compact(ways), ", ")
	if rule.Shards != nil {
		as += ", " + strconv.Itoa(*rule.Shards) + " shards"
	}
	return as
}

// counting remembers, for one store, how the rules of the running configuration are counted. The zero counting knows of
// none. Safe for concurrent use.
type counting struct {
	mu sync.Mutex
	as map[ruleName]string
}

// change takes over the rules of the configuration that starts, and says which of them begin with new counters.
func (c *counting) change(next map[ruleName]string, logger *zap.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, now := range next {
		if before, known := c.as[name]; known && before != now {
			logger.Warn("the rule counts by another window, algorithm or number of shards than before the reload: its counters of those start afresh",
				zap.String("policy", name.namespace), zap.String("rule", name.rule), zap.String("before", before),
				zap.String("now", now))
		}
	}
	c.as = next
}

// follow takes over the rules as a policy file says them that was edited.
func (c *counting) follow(next map[ruleName]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.as = next
}
