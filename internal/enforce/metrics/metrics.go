// SPDX-License-Identifier: Apache-2.0

// Package metrics counts the outcomes of requests, under the same names in every front.
//
// # Promise
//
// No label names a client, so the number of series is bounded by the number of rules times the
// number of outcomes. The first count of an outcome creates its series. Every later count takes no
// lock and allocates nothing.
//
// # Price
//
// Counting takes one atomic addition for each rule that applied.
//
// # When not to use it
//
// The metrics cannot show which client was denied. Use the log for that.
package metrics

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Metrics are the metrics that every front has.
type Metrics struct {
	Requests     *prometheus.CounterVec // by policy, rule, outcome
	Denials      *prometheus.CounterVec // by policy, rule, tier
	Endpoints    *prometheus.CounterVec // by policy, rule, endpoint, outcome
	CheckSeconds prometheus.Histogram
	StoreErrors  *prometheus.CounterVec // by kind
	Credentials  *prometheus.CounterVec // by policy, method, state
	Waits        *prometheus.CounterVec // by result
	LoanWaits    *prometheus.CounterVec // by result
	Settlements  *prometheus.CounterVec // by result
	Unreadable   prometheus.Counter
	Reloads      *prometheus.CounterVec // by policy, result
	Policies     *Policies              // in force

	// keyPanics counts panics while keys were loaded, in the whole process.
	keyPanics prometheus.CounterFunc
	// keyReloads count the edits of key files that were accepted and rejected, in the whole
	// process.
	keyReloads [2]prometheus.CounterFunc
}

// New returns metrics that are not registered yet.
func New() *Metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		Requests: vec("penstock_requests_total", "Requests by policy, rule and outcome.",
			"policy", "rule", "outcome"),
		Denials: vec("penstock_denials_total", "Requests that a rule denied, by policy, rule and tier of the client.",
			"policy", "rule", "tier"),
		Endpoints: vec("penstock_endpoint_requests_total", "Requests by policy, rule, path pattern of the rule and outcome.",
			"policy", "rule", "endpoint", "outcome"),
		CheckSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_check_duration_seconds",
			Help: "Time that requests spent waiting for the store.",
			Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
				5e-2, 0.1, 0.25, 1},
		}),
		StoreErrors: vec("penstock_store_errors_total", "Checks that the store did not answer, so that on_error decided.", "kind"),
		Credentials: vec("penstock_credentials_total",
			"Tokens and API keys of requests, by the result of their verification.", "policy", "method", "state"),
		Waits: vec("penstock_waits_total",
			"Requests that waited for a throttle rule, or should have, by how the wait ended.", "result"),
		LoanWaits: vec("penstock_loan_waits_total",
			"Requests that waited for units of other regions, by how the wait ended.", "result"),
		Settlements: vec("penstock_settlements_total",
			"Charges corrected after the response, or that should have been, by result.", "result"),
		Unreadable: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_unreadable_costs_total",
			Help: "Costs missing or invalid in a response or a trusted header, so that the policy's own number was charged."}),
		Reloads: vec("penstock_policy_reloads_total", "Edits of policy files, by result: accepted or refused.",
			"policy", "result"),
		Policies: new(Policies),
		keyPanics: prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "penstock_key_load_panics_total",
			Help: "Loads of a key file or a key set that panicked. The keys that were loaded before stay in force."},
			func() float64 { return float64(credential.Panics()) }),
		keyReloads: [...]prometheus.CounterFunc{
			keyReloads("accepted", func(accepted, _ uint64) uint64 { return accepted }),
			keyReloads("refused", func(_, refused uint64) uint64 { return refused }),
		},
	}
}

// keyReloads returns the counter of the edits of key files that have the given result.
func keyReloads(result string, of func(accepted, refused uint64) uint64) prometheus.CounterFunc {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "penstock_key_reloads_total",
		Help:        "Edited files of API keys, key sets and secrets that were loaded or rejected.",
		ConstLabels: prometheus.Labels{"result": result}},
		func() float64 { return float64(of(credential.Reloads())) })
}

