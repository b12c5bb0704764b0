// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/penstock/penstock/internal/policy"
)

func init() { caddy.RegisterModule(new(App)) }

// App is what the sites of a Caddy share: where counters are kept, and a policy that every `penstock` handler enforces
// besides its own rules. Without it, counters are kept in memory.
//
// Counters outlive a reload as long as the store's settings stay the same: changing a limit's count keeps what was
// consumed of it.
type App struct {
	// The namespace of the counters of the app's policy; with a store that is shared also of the rules of sites without a
	// name. Every Caddy with the same name and the same Redis counts together. Required with such a store, unless the
	// policy file or the sites have names.
	Name string `json:"name,omitempty"`

	// Where counters are kept. Default: in memory.
	Store *Store `json:"store,omitempty"`

	// A policy file (.yaml, .toml or .json) that every handler enforces. A relative path is relative to the working
	// directory; the Caddyfile makes it relative to the Caddyfile.
	Policy string `json:"policy,omitempty"`

	// A policy file to try out besides what is in force, for every handler: metrics tell what it would refuse that the
	// policies in force admit, and the reverse. It refuses nothing, and its counters are its own. It asks the store once
	// more for each request.
	ShadowPolicy string `json:"shadow_policy,omitempty"`

	PolicyWords

	ctx      caddy.Context
	logger   *zap.Logger
	events   *caddyevents.App
	store    *pooledStore
	storeKey string
	shared   bool // other processes count in the same store
	policies []*enforced
	tried    []*enforced // candidates of the app
	shadows  *shadows    // nil if nothing is tried out
	files    []*policyFile
	mu       sync.Mutex             // guards what follows, which an edited policy file changes while the app runs
	compiled map[string]*enforced   // by namespace and text
	owners   map[ruleName]ruleOwner // of every rule of this configuration
	counted  map[ruleName]string    // how each is counted
	outage   outage
	sites    siteBook // which policies the handlers of each site enforce
}

// ruleName is a rule's full name.
type ruleName struct{ namespace, rule string }

// ruleOwner says where a rule was written, and what its policy says.
type ruleOwner struct{ place, text string }

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "penstock", New: func() caddy.Module { return new(App) }}
}

// Provision opens the store and compiles the app's policies. The error lists everything that is wrong.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.compiled, a.owners = make(map[string]*enforced), make(map[ruleName]ruleOwner)
	a.counted = make(map[ruleName]string)
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	a.events = events.(*caddyevents.App)
	err = a.openStore()
	if a.Policy != "" {
		err = errors.Join(err, a.addFile())
	}
	if a.ShadowPolicy != "" {
		e, wrong := a.openShadow(a.ShadowPolicy, appPlace, func(d *policy.Document) error {
			a.govern(d)
			return a.name(d)
		})
		err = errors.Join(err, wrong)
		a.tried = append(a.tried, e)
	}
	if len(a.Rules) > 0 {
		err = errors.Join(err, a.add(a.document("")))
	} else if wrong := a.document(a.Name).Check(); wrong != nil { // what the app says for others holds good as well
		err = errors.Join(err, wrong)
	}
	if err != nil {
		return err
	}
	return register(ctx.GetMetricsRegistry())
}

func (a *App) openStore() error {
	settings := a.Store
	if settings == nil {
		settings = new(Store)
	}
	a.shared = settings.shared()
	resolved, err := settings.resolve()
	if err != nil {
		return err
	}
	settings.warnOfSecrets(a.logger)
	a.storeKey, a.store, err = resolved.open()
	return err
}

func (a *App) addFile() error {
	e, err := a.openFile(&policyFile{path: a.Policy, place: appPlace, complete: func(d *policy.Document) error {
		a.govern(d)
		return a.name(d)
	}})
	if err == nil {
		a.policies = append(a.policies, e)
	}
	return err
}

// appPlace says where the app's own policies are written.
const appPlace = "the penstock app"

// add makes a policy one of the app's.
func (a *App) add(d *policy.Document) error {
	if err := a.name(d); err != nil {
		return err
	}
	e, err := a.compile(d, appPlace)
	if err == nil {
		a.policies = append(a.policies, e)
	}
	return err
}

