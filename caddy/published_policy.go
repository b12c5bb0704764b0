// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/httppolicy"
	"github.com/penstock/penstock/internal/published/redispolicy"
)

// PublishedPolicy is a policy that a control plane publishes. The policy's last valid version is
// kept on disk, and is used if the policy cannot be read at the start.
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

// HTTPPolicy is a policy that this server reads from the API of a control plane. Caddy asks the API
// for a newer version every 30 seconds.
type HTTPPolicy struct {
	PublishedPolicy

	// The address of the API of `penstock control`, such as `https://control:7070`. Default: the
	// address in `control`.
	URL string `json:"url,omitempty"`

	// A file that holds a token with the role "node". The file is read before each call. Default:
	// the token file in `control`, but only if `url` is left out too.
	TokenFile string `json:"token_file,omitempty"`
}

// policyPlaces holds the configured place of a policy: a file, a key in Redis, or the API of a
// control plane.
type policyPlaces struct {
	file  string
	redis *PublishedPolicy
	http  *HTTPPolicy
}

// policyPlaces.count returns how many of the three places are configured.
func (p *policyPlaces) count() (n int) {
	for _, given := range []bool{p.file != "", p.redis != nil, p.http != nil} {
		if given {
			n++
		}
	}
	return n
}

// PublishedPolicy.source returns a source that reads the policy from the given origin. If trial is
// set, the source reads the policy's candidate.
func (p *PublishedPolicy) source(a *App, origin follow.Origin, trial bool) (live.Source, error) {
	o := follow.Options{Origin: origin, Policy: p.Name, ByClient: true, Trial: trial, Logger: a.slogger()}
	settings := follow.Settings{Keys: p.Keys, Folder: p.StateDir, Node: p.Node}
	if err := settings.Fill(&o, fillIn); err != nil {
		return nil, err
	}
	if o.Folder == "" {
		o.Folder = filepath.Join(caddy.AppDataDir(), "penstock")
	}
	return follow.New(o)
}

// PublishedPolicy.origin returns the origin that reads the policy from the store's Redis.
func (p *PublishedPolicy) origin(a *App) (follow.Origin, error) {
	if a.store.opened.Redis == nil {
		return nil, errors.New("the counters are in memory, and the policy is to come from Redis; write store redis redis://localhost:6379 in the " +
			"penstock block of the global options, or policy http to read the policy from the control plane")
	}
	return &redispolicy.Origin{Store: a.store.opened.Redis, Policy: p.Name}, nil
}

// HTTPPolicy.origin returns the origin that reads the policy from the API of the control plane.
func (p *HTTPPolicy) origin(a *App) (follow.Origin, error) {
	url, err := fillIn(p.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	file, err := fillIn(p.TokenFile, nil)
	if err != nil {
		return nil, fmt.Errorf("token_file: %w", err)
	}
	if url == "" && a.Control != nil {
		url, file = a.Control.URL, cmp.Or(file, a.Control.TokenFile)
	}
	switch {
	case url == "":
		return nil, errors.New("url is missing: write the address of the API of penstock control, such as url https://control:7070")
	case file == "":
		return nil, errors.New("token_file is missing: name a file with a token of penstock control token --role node")
	}
	return httppolicy.New(httppolicy.Options{Target: controlcall.Target{URL: url, Token: controlcall.TokenFile(file)}, Policy: p.Name, Logger: a.slogger()})
}

// openPublished puts a published policy into force. The result tried is that policy's candidate,
// under which requests are evaluated without being denied.
func (a *App) openPublished(from *policyPlaces, place string, complete func(*policyfile.Document) error) (policy, tried *live.Policy, err error) {
	p, word, open := from.redis, "redis", from.redis.origin
	if from.http != nil {
		p, word, open = &from.http.PublishedPolicy, "http", from.http.origin
	}
	fail := func(err error) error { return fmt.Errorf("policy %s %s: %w", word, p.Name, err) }
	origin, err := open(a)
	if err != nil {
		return nil, nil, fail(err)
	}
	source, err := p.source(a, origin, false)
	if err != nil {
		return nil, nil, fail(err)
	}
	if policy, err = a.open(source, place, complete); err != nil {
		return nil, nil, err
	}
	candidate, err := p.source(a, origin, true)
	if err != nil {
		return nil, nil, fail(err)
	}
	tried, err = a.openShadow(candidate, place, complete)
	return policy, tried, err
}

var errTwoPolicies = errors.New("policy names two of a file, Redis and HTTP: keep one")

// isDisabled reports whether the candidate's document has `enabled: false`. Requests are not
// evaluated under such a candidate.
func isDisabled(candidate *live.Policy) bool {
	enabled := candidate.Current().Document.Enabled
	return enabled != nil && !*enabled
}

// readPublished parses the directive "policy redis NAME" or "policy http NAME" after its second
// word, together with its block.
func (b *block) readPublished(kind, name string) {
	if b.from.count() > 0 {
		b.problem("policy", "is listed twice", "keep one")
		b.skip()
		return
	}
	p, fields := new(PublishedPolicy), "key, state_dir and node"
	into := map[string]*string{"state_dir": &p.StateDir, "node": &p.Node}
	if b.from.redis = p; kind == "http" {
		remote := new(HTTPPolicy)
		p, fields = &remote.PublishedPolicy, "url, token_file, key, state_dir and node"
		into = map[string]*string{"state_dir": &p.StateDir, "node": &p.Node, "url": &remote.URL, "token_file": &remote.TokenFile}
		b.from.redis, b.from.http = nil, remote
	}
	p.Name = name
	place := "policy " + kind
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		b.readPublishedWord(p, into, place, fields)
	}
	if len(p.Keys) == 0 {
		b.problem(place, "has no key", "write key ed25519:… as penstock control policy key prints it")
	}
}

// readPublishedWord parses one line in the block of a published policy.
func (b *block) readPublishedWord(p *PublishedPolicy, into map[string]*string, place, fields string) {
	word, args := b.d.Val(), b.d.RemainingArgs()
	switch to := into[word]; {
	case word != "key" && to == nil:
		b.problem(place+"."+word, "is an unknown field", "the fields are "+fields)
	case len(args) != 1:
		b.problem(place+"."+word, "takes one value", "write "+word+" VALUE")
	case word == "key":
		p.Keys = append(p.Keys, args[0])
	case *to != "":
		b.problem(place+"."+word, "is listed twice", "keep one")
	case word == "state_dir" || word == "token_file":
		*to = resolveInCaddyfile(b.d, args[0])
	default:
		*to = args[0]
	}
	b.noBlock(word)
}
