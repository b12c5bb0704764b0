// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// Results of calls, as the metric names them.
const (
	callAnswered     = "answered"
	callMalformed    = "malformed"
	callTooLarge     = "too_large"
	callUnauthorized = "unauthorized"
	callBusy         = "busy"
	callGone         = "gone" // the caller disconnected before the answer
	callLate         = "late" // the call was not received in time
	callPanic        = "panic"
)

// bridgeMetrics holds the metrics that every front has, and the bridge's own. No label names a
// client.
type bridgeMetrics struct {
	*metrics.Metrics
	calls                      *prometheus.CounterVec // by result
	questions                  prometheus.Histogram
	answers                    *prometheus.CounterVec // by status
	statuses                   [wire.StatusLate + 1]prometheus.Counter
	answered                   prometheus.Counter     // answered calls
	rls                        *prometheus.CounterVec // by result
	unitsLeased, unitsReturned prometheus.Counter
	tried                      *prometheus.CounterVec // labeled by policy, and by the decisions of the policy in force and of the candidate
}

// statusNames are the names of the values of [wire.Status].
var statusNames = [...]string{"ok", "unavailable", "unknown_version", "invalid", "busy", "loan", "late"}

func newMetrics(b *Bridge, registry *prometheus.Registry) (*bridgeMetrics, error) {
	vec := func(name, help string, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &bridgeMetrics{
		Metrics: b.options.Metrics,
		calls:   vec("penstock_bridge_calls_total", "Calls of filters and users, by result.", "result"),
		questions: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "penstock_bridge_call_items",
			Help: "Questions and settlements in a call.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}}),
		answers: vec("penstock_bridge_answers_total", "Answers to questions and settlements, by status.", "status"),
		rls:     vec("penstock_rls_requests_total", "Requests over Envoy's rate limit protocol, by result.", "result"),
		tried:   shadow.NewTotal(),
	}
	m.unitsLeased = prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_bridge_leased_units_total",
		Help: "Units that filters have taken in advance, or for several requests at once."})
	m.unitsReturned = prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_bridge_returned_units_total",
		Help: "Units that filters have taken and given back."})
	for status, name := range statusNames {
		m.statuses[status] = m.answers.WithLabelValues(name)
	}
	m.answered = m.calls.WithLabelValues(callAnswered)
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule."}, func() float64 { return float64(b.lines.Waiting()) })
	under := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_bridge_calls_under_way",
		Help: "Calls that are being answered, but for those that wait."}, func() float64 { return float64(b.under.Load()) })
	receiving := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_bridge_calls_receiving",
		Help: "Calls that have not come whole yet."}, func() float64 { return float64(b.receiving.Load()) })
	for _, c := range append(append(m.Collectors(), metrics.Build("bridge")...), m.calls, m.questions, m.answers, m.rls, m.tried, m.unitsLeased, m.unitsReturned, waiting, under, receiving,
		metrics.Directories(b.directoryInUse)) {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *bridgeMetrics) settled(end settle.End) { m.Settlements.WithLabelValues(string(end)).Inc() }