// name gives a policy of the app the app's name if it has none.
func (a *App) name(d *policy.Document) error {
	d.Name = cmp.Or(d.Name, a.Name)
	if d.Name == "" {
		if a.shared {
			return errNameMissing
		}
		d.Name = "app"
	}
	return nil
}

var errNameMissing = errors.New("a name is missing: counters in a shared store need one, or programs that share the store " +
	"would count apart, or together with strangers; write \"name shop\" in the penstock block of the site or the global options")

// compile returns the policy compiled. A policy that says the same in the same place a second time, as when a site is
// served by two listeners, is the same one, so that a request is not charged twice; anything else that uses a rule's
// name again in its namespace is an error.
func (a *App) compile(d *policy.Document, place string) (*enforced, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, owner, err := a.edition(d, place)
	if err != nil {
		return nil, err
	}
	known := a.compiled[place+"\x00"+owner.text]
	if err := a.claim(now, owner); err != nil || known != nil {
		return known, errors.Join(err, now.verifiers.close())
	}
	now.warn(a.logger)
	e := newEnforced(now)
	a.compiled[place+"\x00"+owner.text] = e
	return e, nil
}

// edition compiles the policy and gives its rules names. Whoever does not put it in force closes its verifiers.
func (a *App) edition(d *policy.Document, place string) (*edition, ruleOwner, error) {
	nameRules(d, func(rule string) bool {
		// Only in the same place: Caddy sets servers up in any order, and a name must not depend on it.
		owner, taken := a.owners[ruleName{d.Name, rule}]
		return taken && owner.place == place
	})
	text, err := json.Marshal(d)
	if err != nil {
		return nil, ruleOwner{}, fmt.Errorf("policy %q: %w", d.Name, err)
	}
	who, err := openVerifiers(d)
	if err != nil {
		return nil, ruleOwner{}, errors.Join(err, d.Check())
	}
	if beyond := d.Beyond(policy.FrontCaddy); len(beyond) > 0 {
		return nil, ruleOwner{}, errors.Join(beyond, who.close())
	}
	ruleset, err := d.CompileWith(who.list)
	if err != nil {
		return nil, ruleOwner{}, errors.Join(err, who.close())
	}
	return newEdition(d, ruleset, who), ruleOwner{place: place, text: string(text)}, nil
}

// claim makes the edition's rules the owner's. The error names those that another has.
func (a *App) claim(now *edition, owner ruleOwner) error {
	var problems []error
	for i := range now.ruleset.Len() {
		name := ruleName{now.document.Name, now.ruleset.RuleName(i)}
		if other, taken := a.owners[name]; taken && other != owner {
			problems = append(problems, fmt.Errorf("rule %q stands twice in namespace %q: in %s and in %s; rename one, give one "+
				"of the blocks another name, or move the rule to the global penstock block, which every site enforces", name.rule,
				name.namespace, other.place, owner.place))
			continue
		}
		a.owners[name] = owner
		a.counted[name] = countedAs(&now.document.Rules[i])
	}
	return errors.Join(problems...)
}

// Start says which rules begin with new counters. The store works from Provision on, for handlers may be asked before
// apps are started.
//
// From now on edited policy files are taken over.
func (a *App) Start() error {
	a.store.counting.change(maps.Clone(a.counted), a.logger)
	return a.watch()
}

// Stop ends the watching of policy files. The store is given back by Cleanup.
func (a *App) Stop() error {
	a.unwatch()
	return nil
}

// Cleanup gives the store and the verifiers back. The last configuration that does so closes them.
func (a *App) Cleanup() error {
	a.unwatch()
	if a.shadows != nil { // and stays: requests of this configuration may still be under way
		a.shadows.stop()
	}
	problems := a.forget()
	if a.storeKey != "" {
		_, err := stores.Delete(a.storeKey)
		problems = append(problems, err)
		a.storeKey = ""
	}
	return errors.Join(problems...)
}

// forget closes the verifiers of all policies, of which there are none then: the admin endpoint may be asking for them.
func (a *App) forget() (problems []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.compiled {
		problems = append(problems, e.current.Load().verifiers.close())
	}
	clear(a.compiled)
	return problems
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
