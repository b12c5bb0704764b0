// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"fmt"
	"sync"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// overrideRule is the rule name of a limit that Envoy sends, in keys, metrics and header fields.
const overrideRule = "envoy-override"

// overridesMax bounds the number of Envoy's limits that are remembered. Compiling one takes a few
// microseconds.
const overridesMax = 1024

// overrides caches rulesets for the limits that Envoy sends. The zero value is ready to use. The
// type is safe for concurrent use.
type overrides struct {
	mu    sync.Mutex
	known map[override]*core.Ruleset
}

// overrides.alone returns the policy without its rules, for a domain that no rule
// matches.
func (o *overrides) alone(policy *core.Ruleset) *core.Ruleset {
	asked := overrideOf(policy)
	o.mu.Lock()
	defer o.mu.Unlock()
	rs, _ := o.ready(asked) // a policy without a limit causes no error
	return rs
}

// override identifies a cached ruleset: a policy and a limit that Envoy sends, or only the policy.
type override struct {
	name    string
	onError counter.OnError
	headers policy.HeaderFamilies
	limited bool
	count   int64
	unit    envoytype.RateLimitUnit
	several uint32
}

func overrideOf(policy *core.Ruleset) override {
	return override{name: policy.Name(), onError: policy.OnError(), headers: policy.Families()}
}

// rulesetOf returns the ruleset of a limit: one fixed window in the policy's
// namespace, with a counter for all entries of the descriptor.
func (o *overrides) rulesetOf(policy *core.Ruleset, source *ratelimit.RateLimitDescriptor_RateLimitOverride) (*core.Ruleset, error) {
	asked := overrideOf(policy)
	asked.limited, asked.count, asked.unit, asked.several = true, int64(source.GetRequestsPerUnit()), source.GetUnit(), 1
	if multiplier := source.GetUnitMultiplier(); multiplier != nil {
		asked.several = multiplier.GetValue()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready(asked)
}

// overrides.ready returns the ruleset, from the cache if possible. The caller holds the lock.
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
	p := policy.Policy{Name: o.name, OnError: o.onError, Headers: o.headers}
	if !o.limited {
		return core.Compile(p)
	}
	limit, err := o.limit()
	if err != nil {
		return nil, err
	}
	p.Rules = []policy.Rule{{Name: overrideRule, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: attrEntries}},
		Limits: []counter.Limit{limit}}}
	return core.Compile(p)
}

// override.limit returns the limit that Envoy sends. A day, week or month is a window of fixed
// length counted from 1970, as in envoyproxy/ratelimit. A year would exceed the longest window,
// so it becomes a calendar year.
func (o *override) limit() (counter.Limit, error) {
	span := spanOf(o.unit)
	switch {
	case o.unit == envoytype.RateLimitUnit_YEAR && o.several == 1:
		return counter.NewCalendarLimit(o.count, counter.CalendarYear)
	case span == 0 || o.several == 0 || counter.Micros(o.several) > counter.WindowMax/span:
		return counter.Limit{}, fmt.Errorf("limit of %d per %d %s: a window is 1 second to 31 days, or 1 year", o.count, o.several,
			o.unit)
	}
	return counter.NewLimit(counter.FixedWindow, o.count, span*counter.Micros(o.several), 0)
}
