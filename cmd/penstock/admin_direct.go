// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// directTarget is Redis itself, which a command reads without a running Caddy or bridge.
type directTarget struct {
	redis        storeFlags
	policy, name string
	kept         *operator.API // nil unless [admin.keepOpen] was called
	region       regionFlag
}

// registerPolicy adds the flags from which the command learns which counters Redis has.
func (d *directTarget) registerPolicy(flags *pflag.FlagSet) {
	flags.StringVar(&d.policy, "policy-file", "", "with --redis: the policy `FILE` that defines the counters")
	flags.StringVar(&d.name, "name", "", "with --redis: the namespace of counters, if the policy file does not name it but the Caddyfile does")
	d.region.register(flags)
}

// directTarget.check returns an error if flags are given that have no effect.
func (d *directTarget) check() error {
	if !d.redis.given() && (!d.redis.IsZero() || d.policy != "" || d.name != "" || d.region != "") {
		return errors.New("the flags --redis-…, --policy-file, --name and --region need --redis, which is missing; write --redis redis://host:6379/0")
	}
	return nil
}

// directTarget.ask answers like a running process, from the data in Redis.
func (d *directTarget) ask(ctx context.Context, method, route string, query url.Values, body io.Reader) ([]byte, error) {
	api := d.kept
	if api == nil {
		opened, done, err := d.open(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		api = opened
	}
	answer, wrong := api.Answer(ctx, method, route, query.Encode(), body)
	if wrong != nil && wrong.Reason == operator.ReasonNobody {
		return nil, &nobodyError{wrong.Error()}
	}
	if wrong != nil {
		return nil, wrong
	}
	text, err := json.MarshalIndent(answer, "", "  ")
	return append(text, '\n'), err
}

// directTarget.open opens Redis and the policy file. The caller must call the function done.
func (d *directTarget) open(ctx context.Context) (api *operator.API, done func(), err error) {
	options, err := d.redis.options()
	if err != nil {
		return nil, nil, err
	}
	options.Timeout, options.Lanes = redisstore.TimeoutMax, 1
	store, err := redisstore.New(options)
	if err != nil {
		return nil, nil, err
	}
	open := closers{store}
	clients, err := directory.Open(directory.Options{Source: redisdir.New(store), Timeout: lookTimeout})
	if err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	open = append(closers{clients}, open...)
	desk := &operator.Desk{Store: store, Directory: clients}
	if d.policy != "" {
		policy, closer, err := d.readPolicy()
		if err != nil {
			return nil, nil, errors.Join(err, open.Close())
		}
		open = append(open, closer)
		clients.ReadNetworks(ctx)
		desk.Policies = func() []operator.Policy { return []operator.Policy{*policy} }
	}
	others := func(ctx context.Context) (*fleet.Reading, error) { return fleet.Read(ctx, store) }
	return &operator.API{Desk: desk, Front: "Redis", Others: others, Follow: fleet.In(store)}, func() { _ = open.Close() }, nil
}

// readPolicy reads the policy file.
func (d *directTarget) readPolicy() (*operator.Policy, io.Closer, error) {
	document, err := readRedisPolicy(d.policy, d.name, d.region, os.Stdin)
	if err != nil {
		return nil, nil, err
	}
	policy, closer, err := openUnwatched(document, d.policy)
	if err == nil {
		policy.File = d.policy
	}
	return policy, closer, err
}
