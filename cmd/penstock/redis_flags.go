// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// lookTimeout is how long Redis may take to answer. lookTimeout is generous because the user is
// waiting for one answer, perhaps far from Redis.
const lookTimeout = 5 * time.Second

// addRedis adds the flags that select Redis, with the same names for every command.
func addRedis(flags *pflag.FlagSet, o *redisstore.Options, usage string) {
	flags.StringVar(&o.URL, "redis", "", usage)
	flags.StringVar(&o.Mode, "redis-mode", "", "the mode of the Redis servers: single, sentinel, cluster or ring (single)")
	flags.StringSliceVar(&o.Addrs, "redis-addrs", nil, "the sentinels, some servers of the cluster, or all of the ring, as `HOST:PORT,…`; "+
		"--redis rediss://user@host beside it sets user and TLS")
	flags.StringSliceVar(&o.AddrsBefore, "redis-addrs-before", nil, "the servers of the ring before some were added or removed, while that "+
		"change is under way, as `HOST:PORT,…`")
	flags.StringVar(&o.Master, "redis-master", "", "the `NAME` by which sentinels know the master")
	flags.StringVar(&o.SentinelUsername, "redis-sentinel-username", "", "the user of the sentinels, if they have one")
	flags.StringVar(&o.SentinelPasswordFile, "redis-sentinel-password-file", "", "a `FILE` that holds the password of the sentinels")
	flags.StringVar(&o.Username, "redis-username", "", "the user, in place of the URL's")
	flags.StringVar(&o.PasswordFile, "redis-password-file", "", "a `FILE` that holds the password")
	flags.StringVar(&o.CAFile, "redis-ca", "", "a PEM `FILE` with the CAs of Redis's certificate")
	flags.StringVar(&o.CertFile, "redis-cert", "", "a PEM `FILE` with a certificate to show to Redis")
	flags.StringVar(&o.KeyFile, "redis-key", "", "a PEM `FILE` with its key")
	flags.StringVar(&o.ServerName, "redis-server-name", "", "the name that the certificate of Redis must have (each server's host)")
}

// openRedis opens the Redis that the flags or the environment name. The parameter missing is the
// text of the error if neither names one, without the remedy.
func openRedis(o redisstore.Options, missing string, logger *slog.Logger) (*redisstore.Store, error) {
	said, err := redisVariables(&o, os.Getenv)
	if err != nil {
		return nil, err
	}
	if !said && !namesServer(&o) {
		return nil, fmt.Errorf("%s: write --redis redis://host:6379, or set REDIS_ADDR", missing)
	}
	if o.URL, err = fillIn(o.URL); err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	o.Timeout, o.Logger = redisstore.TimeoutMax, logger
	return redisstore.New(o)
}

// namesServer reports whether the options name a server.
func namesServer(o *redisstore.Options) bool { return o.URL != "" || len(o.Addrs) > 0 }

// redisVariables reads the location of Redis from the environment, and reports whether it is set. A
// flag overrides the variable with the same meaning. Passwords and the name of the master are read
// even if no servers are set, so that they are not silently ignored.
func redisVariables(o *redisstore.Options, getenv func(string) string) (said bool, err error) {
	mode, addr, addrs := modeVariable(getenv), getenv("REDIS_ADDR"), getenv("REDIS_ADDRS")
	several := []string{redisstore.ModeSentinel, redisstore.ModeCluster, redisstore.ModeRing}
	if mode != "" && mode != redisstore.ModeSingle && !slices.Contains(several, mode) {
		return false, fmt.Errorf("REDIS_MODE is %q: write standalone (or single), sentinel, cluster or ring", mode)
	}
	if o.PasswordFile == "" {
		o.Password = getenv("REDIS_PASSWORD")
	}
	if o.SentinelPasswordFile == "" {
		o.SentinelPassword = getenv("REDIS_SENTINEL_PASSWORD")
	}
	if said = mode != "" || addr != "" || addrs != ""; namesServer(o) {
		return said, nil
	}
	o.Master = cmp.Or(o.Master, getenv("REDIS_MASTER"))
	flagged := o.Mode != "" && o.Mode != mode
	switch mode = cmp.Or(o.Mode, mode); {
	case !said:
		return said, nil
	// With --redis-mode cluster, one server in REDIS_ADDR is enough (below).
	case slices.Contains(several, mode) && !(flagged && addr != "" && addrs == ""):
		o.Mode = mode
		by := "REDIS_MODE"
		if flagged {
			by = "--redis-mode"
		}
		o.Addrs, err = readServers(by+" is "+mode, addr, addrs)
		return said, err
	case addrs != "":
		return said, fmt.Errorf("REDIS_ADDRS is set, which goes with cluster, sentinel or ring, and the mode is %q: set REDIS_MODE to one "+
			"of them, or REDIS_ADDR for one server", cmp.Or(mode, redisstore.ModeSingle))
	}
	addr = cmp.Or(addr, redisAddrDefault)
	if _, _, err := net.SplitHostPort(addr); err != nil || strings.ContainsAny(addr, "/@") {
		return said, errors.New("REDIS_ADDR is not a host:port such as localhost:6379; a URL is for --redis")
	}
	o.URL = "redis://" + addr
	return said, nil
}

