// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/policyfile"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds the settings that all sites of a Caddy server share: the store of the counters, and a
// policy that every `penstock` handler enforces besides its own rules. Without the app, counters
// are kept in memory.
//
// Counters survive a reload as long as the store's settings do not change. Changing the count of a
// limit keeps the units that were already consumed.
type App struct {
	// The namespace of the counters of the app's policy. With a shared store, it is also the
	// namespace of rules in sites without a name. All Caddy servers with the same name and the same
	// Redis share their counters. Required with a shared store unless the policy file or the sites
	// have names.
	Name string `json:"name,omitempty"`

	// Where counters are kept. Default: in memory.
	Store *Store `json:"store,omitempty"`

	// A directory of clients. Operators change the tiers, limits, blocks and exemptions in it while
	// the server runs. Default: none.
	Directory *Directory `json:"directory,omitempty"`

	// Where the events that policies report are written: `stdout`, the path of a file, with a
	// slash, `syslog`, `syslog:udp://HOST:PORT`, `syslog:tcp://HOST:PORT`, or `none`. Default:
	// Caddy's own log, under the name `penstock.events`.
	EventsTo string `json:"events_to,omitempty"`

	// The control plane that receives events and the usage of each client. Default: none.
	Control *Control `json:"control,omitempty"`

	// A policy file (.yaml, .toml or .json) that every handler enforces. A relative path is
	// relative to the working directory; the Caddyfile makes it relative to the Caddyfile.
	Policy string `json:"policy,omitempty"`

	// A policy that a control plane publishes in Redis, instead of a file. Default: none.
	PolicyRedis *PublishedPolicy `json:"policy_redis,omitempty"`

	// A policy that a control plane publishes, read from its API, instead of a file. Default: none.
	PolicyHTTP *HTTPPolicy `json:"policy_http,omitempty"`

	// The region of this server: one of those in `regions` of its policies. Required if a policy
	// has regions. Default: none.
	Region string `json:"region,omitempty"`

	// A policy file to try out in every handler, besides the policies in force. Metrics count the
	// requests that only the candidate would deny, and those that only the candidate would admit.
	// The candidate denies nothing, has its own counters, and costs one more store call for each
	// request.
	ShadowPolicy string `json:"shadow_policy,omitempty"`

	PolicyWords

	ctx      caddy.Context
	logger   *zap.Logger
	events   *caddyevents.App
	store    *pooledStore
	storeKey string
	shared   bool // other processes use the same counters
	policies []*live.Policy
	tried    []*live.Policy // candidate policies of the app
	shadows  *shadow.Runner // nil without candidates
	logged   sync.Map       // the warnings about access logs, by server and credential
	reports  eventsOut
	feedKey  string                       // the spool of the feed in use; "" if there is none
	unmeter  func()                       // ends the counting of usage
	sites    sitePolicies                 // the policies that the handlers of each site enforce
	links    map[*caddyhttp.Server]func() // links the handlers of each server: see linkOf

	mu             sync.Mutex               // guards the maps, which change when a policy file is edited
	policiesByText map[string]*placedPolicy // by place and original text
	owners         map[ruleName]*placedPolicy
	counted        map[ruleName]string // how each rule counts: see countedAs
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "penstock", New: func() caddy.Module { return new(App) }}
}

// Provision opens the store and compiles the app's policies. The error lists all problems.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.policiesByText, a.owners = make(map[string]*placedPolicy), make(map[ruleName]*placedPolicy)
	a.counted = make(map[ruleName]string)
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	a.events = events.(*caddyevents.App)
	err = errors.Join(a.openEvents(), a.Control.check(a.EventsTo), a.openStore())
	if err == nil || a.PolicyRedis == nil { // a policy in Redis needs the store
		err = errors.Join(err, a.addSourced())
	}
	if a.ShadowPolicy != "" {
		e, wrong := a.openShadowFile(a.ShadowPolicy, appPlace, a.completePolicy)
		err = errors.Join(err, wrong)
		a.tried = append(a.tried, e)
	}
	if len(a.Rules) > 0 {
		d := a.document("")
		d.Exempt, d.Block = knownLists(d.Exempt, d), knownLists(d.Block, d)
		err = errors.Join(err, a.openPolicy(d))
	} else if wrong := a.checkSettings(); wrong != nil {
		err = errors.Join(err, wrong)
	}
	if err != nil {
		return err
	}
	if a.Control != nil { // usage is counted from now on, because requests may come before Start opens the feed
		a.unmeter = usageMeter.Use()
	}
	return registerMetrics(ctx.GetMetricsRegistry())
}

