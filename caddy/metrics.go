// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// The metrics of this process. They are no configuration's own, so that a reload does not set them back; each
// configuration registers them in its registry. No label ever names a client: there are as many series as the
// configurations had rules, times the outcomes that have happened or can.
var (
	requestsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_requests_total",
		Help: "Requests by policy, rule and what became of them there.",
	}, []string{"policy", "rule", "outcome"})
	checkSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "penstock_check_duration_seconds",
		Help: "Time that requests spent asking the store.",
		Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
			5e-2, 0.1, 0.25, 1},
	})
	storeErrorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_store_errors_total",
		Help: "Checks that the store did not answer, so that on_error decided.",
	}, []string{"kind"})
	credentialsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_credentials_total",
		Help: "Tokens and API keys that requests came with, by what they were worth.",
	}, []string{"policy", "method", "state"})
	waitsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_waits_total",
		Help: "Requests that waited for a throttle rule, or were to, by how that ended.",
	}, []string{"result"})
	settlementsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_settlements_total",
		Help: "Charges that were corrected when the response was known, or were to be, by how that ended.",
	}, []string{"result"})
	unreadableTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_unreadable_costs_total",
		Help: "Costs that a response did not say, or said absurdly, so that the default was charged.",
	})
	waitingGauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule.",
	}, func() float64 { return float64(lines.Waiting()) })
)

var (
	countersDesc = prometheus.NewDesc("penstock_counters",
		"Counters that the store in memory holds.", nil, nil)
	overflowsDesc = prometheus.NewDesc("penstock_overflow_checks_total",
		"Checks answered by counters that newcomers share because the store in memory is full.", nil, nil)
	breakerDesc = prometheus.NewDesc("penstock_breaker_state",
		"Circuit breaker of the store: 0 closed, 1 open, 2 half-open.", nil, nil)
)

// storeCollector asks the stores in use at each scrape. It belongs to no configuration: after a reload that failed, Caddy
// shows the registry of the configuration that failed, while the one before runs on. During a reload there may be two
// stores; counters are added up, and of two breakers one that is not closed counts.
type storeCollector struct{}

// Describe implements [prometheus.Collector].
func (storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- countersDesc
	ch <- overflowsDesc
	ch <- breakerDesc
}

// Collect implements [prometheus.Collector].
func (storeCollector) Collect(ch chan<- prometheus.Metric) {
	sums, known := make(map[*prometheus.Desc]float64), make(map[*prometheus.Desc]bool)
	stores.Range(func(_, value any) bool {
		store := value.(*pooledStore)
		if store.counters != nil {
			sums[countersDesc] += float64(store.counters())
			sums[overflowsDesc] += float64(store.overflows())
			known[countersDesc], known[overflowsDesc] = true, true
		}
		if store.breaker != nil {
			sums[breakerDesc] = max(sums[breakerDesc], store.breaker())
			known[breakerDesc] = true
		}
		return true
	})
	for desc := range known {
		kind := prometheus.GaugeValue
		if desc == overflowsDesc {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(desc, kind, sums[desc])
	}
}

var metrics = []prometheus.Collector{requestsTotal, checkSeconds, storeErrorsTotal, credentialsTotal, waitsTotal, waitingGauge,
	settlementsTotal, unreadableTotal, storeCollector{}}

// register puts the metrics into a configuration's registry.
func register(registry *prometheus.Registry) error {
	if registry == nil {
		return nil // a context made without a configuration
	}
	var problems []error
	for _, collector := range metrics {
		if err := registry.Register(collector); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// ruleCounters are a ruleset's counters by rule and outcome. Each is looked up when its outcome first happens: ten
// thousand rules would otherwise be a hundred thousand series, most of them 0 for ever. Safe for concurrent use.
type ruleCounters struct {
	policy string
	rules  *core.Ruleset
	// of has a row for each rule, behind one for what the policy itself decides.
	of [][core.OutcomeCount]atomic.Pointer[prometheus.Counter]
}

func newRuleCounters(policy string, rs *core.Ruleset) *ruleCounters {
	return &ruleCounters{policy: policy, rules: rs, of: make([][core.OutcomeCount]atomic.Pointer[prometheus.Counter], rs.Len()+1)}
}

func (c *ruleCounters) inc(rule int, outcome core.Outcome) {
	at := &c.of[rule+1][outcome]
	counter := at.Load()
	if counter == nil {
		name := ""
		if rule >= 0 {
			name = c.rules.RuleName(rule)
		}
		made := requestsTotal.WithLabelValues(c.policy, name, outcome.String())
		counter = &made
		at.Store(counter)
	}
	(*counter).Inc()
}

// credentialCounters are a policy's counters of credentials by way to identify and state. Safe for concurrent use.
type credentialCounters struct {
	policy string
	ways   []string
	of     [][core.CredentialStateCount]atomic.Pointer[prometheus.Counter]
}

// newCredentialCounters names the ways by their word; of several with one word, the second is jwt-2.
func newCredentialCounters(d *policy.Document) *credentialCounters {
	c := &credentialCounters{policy: d.Name}
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

func (c *credentialCounters) inc(way int, state core.CredentialState) {
	at := &c.of[way][state]
	counter := at.Load()
	if counter == nil {
		made := credentialsTotal.WithLabelValues(c.policy, c.ways[way], state.String())
		counter = &made
		at.Store(counter)
	}
	(*counter).Inc()
}
