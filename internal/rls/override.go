// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"fmt"
	"sync"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock/penstock/core"
)

// overrideRule is what stands for a rule where Envoy sends a limit: in keys, metrics and header fields.
const overrideRule = "envoy-override"

// overridesMax is how many different limits of Envoy's are remembered: making one ready takes some microseconds.
const overridesMax = 1024

// overrides are rulesets of the limits that Envoy sends. The zero value is ready; it is safe for concurrent use.
type overrides struct {
	mu    sync.Mutex
	known map[override]*core.Ruleset
}

// alone returns the policy without its rules, for a domain that none of them is for.
func (o *overrides) alone(policy *core.Ruleset) *core.Ruleset {
	asked := overrideOf(policy)
	o.mu.Lock()
	defer o.mu.Unlock()
	rs, _ := o.ready(asked) // of no limit there is nothing to be wrong
	return rs
}

// override is a limit that Envoy sends under a policy, or that policy with no limit.
type override struct {
	name    string
	onError core.OnError
	headers core.HeaderFamilies
	limited bool
	count   int64
	unit    envoytype.RateLimitUnit
	several uint32
}

func overrideOf(policy *core.Ruleset) override {
	return override{name: policy.Name(), onError: policy.OnError(), headers: policy.Families()}
}

// of returns the ruleset of a limit: one fixed window, counted by all of the descriptor, in the namespace of the policy.
func (o *overrides) of(policy *core.Ruleset, source *ratelimit.RateLimitDescriptor_RateLimitOverride) (*core.Ruleset, error) {
	asked := overrideOf(policy)
	asked.limited, asked.count, asked.unit, asked.several = true, int64(source.GetRequestsPerUnit()), source.GetUnit(), 1
	if multiplier := source.GetUnitMultiplier(); multiplier != nil {
		asked.several = multiplier.GetValue()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready(asked)
}

// ready returns the ruleset, a known one if it can. The caller holds the lock.
func (o *overrides) ready(asked override) (*core.Ruleset, error) {
	if rs, ok := o.known[asked]; ok {
		return rs, nil
	}
	rs, err := asked.compile()
	if err != nil {
		return nil, err
	}
	if o.known == nil || len(o.known) >= overridesMax {
		o.known = make(map[override]*core.Ruleset)
	}
	o.known[asked] = rs
	return rs, nil
}

func (o *override) compile() (*core.Ruleset, error) {
	p := core.Policy{Name: o.name, OnError: o.onError, Headers: o.headers}
	if !o.limited {
		return core.Compile(p)
	}
	limit, err := o.limit()
	if err != nil {
		return nil, err
	}
	p.Rules = []core.Rule{{Name: overrideRule, Per: []core.Dimension{{Kind: core.PerAttr, Name: attrEntries}},
		Limits: []core.Limit{limit}}}
	return core.Compile(p)
}

// limit returns what Envoy asks for. Its day, week and month are spans counted from 1970, as those of envoyproxy/ratelimit
// are; a year is longer than any window, and is the calendar's.
func (o *override) limit() (core.Limit, error) {
	span := spanOf(o.unit)
	switch {
	case o.unit == envoytype.RateLimitUnit_YEAR && o.several == 1:
		return core.NewCalendarLimit(o.count, core.CalendarYear)
	case span == 0 || o.several == 0 || core.Micros(o.several) > core.WindowMax/span:
		return core.Limit{}, fmt.Errorf("limit of %d per %d %s: a window is 1 second to 31 days, or 1 year", o.count, o.several,
			o.unit)
	}
	return core.NewLimit(core.FixedWindow, o.count, span*core.Micros(o.several), 0)
}
