// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/redisstore"
)

// addRedis adds the flags that say how servers stand together.
func (f *bridgeFlags) addRedis(flags *pflag.FlagSet) {
	flags.StringVar(&f.redis.Mode, "redis-mode", "", "how servers of Redis stand together: single, sentinel or cluster (single)")
	flags.StringSliceVar(&f.redis.Addrs, "redis-addrs", nil, "the sentinels, or some servers of the cluster, as `HOST:PORT,…`; "+
		"--redis rediss://user@host beside it says user and TLS")
	flags.StringVar(&f.redis.Master, "redis-master", "", "the `NAME` by which sentinels know the master")
	flags.StringVar(&f.redis.SentinelUsername, "redis-sentinel-username", "", "the user of the sentinels, if they have one")
	flags.StringVar(&f.redis.SentinelPasswordFile, "redis-sentinel-password-file", "", "a `FILE` that holds the password of the sentinels")
}

// inRedis reports whether counters are in Redis.
func (f *bridgeFlags) inRedis() bool { return f.redis.URL != "" || len(f.redis.Addrs) > 0 }

// redisFrom says where Redis is, unless --redis does.
func (f *bridgeFlags) redisFrom(getenv func(string) string, logger *slog.Logger) error {
	mode, addr, addrs := getenv("REDIS_MODE"), getenv("REDIS_ADDR"), getenv("REDIS_ADDRS")
	switch mode {
	case "", "standalone", redisstore.ModeSentinel, redisstore.ModeCluster:
	case "ring":
		return errors.New("REDIS_MODE is \"ring\", which is not there yet: write standalone, sentinel or cluster")
	default:
		return fmt.Errorf("REDIS_MODE is %q: write standalone, sentinel or cluster", mode)
	}
	if f.redis.PasswordFile == "" {
		f.redis.Password = getenv("REDIS_PASSWORD")
	}
	if f.redis.SentinelPasswordFile == "" {
		f.redis.SentinelPassword = getenv("REDIS_SENTINEL_PASSWORD")
	}
	switch {
	case f.inRedis():
		if addr != "" || addrs != "" || mode != "" {
			logger.Info("--redis is given, so REDIS_MODE, REDIS_ADDR and REDIS_ADDRS are not looked at")
		}
		return nil
	case addr == "" && addrs == "" && mode == "":
		return nil // in memory
	}
	f.redis.Master = cmp.Or(f.redis.Master, getenv("REDIS_MASTER"))
	if mode == redisstore.ModeSentinel || mode == redisstore.ModeCluster {
		return f.serversFrom(mode, addr, addrs)
	}
	if addrs != "" {
		return errors.New("REDIS_ADDRS is set, which goes with REDIS_MODE=cluster or sentinel: set that, or REDIS_ADDR for one server")
	}
	addr = cmp.Or(addr, redisAddrDefault)
	if _, _, err := net.SplitHostPort(addr); err != nil || strings.ContainsAny(addr, "/@") {
		return errors.New("REDIS_ADDR is no host:port, as localhost:6379; a URL is for --redis")
	}
	f.redis.URL = "redis://" + addr
	return nil
}

// serversFrom says where several servers are. The store says what is wrong with their addresses.
func (f *bridgeFlags) serversFrom(mode, addr, addrs string) error {
	if addr != "" {
		return fmt.Errorf("REDIS_ADDR is set, and REDIS_MODE is %s: put it into REDIS_ADDRS", mode)
	}
	if addrs == "" {
		return fmt.Errorf("REDIS_MODE is %s, and REDIS_ADDRS is not set: name some servers, as host:port,host:port", mode)
	}
	f.redis.Mode = mode
	for _, one := range strings.Split(addrs, ",") {
		f.redis.Addrs = append(f.redis.Addrs, strings.TrimSpace(one))
	}
	return nil
}
