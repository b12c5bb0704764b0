// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/penstock/penstock/internal/policy"
)

var policyReloadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "penstock_policy_reloads_total",
	Help: "Edited policy files that were taken over or refused.",
}, []string{"policy", "result"})

func init() { metrics = append(metrics, policyReloadsTotal) }

// policyFile is a policy file in force. Once the app runs, an edited file takes the place of the edition that is in
// force, and one with an error is refused while that stays.
type policyFile struct {
	path     string
	place    string                       // where the file is named: the app, or a site
	complete func(*policy.Document) error // fills in what the file leaves to the block that names it

	enforced *enforced
	watcher  *policy.Watcher       // nil while the app does not run
	refused  atomic.Pointer[error] // what was wrong with the last edit; nil if it was taken over
	told     fileVersion           // what the metric says of it; none while the app does not run
}

// tell makes the metric say which version of the file is in force.
func (f *policyFile) tell(now fileVersion) {
	filesInForce.change(f.told, now)
	f.told = now
}

// openFile compiles a policy file and remembers to watch it.
func (a *App) openFile(f *policyFile) (*enforced, error) {
	path, err := resolvePath(f.path)
	if err != nil {
		return nil, err
	}
	f.path = path // what is said of the file names the one that was meant
	d, err := policy.Load(path)
	if err == nil {
		err = f.complete(d)
	}
	if err != nil {
		return nil, err
	}
	if f.enforced, err = a.compile(d, f.place); err != nil {
		return nil, err
	}
	for _, known := range a.files {
		if known.enforced == f.enforced { // a site that is served by two listeners names it twice
			return f.enforced, nil
		}
	}
	a.files = append(a.files, f)
	return f.enforced, nil
}

// watch begins to follow the policy files. What was edited since they were loaded is taken over.
func (a *App) watch() error {
	var problems []error
	for _, f := range a.files {
		f.tell(versionOf(f.enforced.current.Load().document))
		var err error
		f.watcher, err = policy.Watch(f.path, func(d *policy.Document, err error) { a.edited(f, d, err) })
		if err != nil {
			problems = append(problems, err)
			continue
		}
		_ = f.watcher.Reload() // an error is in the log, and what was loaded is in force
	}
	return errors.Join(problems...)
}

func (a *App) unwatch() {
	for _, f := range a.files {
		if f.watcher != nil {
			_ = f.watcher.Close() // ends it; there is no error to meet
		}
		f.tell(fileVersion{})
	}
}

// edited takes an edited policy file over, or says why it does not.
func (a *App) edited(f *policyFile, d *policy.Document, err error) {
	before := f.enforced.current.Load().document
	if err == nil {
		err = f.complete(d)
	}
	var changes policy.Changes
	if err == nil {
		changes, err = a.replace(f, d)
	}
	if err != nil {
		a.refuse(f, before, err)
		return
	}
	mended := f.refused.Swap(nil) != nil
	if f.enforced.current.Load().document == before { // it says the same
		if mended {
			a.logger.Info("the policy file says again what is in force", zap.String("file", f.path),
				zap.String("policy", d.Name), zap.String("version", before.Version()))
		}
		return
	}
	policyReloadsTotal.WithLabelValues(d.Name, "accepted").Inc()
	f.tell(versionOf(d))
	a.logger.Info("the edited policy file is in force", zap.String("file", f.path), zap.String("policy", d.Name),
		zap.String("version", d.Version()), zap.String("changes", changes.String()))
}

// refuse leaves the policy before in force, and says why.
func (a *App) refuse(f *policyFile, before *policy.Document, err error) {
	f.refused.Store(&err)
	policyReloadsTotal.WithLabelValues(before.Name, "refused").Inc()
	fields := []zap.Field{zap.String("file", f.path), zap.String("version", before.Version()), zap.Error(err)}
	if panicked, ok := errors.AsType[*policy.PanicError](err); ok {
		fields = append(fields, zap.ByteString("stack", panicked.Stack))
	}
	a.logger.Error("the edited policy file is refused; the policy before stays in force", fields...)
}

// replace puts the document in the place of the edition in force, and says what is new about it; nothing if it is the
// same. An error changes nothing.
func (a *App) replace(f *policyFile, d *policy.Document) (policy.Changes, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owners, counted, taken := maps.Clone(a.owners), maps.Clone(a.counted), false
	defer func() {
		if !taken { // or it panics
			a.owners, a.counted = owners, counted
		}
	}()
	before := f.enforced.current.Load()
	for i := range before.ruleset.Len() {
		name := ruleName{before.document.Name, before.ruleset.RuleName(i)}
		delete(a.owners, name)
		delete(a.counted, name)
	}
	now, owner, err := a.edition(d, f.place)
	if err == nil {
		err = a.claim(now, owner)
	}
	var changes policy.Changes
	if err == nil {
		changes = policy.Diff(before.document, d)
	}
	if err != nil || changes.Empty() && before.document.Version() == d.Version() {
		if now != nil {
			err = errors.Join(err, now.verifiers.close())
		}
		return policy.Changes{}, err
	}
	taken = true
	now.warn(a.logger)
	f.enforced.current.Store(now)
	_ = before.verifiers.close()                   // requests that began with them go on with their last keys
	a.store.counting.follow(maps.Clone(a.counted)) // what begins anew is among the changes
	return changes, nil
}

// reload reads every policy file again, edited or not. The error lists what is wrong with those that are refused.
func (a *App) reload() error {
	var problems []error
	for _, f := range a.files {
		if f.watcher == nil {
			continue
		}
		if err := f.watcher.Reload(); err != nil {
			problems = append(problems, err)
		} else if refused := f.refused.Load(); refused != nil {
			problems = append(problems, *refused)
		}
	}
	return errors.Join(problems...)
}

// resolvePath replaces the placeholders in the path of a policy file.
func resolvePath(path string) (string, error) {
	resolved, err := caddy.NewReplacer().ReplaceOrErr(path, true, true)
	if err != nil {
		return "", fmt.Errorf("policy %q: %w", path, err)
	}
	return resolved, nil
}
