// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/published/httppolicy"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Prefixes of the value of --policy if a control plane publishes the policy: in Redis, and in its
// API.
const (
	redisPrefix = "redis:"
	httpPrefix  = "http:"
)

// publishedFlags are the flags for a policy that a control plane publishes.
type publishedFlags struct {
	keys   []string
	folder string
	node   string
	url    string
	token  string // the file with the token
}

func (f *publishedFlags) register(flags *pflag.FlagSet) {
	const with = "with --policy redis:NAME or http:NAME, "
	flags.StringSliceVar(&f.keys, "policy-key", nil, with+"the public `KEY` of the control plane, ed25519:…; may be given several times")
	flags.StringVar(&f.folder, "policy-dir", "", with+"the `FOLDER` that keeps the last good policy, for a start while the policy cannot be read")
	flags.StringVar(&f.node, "policy-node", "", with+"the `NAME` of this node for shares of the nodes (the name of the host)")
	flags.StringVar(&f.url, "policy-url", "", "with --policy http:NAME, the control plane: https://control:7070 (--control)")
	flags.StringVar(&f.token, "policy-token-file", "", "with --policy http:NAME, a `FILE` that holds a token of the role node (--control-token-file)")
}

// isPublished reports whether a control plane publishes the policy.
func isPublished(policy string) bool {
	return strings.HasPrefix(policy, redisPrefix) || strings.HasPrefix(policy, httpPrefix)
}

// publishedFlags.check returns an error if a flag does not apply to the policy.
func (f *publishedFlags) check(policy string) error {
	switch {
	case strings.HasPrefix(policy, "http://") || strings.HasPrefix(policy, "https://"):
		return fmt.Errorf("--policy %.200q is a URL: give --policy http:NAME and --policy-url URL", policy)
	case !isPublished(policy) && len(f.keys)+len(f.folder)+len(f.node) > 0:
		return errors.New("--policy-key, --policy-dir and --policy-node go with --policy redis:NAME or http:NAME: give that, or leave them out")
	case !strings.HasPrefix(policy, httpPrefix) && len(f.url)+len(f.token) > 0:
		return errors.New("--policy-url and --policy-token-file go with --policy http:NAME: give that, or leave them out")
	}
	return nil
}

// publishedFlags.source returns the source of a published policy. The argument store is nil if
// there is no Redis. The argument control holds the flags that name the control plane.
func (f *publishedFlags) source(policy string, store *redisstore.Store, control *feedFlags, logger *slog.Logger) (*follow.Source, error) {
	kind, name, _ := strings.Cut(policy, ":")
	if len(f.keys) == 0 {
		return nil, fmt.Errorf("--policy %s:NAME needs --policy-key: without it anybody who answers in place of the control plane could set any limits", kind)
	}
	origin, err := f.origin(policy, name, store, control, logger)
	if err != nil {
		return nil, err
	}
	o := follow.Options{Origin: origin, Policy: name, Logger: logger}
	settings := follow.Settings{Keys: f.keys, Folder: f.folder, Node: f.node}
	if err := settings.Fill(&o, nil); err != nil { // the only possible error is an invalid key
		return nil, fmt.Errorf("--policy-key: %w", err)
	}
	if f.folder == "" {
		logger.Warn("the bridge cannot start while the policy cannot be read, since the last good policy is kept nowhere: give --policy-dir")
	}
	source, err := follow.New(o)
	if err != nil {
		return nil, fmt.Errorf("--policy %s: %w", policy, err)
	}
	return source, nil
}

// publishedFlags.origin returns where the policy is read from: Redis, or the API of the control
// plane.
func (f *publishedFlags) origin(policy, name string, store *redisstore.Store, control *feedFlags, logger *slog.Logger) (follow.Origin, error) {
	if strings.HasPrefix(policy, redisPrefix) {
		if store == nil {
			return nil, fmt.Errorf("--policy %s is in Redis, and the bridge has none: give --redis, or --policy http:%s", policy, name)
		}
		return &redispolicy.Origin{Store: store, Policy: name}, nil
	}
	url, file := f.url, f.token
	if url == "" {
		url, file = control.url, cmp.Or(file, control.tokenFile)
	}
	switch {
	case url == "":
		return nil, fmt.Errorf("--policy %s needs --policy-url: give the address of the API of penstock control, such as https://control:7070", policy)
	case file == "":
		return nil, fmt.Errorf("--policy %s needs --policy-token-file: name a file with a token of penstock control token --role node", policy)
	}
	origin, err := httppolicy.New(httppolicy.Options{Target: controlcall.Target{URL: url, Token: controlcall.TokenFile(file)}, Policy: name, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("--policy-url: %w", err)
	}
	return origin, nil
}
