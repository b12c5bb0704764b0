// SPDX-License-Identifier: Apache-2.0

package front

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/httppolicy"
	"github.com/penstock/penstock/internal/published/redispolicy"
)

// PublishedPolicy is a policy that a control plane publishes.
type PublishedPolicy struct {
	// The name of the policy.
	Name string `json:"name,omitempty"`

	// The public keys of the control plane: `ed25519:…`, as `penstock control policy key` prints
	// them. One of them must have signed the policy. List more than one only while one key replaces
	// another.
	Keys policyfile.Words `json:"keys,omitempty"`

	// The folder in which the last good version is kept, so that Envoy can start while the policy
	// cannot be read. Default: no version is kept.
	StateDir string `json:"state_dir,omitempty"`

	// The name of this node. If a candidate is in force on a share of the nodes, the name decides
	// whether this node is one of them. Default: the name of the host.
	Node string `json:"node,omitempty"`
}

// HTTPPolicy is a policy that a control plane publishes, and that this process reads from the API
// of the control plane. The filter looks for a change every 30 seconds.
type HTTPPolicy struct {
	// The name of the policy.
	Name string `json:"name,omitempty"`

	// The address of the API of `penstock control`, such as `https://control:7070`. Default: the
	// address in `control`.
	URL string `json:"url,omitempty"`

	// A file that holds a token of the role "node". The file is read before each call. Default: the
	// file of `control`, if `url` is left out.
	TokenFile string `json:"token_file,omitempty"`

	// Keys, StateDir and Node are as in policy_redis.
	Keys     policyfile.Words `json:"keys,omitempty"`
	StateDir string           `json:"state_dir,omitempty"`
	Node     string           `json:"node,omitempty"`
}

// published returns the published policy that the settings name, and the name of that setting. It
// returns nil if the settings name none.
func (s *Settings) published() (p *PublishedPolicy, word string) {
	switch {
	case s.PolicyRedis != nil:
		return s.PolicyRedis, "policy_redis"
	case s.PolicyHTTP != nil:
		h := s.PolicyHTTP
		return &PublishedPolicy{h.Name, h.Keys, h.StateDir, h.Node}, "policy_http"
	}
	return nil, ""
}

// checkPublished returns the errors of the settings of a published policy.
func (s *Settings) checkPublished() error {
	p, word := s.published()
	switch {
	case p == nil:
		return nil
	case s.PolicyRedis != nil && s.PolicyHTTP != nil:
		return errors.New("policy_redis and policy_http are both given: keep one")
	case s.ShadowPolicy != "":
		return fmt.Errorf("shadow_policy and %s are both given: the control plane publishes the policy to try out as well; leave shadow_policy out", word)
	case s.PolicyRedis != nil && !s.isShared():
		return errors.New("policy_redis: the counters are in memory, and the policy is to come from Redis: write store: {type: redis, url: …}, or " +
			"policy_http to read the policy from the control plane")
	case p.Name == "":
		return fmt.Errorf("%s: name is missing: write the name under which the control plane publishes the policy", word)
	case len(p.Keys) == 0:
		return fmt.Errorf("%s: keys are missing, and without one anybody who answers in place of the control plane could set any limits: write keys: "+
			"[ed25519:…], as penstock control policy key prints it", word)
	case s.PolicyHTTP != nil:
		target, err := s.PolicyHTTP.target(s)
		if err == nil {
			err = target.Check()
		}
		if err != nil {
			return fmt.Errorf("policy_http: %w", err)
		}
	}
	return nil
}

// HTTPPolicy.target returns the control plane from which the policy is read.
func (p *HTTPPolicy) target(s *Settings) (to controlcall.Target, err error) {
	url, err := fillIn(p.URL, nil)
	if err != nil {
		return to, fmt.Errorf("url: %w", err)
	}
	file, err := fillIn(p.TokenFile, nil)
	if err != nil {
		return to, fmt.Errorf("token_file: %w", err)
	}
	if url == "" && s.Control != nil {
		url, file = s.Control.URL, cmp.Or(file, s.Control.TokenFile)
	}
	switch {
	case url == "":
		return to, errors.New("url is missing: write the address of the API of penstock control, such as url: https://control:7070")
	case file == "":
		return to, errors.New("token_file is missing: name a file with a token of penstock control token --role node")
	}
	return controlcall.Target{URL: url, Token: controlcall.TokenFile(file)}, nil
}

// publishedSource returns the source of the published policy or, if the argument trial is set, that
// of its candidate. Both have the same origin.
func (f *Front) publishedSource(trial bool) (*follow.Source, error) {
	p, word := f.settings.published()
	origin, err := f.publishedOrigin()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	o := follow.Options{Origin: origin, Policy: p.Name, ByClient: true, Trial: trial, Logger: f.process.logger}
	settings := follow.Settings{Keys: p.Keys, Folder: p.StateDir, Node: p.Node}
	if err := settings.Fill(&o, fillIn); err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	if o.Folder == "" && !trial {
		f.process.logger.Warn("a filter cannot start while its policy cannot be read, since the last good policy is kept nowhere: write state_dir")
	}
	source, err := follow.New(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	return source, nil
}

// publishedOrigin returns the origin from which the published policy is read.
func (f *Front) publishedOrigin() (follow.Origin, error) {
	if f.origin != nil {
		return f.origin, nil
	}
	p, _ := f.settings.published()
	if f.settings.PolicyRedis != nil {
		f.origin = &redispolicy.Origin{Store: f.store.Redis, Policy: p.Name}
		return f.origin, nil
	}
	to, err := f.settings.PolicyHTTP.target(f.settings)
	if err != nil {
		return nil, err
	}
	opened, err := httppolicy.New(httppolicy.Options{Target: to, Policy: p.Name, Logger: f.process.logger})
	if err != nil {
		return nil, err
	}
	f.origin = opened
	return opened, nil
}
