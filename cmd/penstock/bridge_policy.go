// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// publishedPrefix is the prefix of the value of --policy if the policy is in Redis.
const publishedPrefix = "redis:"

// publishedFlags are the flags for a policy that a control plane publishes.
type publishedFlags struct {
	keys   []string
	folder string
	node   string
}

func (f *publishedFlags) register(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.keys, "policy-key", nil, "with --policy redis:NAME, the public `KEY` of the control plane, ed25519:…; may be given several times")
	flags.StringVar(&f.folder, "policy-dir", "", "with --policy redis:NAME, the `FOLDER` that keeps the last good policy, for a start while Redis is away")
	flags.StringVar(&f.node, "policy-node", "", "with --policy redis:NAME, the `NAME` of this node for shares of the nodes (the name of the host)")
}

// The method check returns an error if a flag does not apply to the policy.
func (f *publishedFlags) check(policy string) error {
	if !strings.HasPrefix(policy, publishedPrefix) && len(f.keys)+len(f.folder)+len(f.node) > 0 {
		return errors.New("--policy-key, --policy-dir and --policy-node go with --policy redis:NAME: give that, or leave them out")
	}
	return nil
}

// The method source returns the source of a policy in Redis. If there is no Redis, store is nil.
func (f *publishedFlags) source(policy string, store *redisstore.Store, logger *slog.Logger) (*follow.Source, error) {
	name := strings.TrimPrefix(policy, publishedPrefix)
	if store == nil {
		return nil, fmt.Errorf("--policy %s is in Redis, and the bridge has none: give --redis", policy)
	}
	o := follow.Options{Origin: &redispolicy.Origin{Store: store, Policy: name}, Policy: name, Logger: logger}
	settings := follow.Settings{Keys: f.keys, Folder: f.folder, Node: f.node}
	if err := settings.Fill(&o, nil); err != nil { // the only possible error is an invalid key
		return nil, fmt.Errorf("--policy-key: %w", err)
	}
	if len(o.Keys) == 0 {
		return nil, errors.New("--policy redis:NAME needs --policy-key: without it anybody who writes to Redis could set any limits")
	}
	if f.folder == "" {
		logger.Warn("the bridge cannot start while Redis is away, since the last good policy is kept nowhere: give --policy-dir")
	}
	return follow.New(o)
}
