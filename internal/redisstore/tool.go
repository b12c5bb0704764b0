// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// This file is for tools, which look at servers one at a time with plain clients of their own.

// ToolServers returns how a plain client reaches each server that the options name, with the same words and the same errors
// as [New], and in base how it reaches those that they tell of: sentinels may have another user. Without a Mode the one server of
// the URL may be of any kind. It opens no connection.
func (o *Options) ToolServers() (base *redis.Options, named []*redis.Options, err error) {
	s, err := o.settings()
	if err != nil {
		return nil, nil, err
	}
	base = toolOptions(s.address, s.tls)
	for _, seed := range s.seeds {
		a := s.at(seed)
		if s.mode == ModeSentinel {
			a = s.sentinelAt(seed)
		}
		named = append(named, toolOptions(a, s.tls))
	}
	if s.mode == ModeSingle {
		named = []*redis.Options{base}
	}
	return base, named, nil
}

// ToolHome returns which of the servers of a ring has a key: its number in addrs, which are host:port as [Options.ToolServers]
// returns them.
func ToolHome(addrs []string, key string) int { return homeOf(slotOf(key), addrs) }

func toolOptions(a address, config *tls.Config) *redis.Options {
	return &redis.Options{Network: a.network, Addr: a.target, Username: a.username, Password: a.password, DB: a.database,
		TLSConfig: config, Protocol: 2, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		PoolSize: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}}
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