// modeVariable returns REDIS_MODE. "standalone" is another word for the mode that flags call
// single.
func modeVariable(getenv func(string) string) string {
	mode := getenv("REDIS_MODE")
	if mode == "standalone" {
		return redisstore.ModeSingle
	}
	return mode
}

// readServers reads the addresses of several servers. Its errors name the setting that requires
// several servers. The store validates the addresses.
func readServers(by, addr, addrs string) (servers []string, err error) {
	if addr != "" {
		return nil, fmt.Errorf("REDIS_ADDR is set, and %s: put it into REDIS_ADDRS", by)
	}
	if addrs == "" {
		return nil, fmt.Errorf("%s, and REDIS_ADDRS is not set: name some servers, as host:port,host:port", by)
	}
	for one := range strings.SplitSeq(addrs, ",") {
		servers = append(servers, strings.TrimSpace(one))
	}
	return servers, nil
}

// storeFlags select the Redis whose counters a command reads.
type storeFlags struct {
	redisstore.Options
	environment bool
}

func (f *storeFlags) register(flags *pflag.FlagSet, usage string) {
	addRedis(flags, &f.Options, usage+", as in the Caddyfile: redis://user:{env.NAME}@host:6379/0")
	flags.BoolVar(&f.environment, "redis-env", false, "use REDIS_MODE, REDIS_ADDR, REDIS_ADDRS and so on, as penstock bridge does")
}

// storeFlags.given reports whether the flags name a server.
func (f *storeFlags) given() bool { return f.environment || namesServer(&f.Options) }

// storeFlags.options returns the options from the flags and the environment.
func (f *storeFlags) options() (o redisstore.Options, err error) {
	o = f.Options
	if f.environment {
		if namesServer(&o) {
			return o, errors.New("--redis-env takes the servers from the environment, and --redis or --redis-addrs names servers too; keep one")
		}
		switch said, err := redisVariables(&o, os.Getenv); {
		case err != nil:
			return o, err
		case !said:
			return o, errors.New("--redis-env, and neither REDIS_MODE nor REDIS_ADDR nor REDIS_ADDRS is set; set one, or write --redis " +
				"redis://host:6379")
		}
	}
	if o.URL, err = fillIn(o.URL); err != nil {
		return o, fmt.Errorf("--redis: %w", err)
	}
	return o, nil
}

var variable = regexp.MustCompile(`\{env\.[^{}]*\}`)

// fillIn replaces {env.NAME} in the URL of a store, as Caddy does. A value before the host is
// escaped, because passwords may contain any character.
func fillIn(text string) (filled string, err error) {
	at := strings.LastIndexByte(text, '@')
	for i, part := range []string{text[:max(0, at)], text[max(0, at):]} {
		filled += variable.ReplaceAllStringFunc(part, func(word string) string {
			value, wrong := policyfile.Secret(word)
			err = errors.Join(err, wrong)
			if i == 0 {
				value = url.PathEscape(value)
			}
			return value
		})
	}
	return filled, err
}
