// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/enforce/live"
)

var policyReloadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "penstock_policy_reloads_total",
	Help: "Edits of policy files, by result: accepted or refused.",
}, []string{"policy", "result"})

func init() { collectors = append(collectors, policyReloadsTotal) }

// countEdit counts an edit of a policy file.
func countEdit(policy string, accepted bool) {
	result := "accepted"
	if !accepted {
		result = "refused"
	}
	policyReloadsTotal.WithLabelValues(policy, result).Inc()
}

// files returns the policies of the configuration that were read from files.
func (a *App) files() []*placedPolicy {
	return slices.DeleteFunc(a.inForce(), func(p *placedPolicy) bool { return p.file == "" })
}

// watch begins to follow the policy files. It loads edits made since they were first loaded.
func (a *App) watch() error {
	var problems []error
	for _, p := range a.files() {
		a.show(p, versionOf(p.Current().Document))
		problems = append(problems, p.Follow())
	}
	return errors.Join(problems...)
}

// unwatch ends following the policy files.
func (a *App) unwatch() {
	for _, p := range a.files() {
		_ = p.Unfollow() // Unfollow of a file returns no error
		a.show(p, fileVersion{})
	}
}

// show replaces the version of a policy file in the metric.
func (a *App) show(p *placedPolicy, now fileVersion) {
	a.mu.Lock()
	before := p.shown
	p.shown = now
	a.mu.Unlock()
	filesInForce.change(before, now)
}

// changed is called when a version of a policy has come into force.
func (a *App) changed(p *placedPolicy, before, now *live.Version) {
	if before == nil {
		return // the configuration does not run yet
	}
	a.show(p, versionOf(now.Document))
	// The log has already named the counters that start at zero.
	a.store.counting.follow(a.counting())
}

// reload loads every policy file again, edited or not. The error lists the problems of the rejected
// files.
func (a *App) reload() error {
	var problems []error
	for _, p := range a.files() {
		problems = append(problems, p.Reload())
	}
	return errors.Join(problems...)
}
