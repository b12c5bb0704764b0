// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/redispolicy"
)

// PublishedPolicy is a policy that a control plane publishes in the Redis of the store. The
// policy's last valid version is kept on disk, and is used if Redis does not answer at the start.
type PublishedPolicy struct {
	// The name of the policy.
	Name string `json:"name,omitempty"`

	// The public keys of the control plane, as `penstock control policy key` prints them:
	// `ed25519:…`. One of them must have signed the policy. List several keys while one replaces
	// another.
	Keys []string `json:"keys,omitempty"`

	// The folder in which the last valid version is kept. Default: the folder `penstock` in the
	// data directory of Caddy.
	StateDir string `json:"state_dir,omitempty"`

	// The name of this node. If a candidate is published to a share of the nodes, the name decides
	// whether this node is among them. Default: the name of the host.
	Node string `json:"node,omitempty"`
}

// The method source returns the source of the policy in Redis or, if trial is set, of its
// candidate.
func (p *PublishedPolicy) source(a *App, trial bool) (live.Source, error) {
	if a.store.opened.Redis == nil {
		return nil, fmt.Errorf("policy redis %s: the counters are in memory, and the policy is to come from Redis; write store redis "+
			"redis://localhost:6379 in the penstock block of the global options", p.Name)
	}
	o := follow.Options{Origin: &redispolicy.Origin{Store: a.store.opened.Redis, Policy: p.Name}, Policy: p.Name, ByClient: true, Trial: trial, Logger: a.slogger()}
	settings := follow.Settings{Keys: p.Keys, Folder: p.StateDir, Node: p.Node}
	if err := settings.Fill(&o, fillIn); err != nil {
		return nil, fmt.Errorf("policy redis %s: %w", p.Name, err)
	}
	if o.Folder == "" {
		o.Folder = filepath.Join(caddy.AppDataDir(), "penstock")
	}
	return follow.New(o)
}

// openPublished puts a published policy into force. The argument tried is the policy's candidate,
// which is evaluated but not enforced.
func (a *App) openPublished(p *PublishedPolicy, place string, complete func(*policyfile.Document) error) (policy, tried *live.Policy, err error) {
	source, err := p.source(a, false)
	if err != nil {
		return nil, nil, err
	}
	if policy, err = a.open(source, place, complete); err != nil {
		return nil, nil, err
	}
	candidate, err := p.source(a, true)
	if err != nil {
		return nil, nil, err
	}
	tried, err = a.openShadow(candidate, place, complete)
	return policy, tried, err
}

var errTwoPolicies = errors.New("policy names a file and Redis: keep one")

// The function isDisabled reports whether a candidate is disabled, so that there is nothing to
// evaluate.
func isDisabled(candidate *live.Policy) bool {
	enabled := candidate.Current().Document.Enabled
	return enabled != nil && !*enabled
}

// readPublished reads the rest of "policy redis NAME" with its block.
func (b *block) readPublished(name string) {
	if b.published != nil || b.policy != "" {
		b.problem("policy", "is listed twice", "keep one")
		b.skip()
		return
	}
	p := &PublishedPolicy{Name: name}
	b.published = p
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		word, args := b.d.Val(), b.d.RemainingArgs()
		into := map[string]*string{"state_dir": &p.StateDir, "node": &p.Node}[word]
		switch {
		case word != "key" && into == nil:
			b.problem("policy redis."+word, "is an unknown field", "the fields are key, state_dir and node")
		case len(args) != 1:
			b.problem("policy redis."+word, "takes one value", "write "+word+" VALUE")
		case word == "key":
			p.Keys = append(p.Keys, args[0])
		case *into != "":
			b.problem("policy redis."+word, "is listed twice", "keep one")
		case word == "state_dir":
			*into = resolveInCaddyfile(b.d, args[0])
		default:
			*into = args[0]
		}
		b.noBlock(word)
	}
	if len(p.Keys) == 0 {
		b.problem("policy redis", "has no key", "write key ed25519:… as penstock control policy key prints it")
	}
}
