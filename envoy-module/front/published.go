// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/redispolicy"
)

// PublishedPolicy is a policy that a control plane publishes in the Redis of the store.
type PublishedPolicy struct {
	// The name of the policy.
	Name string `json:"name,omitempty"`

	// The public keys of the control plane, of which one must have signed the policy: `ed25519:…`,
	// as `penstock control policy key` prints it. List more than one only while one replaces
	// another.
	Keys policyfile.Words `json:"keys,omitempty"`

	// The folder in which the last good version is kept, for a start while Redis is away. Default:
	// it is not kept.
	StateDir string `json:"state_dir,omitempty"`

	// The name of this node, which decides whether it is in a share of the nodes. Default: the name
	// of the host.
	Node string `json:"node,omitempty"`
}

// The method check returns the errors of the settings.
func (p *PublishedPolicy) check(s *Settings) error {
	switch {
	case !s.isShared():
		return errors.New("policy_redis: the counters are in memory, and the policy is to come from Redis: write store: {type: redis, url: …}")
	case p.Name == "":
		return errors.New("policy_redis: name is missing: write the name under which the control plane publishes the policy")
	case len(p.Keys) == 0:
		return errors.New("policy_redis: keys are missing, and without one anybody who writes to Redis could set any limits: write keys: " +
			"[ed25519:…], as penstock control policy key prints it")
	}
	return nil
}

// source returns the source of the policy, or of its candidate.
func (p *PublishedPolicy) source(f *Front, trial bool) (*follow.Source, error) {
	o := follow.Options{Origin: &redispolicy.Origin{Store: f.store.Redis, Policy: p.Name}, Policy: p.Name, ByClient: true, Trial: trial, Logger: f.process.logger}
	settings := follow.Settings{Keys: p.Keys, Folder: p.StateDir, Node: p.Node}
	if err := settings.Fill(&o, fillIn); err != nil {
		return nil, fmt.Errorf("policy_redis: %w", err)
	}
	if o.Folder == "" && !trial {
		f.process.logger.Warn("a filter cannot start while Redis is away, since the last good policy is kept nowhere: write state_dir")
	}
	return follow.New(o)
}
