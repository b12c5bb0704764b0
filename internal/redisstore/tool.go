// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// This file is for tools, which look at servers one at a time with plain clients of their own.

// ToolOptions returns how a plain client reaches the server that the options name, with the same words and the same errors
// as [New]. It opens no connection.
func (o *Options) ToolOptions() (*redis.Options, error) {
	a, err := parseAddress(o.URL)
	if err != nil {
		return nil, err
	}
	if err := o.credentials(&a, true); err != nil {
		return nil, err
	}
	config, err := o.tlsConfig(&a, true)
	if err != nil {
		return nil, err
	}
	return &redis.Options{Network: a.network, Addr: a.target, Username: a.username, Password: a.password, DB: a.database,
		TLSConfig: config, Protocol: 2, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		PoolSize: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}}, nil
}

// ToolAsk puts checks to a plain client's server with the script of the store, which must be there (see [ToolLoad]).
func ToolAsk(ctx context.Context, client *redis.Client, checks []core.Check, results []core.Result) error {
	if err := core.ValidateChecks(checks, results); err != nil {
		return err
	}
	cmd := newTake(ctx, 0, checks)
	if err := client.Process(ctx, cmd); err != nil {
		return err
	}
	return cmd.results(checks, results)
}

// ToolLoad makes the script of the store known to a plain client's server.
func ToolLoad(ctx context.Context, client *redis.Client) error {
	return client.ScriptLoad(ctx, lua.Take).Err()
}

// Slot returns the slot that a key has in a cluster.
func Slot(key string) int { return slotOf(key) }

// VersionFlaw says what is wrong with a version of Redis, "" if nothing is.
func VersionFlaw(version string) string { return flawText(checkVersion(version)) }

// EvictionFlaw says what is wrong with a maxmemory-policy, "" if nothing is.
func EvictionFlaw(policy string) string { return flawText(checkPolicy(policy)) }

func flawText(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
