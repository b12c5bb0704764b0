// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// verifiers holds the verifiers of all configurations. Key sets and cached tokens survive a reload
// that does not change their settings.
var verifiers = live.NewVerifiers(storeLogger())

// placedPolicy is a policy of one configuration and the place of its definition.
type placedPolicy struct {
	*live.Policy
	place string // the app or the site
	file  string // "" for rules in the Caddyfile
}

// ruleName is the full name of a rule.
type ruleName struct{ namespace, rule string }

// App.open puts a policy into force. A policy that is defined twice in the same place, such
// as in a site with two listeners, is opened only once, so that a request is charged only once. A
// rule name that another policy in the namespace uses is an error.
func (a *App) open(source live.Source, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	document, err := source.Load()
	if err != nil {
		return nil, err
	}
	p := &placedPolicy{place: place, file: source.String()}
	completeOne := func(d *policyfile.Document) error {
		if err := a.applyDirectory(d); err != nil {
			return err
		}
		if err := complete(d); err != nil {
			return err
		}
		a.nameRules(d, p)
		return nil
	}
	if err := live.CompleteAll(document, completeOne); err != nil {
		return nil, err
	}
	text, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("policy %q: %w", document.Name, err)
	}
	key := place + "\x00" + string(text)
	if known := a.knownPolicy(key); known != nil {
		return known.Policy, nil
	}
	p.Policy, err = live.Open(live.Options{Source: source, First: document,
		Fronts:    []lint.Front{lint.FrontCaddy},
		Region:    a.Region,
		Verifiers: verifiers, Metrics: common, Logger: a.slogger(),
		Complete: completeOne,
		Admit:    func(next *live.Version) error { return a.claimRules(p, next) },
		Changed:  func(before, now *live.Version) { a.policyChanged(p, before, now) },
		Edited:   common.Reloaded})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policiesByText[key] = p
	return p.Policy, nil
}

// knownPolicy returns the policy with the given key, which contains its place and text, or nil.
func (a *App) knownPolicy(key string) *placedPolicy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.policiesByText[key]
}

// App.slogger returns the app's logger for packages that use slog.
func (a *App) slogger() *slog.Logger {
	return slog.New(zapslog.NewHandler(a.logger.Core(), zapslog.WithName(a.logger.Name()),
		zapslog.AddStacktraceAt(slog.Level(127))))
}

// App.nameRules names the unnamed rules of a policy. It avoids only names that are used in the same
// place. Caddy provisions servers in any order, and a name must not depend on that order.
func (a *App) nameRules(d *policyfile.Document, p *placedPolicy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	nameRules(d, func(rule string) bool {
		owner := a.owners[ruleName{d.Name, rule}]
		return owner != nil && owner != p && owner.place == p.place
	})
}

// claimRules makes the policy p the owner of the rules of its next version and of that version's
// candidate, and of no other rules. If another policy owns some of them, claimRules changes nothing
// and returns an error that names these rules.
func (a *App) claimRules(p *placedPolicy, next *live.Version) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	counted := countedBy(next)
	if c := next.Candidate(); c != nil {
		for name, as := range countedBy(c) {
			if _, both := counted[name]; !both {
				counted[name] = as
			}
		}
	}
	var problems []error
	for name := range counted {
		if other := a.owners[name]; other != nil && other != p {
			if p.file != "" && p.file == other.file {
				return fmt.Errorf("policy %q in %s is listed twice: in %s and in %s; write it once, in the global penstock block, "+
					"which every site with a penstock directive enforces, or give it another name in one of the sites, which then counts apart",
					name.namespace, p.file, other.place, p.place)
			}
			problems = append(problems, fmt.Errorf("rule %q is listed twice in namespace %q: in %s and in %s; rename one, give one "+
				"of the blocks another name, or move the rule to the global penstock block, which every site with a penstock directive enforces", name.rule,
				name.namespace, other.place, p.place))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	maps.DeleteFunc(a.owners, func(name ruleName, owner *placedPolicy) bool {
		if owner == p {
			delete(a.counted, name)
		}
		return owner == p
	})
	for name, as := range counted {
		a.owners[name], a.counted[name] = p, as
	}
	return nil
}

// countedBy returns the rules of a version and how they are counted.
func countedBy(v *live.Version) map[ruleName]string {
	all := make(map[ruleName]string, v.Ruleset.Len())
	for i := range v.Ruleset.Len() {
		all[ruleName{v.Document.Name, v.Ruleset.RuleName(i)}] = describeCounting(&v.Document.Rules[i])
	}
	return all
}

// countingOfAll returns how the rules of all policies are counted.
func (a *App) countingOfAll() map[ruleName]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.counted)
}

// openFile puts a policy file into force. The app follows the file while the app runs.
func (a *App) openFile(path, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	resolved, err := resolvePath(path)
	if err != nil {
		return nil, err
	}
	return a.open(live.File(resolved), place, complete)
}

// resolvePath replaces the placeholders in the path of a policy file.
func resolvePath(path string) (string, error) {
	resolved, err := caddy.NewReplacer().ReplaceOrErr(path, true, true)
	if err != nil {
		return "", fmt.Errorf("policy %q: %w", path, err)
	}
	return resolved, nil
}