// Collectors returns all metrics, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.Requests, m.Denials, m.Endpoints, m.CheckSeconds, m.StoreErrors, m.Credentials, m.Waits, m.LoanWaits, m.Settlements,
		m.Unreadable, m.Reloads, m.Policies, m.keyPanics, m.keyReloads[0], m.keyReloads[1]}
}

// Followed creates the counters of a policy's edits, so that the first edit is seen as an increase.
func (m *Metrics) Followed(policy string) {
	m.Reloads.WithLabelValues(policy, "accepted")
	m.Reloads.WithLabelValues(policy, "refused")
}

// Reloaded counts an edit of a policy file.
func (m *Metrics) Reloaded(policy string, accepted bool) {
	result := "accepted"
	if !accepted {
		result = "refused"
	}
	m.Reloads.WithLabelValues(policy, result).Inc()
}

// StoreFailed counts a failure of the store after which on_error decided.
func (m *Metrics) StoreFailed(err error) { m.StoreErrors.WithLabelValues(FailureKind(err)).Inc() }

// The metrics that stores report about themselves.
var (
	countersDesc = prometheus.NewDesc("penstock_counters",
		"Counters that the store in memory holds.", nil, nil)
	overflowsDesc = prometheus.NewDesc("penstock_overflow_checks_total",
		"Checks answered by counters that newcomers share because the store in memory is full.", nil, nil)
)

// FailureKind classifies an error of a store's Take, for StoreErrors.
func FailureKind(err error) string {
	var failure *redisstore.Failure
	switch {
	case errors.As(err, &failure):
		return failure.Kind.String()
	case errors.Is(err, counter.ErrInvalid):
		return "invalid"
	case errors.Is(err, counter.ErrOverloaded):
		return redisstore.KindOverloaded.String()
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "other"
	}
}

// lazy is a counter whose series is created when it first counts. Otherwise ten thousand rules
// would have a hundred thousand series, most of which would remain 0.
type lazy struct {
	counter atomic.Pointer[prometheus.Counter]
}

// lazy.inc adds one. At the first count, it calls first(), which looks up the counter.
func (l *lazy) inc(first func() prometheus.Counter) {
	counter := l.counter.Load()
	if counter == nil {
		made := first()
		counter = &made
		l.counter.Store(counter)
	}
	(*counter).Inc()
}

// Rules are a ruleset's counters by rule and outcome. Rules are safe for concurrent use.
type Rules struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	// one row for the policy itself, followed by one for each rule
	of [][core.OutcomeCount]lazy
}

// Rules returns the counters of a policy's ruleset.
func (m *Metrics) Rules(policy string, rs *core.Ruleset) *Rules {
	return &Rules{total: m.Requests, policy: policy, rules: rs, of: make([][core.OutcomeCount]lazy, rs.Len()+1)}
}

// Count counts the outcomes of one request for the ruleset's rules and for the policy itself. Count
// skips an outcome that is [core.OutcomeNone], such as that of a client's penalty if the client has
// none.
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

// Credentials are a policy's counters of credentials, by entry of the list "identify" and by state.
// Credentials are safe for concurrent use.
type Credentials struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	ways   []string
	// a row for each entry of the list "identify", with unchecked after the states
	of [][unchecked + 1]lazy
}

// unchecked is the column for credentials that were not checked for lack of time. Such credentials
// are handled as invalid, but the metric has a separate state for them.
const (
	unchecked     = policy.CredentialStateCount
	uncheckedName = "unchecked"
)

// CredentialsOf returns the counters of a policy and its ruleset. The label of an entry of the list
// "identify" is the name of its method, such as jwt. The label of the second entry with that method
// is jwt-2.
func (m *Metrics) CredentialsOf(d *policyfile.Document, rs *core.Ruleset) *Credentials {
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

// Count counts the states of the credentials that were checked in one request.
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
