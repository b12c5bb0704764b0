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
	BreakerDesc = prometheus.NewDesc("penstock_breaker_state",
		"Circuit breaker of the store: 0 closed, 1 open, 2 half-open.", nil, nil)
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

// Rules are a ruleset's counters by rule and outcome. Each is looked up when its outcome first happens: ten
// thousand rules would otherwise be a hundred thousand series, most of them 0 for ever. Safe for concurrent use.
type Rules struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	// of has a row for each rule, behind one for what the policy itself decides.
	of [][core.OutcomeCount]atomic.Pointer[prometheus.Counter]
}

// Rules returns the counters of a policy's ruleset.
func (m *Metrics) Rules(policy string, rs *core.Ruleset) *Rules {
	return &Rules{total: m.Requests, policy: policy, rules: rs, of: make([][core.OutcomeCount]atomic.Pointer[prometheus.Counter], rs.Len()+1)}
}

// Inc counts an outcome of a rule, or for -1 of the policy itself.
func (c *Rules) Inc(rule int, outcome core.Outcome) {
	at := &c.of[rule+1][outcome]
	counter := at.Load()
	if counter == nil {
		name := ""
		if rule >= 0 {
			name = c.rules.RuleName(rule)
		}
		made := c.total.WithLabelValues(c.policy, name, outcome.String())
		counter = &made
		at.Store(counter)
	}
	(*counter).Inc()
}

// Credentials are a policy's counters of credentials by way to identify and state. Safe for concurrent use.
type Credentials struct {
	total  *prometheus.CounterVec
	policy string
	ways   []string
	of     [][core.CredentialStateCount]atomic.Pointer[prometheus.Counter]
}

// CredentialsOf returns the counters of a policy. It names the ways by their word; of several with one word, the second is
// jwt-2.
func (m *Metrics) CredentialsOf(d *policy.Document) *Credentials {
	c := &Credentials{total: m.Credentials, policy: d.Name}
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
	c.of = make([][core.CredentialStateCount]atomic.Pointer[prometheus.Counter], len(c.ways))
	return c
}

// Inc counts what a credential was worth.
func (c *Credentials) Inc(way int, state core.CredentialState) {
	at := &c.of[way][state]
	counter := at.Load()
	if counter == nil {
		made := c.total.WithLabelValues(c.policy, c.ways[way], state.String())
		counter = &made
		at.Store(counter)
	}
	(*counter).Inc()
}
