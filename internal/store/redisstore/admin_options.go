// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/lua"
)

// This file is for tools that inspect individual servers with their own plain clients.

// ToolServer is how a tool connects to one server.
type ToolServer struct {
	Network, Addr      string // the network is "tcp" or "unix"
	Username, Password string
	DB                 int
	TLSConfig          *tls.Config // nil means no TLS
}

// Open returns a plain client of the server, with one connection and without retries.
func (s *ToolServer) Open() Client {
	return redis.NewClient(&redis.Options{Network: s.Network, Addr: s.Addr, Username: s.Username, Password: s.Password, DB: s.DB,
		TLSConfig: s.TLSConfig, Protocol: 2, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		PoolSize: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
}

// ToolServers returns each server that the options name, with the same validation and errors as
// [New]. The result named base says how to connect to servers that are discovered through the named
// ones, because sentinels can have other users than the servers that they watch. Without a Mode,
// the single server of the URL can be of any kind. ToolServers opens no connection.
func (o *Options) ToolServers() (base *ToolServer, named []*ToolServer, err error) {
	s, err := o.settings()
	if err != nil {
		return nil, nil, err
	}
	if s.before != nil {
		return nil, nil, errors.New("addrs_before goes with nodes: a tool looks at the servers of one ring; leave it out, or name the " +
			"servers of before as addrs")
	}
	base = toolServer(s.address, s.tls)
	for _, seed := range s.seeds {
		a := s.at(seed)
		if s.mode == ModeSentinel {
			a = s.sentinelAt(seed)
		}
		named = append(named, toolServer(a, s.tls))
	}
	if s.mode == ModeSingle {
		named = []*ToolServer{base}
	}
	return base, named, nil
}

// ToolHome returns which server of a ring holds a key, as an index into addrs. The addresses are
// host:port, as [Options.ToolServers] returns them.
func ToolHome(addrs []string, key string) int { return homeOf(slotOf(key), addrs) }

func toolServer(a address, config *tls.Config) *ToolServer {
	return &ToolServer{Network: a.network, Addr: a.target, Username: a.username, Password: a.password, DB: a.database, TLSConfig: config}
}

// ToolAsk runs checks with the store's script on one server. The script must have been loaded by
// [ToolLoad].
func ToolAsk(ctx context.Context, client Client, checks []counter.Check, results []counter.Result) error {
	if err := counter.ValidateChecks(checks, results); err != nil {
		return err
	}
	cmd := newTake(ctx, 0, checks)
	if err := client.Process(ctx, cmd); err != nil {
		return err
	}
	return cmd.results(checks, results)
}

// ToolLoad loads the store's script into the server of a plain client.
func ToolLoad(ctx context.Context, client Client) error {
	return client.ScriptLoad(ctx, lua.Take).Err()
}

// Slot returns the slot of a key in a cluster.
func Slot(key string) int { return slotOf(key) }

// VersionFlaw returns what is wrong with a version of Redis, or "" if it is supported.
func VersionFlaw(version string) string { return flawText(checkVersion(version)) }

// EvictionFlaw returns what is wrong with a maxmemory-policy, or "" if it keeps counters.
func EvictionFlaw(policy string) string { return flawText(checkPolicy(policy)) }

func flawText(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