func (a *App) openStore() error {
	settings := a.Store
	if settings == nil {
		settings = new(Store)
	}
	a.shared = settings.isShared()
	resolved, err := settings.resolve()
	if err != nil {
		return err
	}
	settings.warnOfSecrets(a.logger)
	a.storeKey, a.store, err = openStore(resolved, a.Directory)
	return err
}

// completePolicy sets what a policy file leaves to the app.
func (a *App) completePolicy(d *policyfile.Document) error {
	a.fillFromBlock(d)
	return a.name(d)
}

// addSourced opens the app's policy from a file, from Redis or from an API, if one of them is
// named.
func (a *App) addSourced() error {
	policies, tried, err := a.openSourced(&policyPlaces{a.Policy, a.PolicyRedis, a.PolicyHTTP}, appPlace, a.completePolicy)
	a.policies, a.tried = append(a.policies, policies...), append(a.tried, tried...)
	return err
}

// openSourced opens a policy from a file, from Redis or from an API, if one of them is named.
func (a *App) openSourced(from *policyPlaces, place string, complete func(*policyfile.Document) error) (
	policies, tried []*live.Policy, err error,
) {
	switch {
	case from.count() > 1:
		return nil, nil, errTwoPolicies
	case from.file != "":
		p, err := a.openFile(from.file, place, complete)
		if err != nil {
			return nil, nil, err
		}
		return []*live.Policy{p}, nil, nil
	case from.count() == 1:
		p, candidate, err := a.openPublished(from, place, complete)
		if err != nil {
			return nil, nil, err
		}
		return []*live.Policy{p}, []*live.Policy{candidate}, nil
	}
	return nil, nil, nil
}

// appPlace names the app in messages about its policies.
const appPlace = "the penstock app"

// openPolicy opens a policy of the app.
func (a *App) openPolicy(d *policyfile.Document) error {
	p, err := a.open(live.Fixed(d), appPlace, a.name)
	if err == nil {
		a.policies = append(a.policies, p)
	}
	return err
}

// App.name gives the name of the app to a policy of the app that has no name.
func (a *App) name(d *policyfile.Document) error {
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

// Start logs the rules whose counters start at zero and begins to follow policy files. The store
// already works after Provision, because Caddy may call handlers before it starts the apps. All
// handlers are provisioned by now, so checkLists can look at their policies.
func (a *App) Start() error {
	if err := a.checkLists(); err != nil {
		return err
	}
	a.store.counting.change(a.countingOfAll(), a.logger)
	eventLog.SetRegion(a.Region)
	a.attachEvents()
	a.store.join()
	return errors.Join(a.report(), a.watch())
}

// Stop stops following policy files. Cleanup releases the store.
func (a *App) Stop() error {
	a.unwatch()
	a.detachEvents()
	return nil
}

// Cleanup releases the store and the verifiers. The last configuration to release them closes them.
func (a *App) Cleanup() error {
	a.unwatch()
	if a.storeKey != "" {
		a.store.finishBodies() // while usage is still counted and reported
	}
	// The field shadows stays set because requests of this configuration may still be running.
	if a.shadows != nil {
		a.shadows.Stop()
	}
	if a.unmeter != nil {
		a.unmeter()
	}
	problems := append(a.forgetPolicies(), a.closeEvents(), a.endReport())
	if a.storeKey != "" {
		_, err := stores.Delete(a.storeKey)
		problems = append(problems, err)
		a.storeKey = ""
	}
	return errors.Join(problems...)
}

// forgetPolicies closes all policies. Later calls of the admin endpoint find no policy.
func (a *App) forgetPolicies() (problems []error) {
	a.mu.Lock()
	policies := slices.Collect(maps.Values(a.policiesByText))
	clear(a.policiesByText)
	a.mu.Unlock()
	for _, p := range policies { // the lock is not held here, because an edit in progress may wait for it
		problems = append(problems, p.Close())
	}
	return problems
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
