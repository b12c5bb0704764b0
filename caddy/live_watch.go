// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"slices"

	"github.com/penstock/penstock/internal/enforce/live"
)

// App.files returns the policies of the configuration that were read from files.
func (a *App) files() []*placedPolicy {
	return slices.DeleteFunc(a.inForce(), func(p *placedPolicy) bool { return p.file == "" })
}

// App.watch shows the policies in the metrics and begins to follow the policy files. It also loads
// the edits that were made since the files were first loaded.
func (a *App) watch() error {
	for _, p := range a.inForce() {
		common.Policies.Show(p, p.Current().Document, p.Err)
	}
	var problems []error
	for _, p := range a.files() {
		problems = append(problems, p.Follow())
	}
	return errors.Join(problems...)
}

// App.unwatch stops following the policy files, and removes the policies from the metrics.
func (a *App) unwatch() {
	for _, p := range a.files() {
		_ = p.Unfollow() // for a policy in a file, Unfollow returns no error
	}
	for _, p := range a.inForce() {
		common.Policies.Hide(p)
	}
}

// policyChanged is called when a version of a policy has taken effect.
func (a *App) policyChanged(p *placedPolicy, before, now *live.Version) {
	if before == nil {
		return // the configuration does not run yet
	}
	common.Policies.Show(p, now.Document, p.Err)
	// The log has already named the counters that start at zero.
	a.store.counting.follow(a.countingOfAll())
}

// App.reload loads every policy file again, edited or not. The error lists the problems of
// the rejected files.
func (a *App) reload() error {
	var problems []error
	for _, p := range a.files() {
		problems = append(problems, p.Reload())
	}
	return errors.Join(problems...)
}
