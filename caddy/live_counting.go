// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
)

// describeCounting returns the windows, algorithms and number of shards of a rule across all tiers,
// such as "60s sw, 86400s fw, 8 shards". These three properties are part of the keys, so a rule
// gets new counters if a reload changes one of them.
func describeCounting(rule *policyfile.Rule) string {
	var ways []string
	count := func(limits policyfile.Words) {
		for _, text := range limits {
			if limit, err := counter.ParseLimit(text); err == nil {
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

// counting records, for one store, how the rules of the running configuration count. The zero
// counting has no rules. A counting is safe for concurrent use.
type counting struct {
	mu sync.Mutex
	as map[ruleName]string
}

// counting.change replaces the recorded rules at the start of a configuration, and logs the rules
// whose counters start at zero.
func (c *counting) change(next map[ruleName]string, logger *zap.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, now := range next {
		if before, known := c.as[name]; known && before != now {
			logger.Warn("the reload changed the window, algorithm or shards of the rule: its counters start at zero",
				zap.String("policy", name.namespace), zap.String("rule", name.rule), zap.String("before", before),
				zap.String("now", now))
		}
	}
	c.as = next
}

// counting.follow replaces the recorded rules after an edit of a policy file.
func (c *counting) follow(next map[ruleName]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.as = next
}
