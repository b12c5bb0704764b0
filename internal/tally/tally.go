// SPDX-License-Identifier: Apache-2.0

// Package tally counts what becomes of requests, under the same names in every front.
//
// # Promise
//
// No label ever names a client: there are as many series as the policies had rules, times the outcomes that have happened
// or can. Counting an outcome that has happened before takes no lock and allocates nothing.
//
// # Price
//
// An atomic addition for each rule in play.
//
// # When not to use it
//
// To find out who was refused: that is the log's.
package tally

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/redisstore"
)

// Metrics are those that every front has.
type Metrics struct {
	Requests     *prometheus.CounterVec // by policy, rule, outcome
	CheckSeconds prometheus.Histogram
	StoreErrors  *prometheus.CounterVec // by kind
	Credentials  *prometheus.CounterVec // by policy, method, state
	Waits        *prometheus.CounterVec // by result
	Settlements  *prometheus.CounterVec // by result
	Unreadable   prometheus.Counter
}

// New returns metrics that are in no registry yet.
func New() *Metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		Requests: vec("penstock_requests_total", "Requests by policy, rule and what became of them there.",
			"policy", "rule", "outcome"),
		CheckSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_check_duration_seconds",
			Help: "Time that requests spent asking the store.",
			Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
				5e-2, 0.1, 0.25, 1},
		}),
		StoreErrors: vec("penstock_store_errors_total", "Checks that the store did not answer, so that on_error decided.", "kind"),
		Credentials: vec("penstock_credentials_total",
			"Tokens and API keys that requests came with, by what they were worth.", "policy", "method", "state"),
		Waits: vec("penstock_waits_total",
			"Requests that waited for a throttle rule, or were to, by how that ended.", "result"),
		Settlements: vec("penstock_settlements_total",
			"Charges that were corrected when the response was known, or were to be, by how that ended.", "result"),
		Unreadable: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_unreadable_costs_total",
			Help: "Costs that a response or a trusted header did not say, or said absurdly, so that the policy's own number was charged."}),
	}
}

// Collectors returns all of them, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.Requests, m.CheckSeconds, m.StoreErrors, m.Credentials, m.Waits, m.Settlements, m.Unreadable}
}

// What stores tell of themselves.
var (
	CountersDesc = prometheus.NewDesc("penstock_counters",
		"Counters that the store in memory holds.", nil, nil)
	OverflowsDesc = prometheus.NewDesc("penstock_overflow_checks_total",
		"Checks answered by counters that newcomers share because the store in memory is full.", nil, nil)
)

// FailureKind names what an error of a store's Take was, for StoreErrors.
func FailureKind(err error) string {
	var failure *redisstore.Failure
	switch {
	case errors.As(err, &failure):
		return failure.Kind.String()
	case errors.Is(err, core.ErrInvalid):
		return "invalid"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "other"
	}
}

// lazy is a counter that is looked up when what it counts first happens: ten thousand rules would otherwise be a hundred
// thousand series, most of them 0 for ever.
type lazy struct {
	counter atomic.Pointer[prometheus.Counter]
}

// inc counts one. first looks the counter up.
func (l *lazy) inc(first func() prometheus.Counter) {
	counter := l.counter.Load()
	if counter == nil {
		made := first()
		counter = &made
		l.counter.Store(counter)
	}
	(*counter).Inc()
}

// Rules are a ruleset's counters by rule and outcome. Safe for concurrent use.
type Rules struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	// of has a row for each rule, behind one for what the policy itself decides.
	of [][core.OutcomeCount]lazy
}

// Rules returns the counters of a policy's ruleset.
func (m *Metrics) Rules(policy string, rs *core.Ruleset) *Rules {
	return &Rules{total: m.Requests, policy: policy, rules: rs, of: make([][core.OutcomeCount]lazy, rs.Len()+1)}
}

// Count counts what became in one request of the ruleset's rules, and of what the policy itself decides, but for the
// penalty of a client who has none.
func (c *Rules) Count(outcomes []core.RuleOutcome) {
	for i := range outcomes {
		if o := &outcomes[i]; o.Ruleset == c.rules && o.Outcome != core.OutcomeNone {
			c.inc(o.Index, o.Outcome)
		}
	}
}

func (c *Rules) inc(rule int, outcome core.Outcome) {
	c.of[rule+1][outcome].inc(func() prometheus.Counter {
		name := ""
		if rule >= 0 {
			name = c.rules.RuleName(rule)
		}
		return c.total.WithLabelValues(c.policy, name, outcome.String())
	})
}

// Credentials are a policy's counters of credentials by way to identify and state. Safe for concurrent use.
type Credentials struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	ways   []string
	// of has a row for each way, with unchecked behind the states.
	of [][unchecked + 1]lazy
}

// unchecked is where credentials are counted that there was no time for, under a name of their own: what they are worth is
// not known, and they are dealt with as invalid.
const (
	unchecked     = core.CredentialStateCount
	uncheckedName = "unchecked"
)

// CredentialsOf returns the counters of a policy and its ruleset. It names the ways by their word; of several with one
// word, the second is jwt-2.
func (m *Metrics) CredentialsOf(d *policy.Document, rs *core.Ruleset) *Credentials {
	c := &Credentials{total: m.Credentials, policy: d.Name, rules: rs}
	counts := make(map[string]int)
	for i := range d.Identify {
		word := "other"
		switch {
		case d.Identify[i].JWT != nil:
			word = "jwt"
		case d.Identify[i].APIKey != nil:
			word = "api_key"
		}
		if counts[word]++; counts[word] > 1 {
			word += "-" + strconv.Itoa(counts[word])
		}
		c.ways = append(c.ways, word)
	}
	c.of = make([][unchecked + 1]lazy, len(c.ways))
	return c
}

// Count counts what the credentials were worth that the ruleset looked at in one request.
func (c *Credentials) Count(used []core.CredentialUse) {
	for i := range used {
		u := &used[i]
		if u.Ruleset != c.rules {
			continue
		}
		state := int(u.State)
		if u.Unchecked {
			state = unchecked
		}
		c.of[u.Method][state].inc(func() prometheus.Counter {
			name := uncheckedName
			if state != unchecked {
				name = u.State.String()
			}
			return c.total.WithLabelValues(c.policy, c.ways[u.Method], name)
		})
	}
}
