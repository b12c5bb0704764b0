// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/redisstore"
)

// lookTimeout is how long Redis may take to answer: a person waits, and may be far from it.
const lookTimeout = 5 * time.Second

// storeFlags say in which Redis the counters are; none of them means fresh ones.
type storeFlags struct {
	url, passwordFile, ca, cert, key, serverName string
}

func (f *storeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "redis", "", "the Redis whose counters to look at, as in the Caddyfile: redis://user:{env.NAME}@host:6379/0")
	flags.StringVar(&f.passwordFile, "redis-password-file", "", "a file that holds the password of Redis")
	flags.StringVar(&f.ca, "redis-ca", "", "a PEM file with the certificates that the one of Redis descends from")
	flags.StringVar(&f.cert, "redis-cert", "", "a PEM file with the client's certificate for Redis")
	flags.StringVar(&f.key, "redis-key", "", "a PEM file with the client's key for Redis")
	flags.StringVar(&f.serverName, "redis-server-name", "", "the name in the certificate of Redis (default: the host)")
}

// lookedAt is a store that is only looked at. name is "" if it is one of fresh counters.
type lookedAt struct {
	core.Store
	name  string
	Close func() error
}

// open returns the store of the flags, or one of fresh counters at that instant.
func (f *storeFlags) open(now core.Micros) (*lookedAt, error) {
	if f.url == "" {
		if *f != (storeFlags{}) {
			return nil, errors.New("the flags --redis-… say how to reach Redis, and --redis is missing; write --redis redis://host:6379/0")
		}
		store, err := memstore.New(memstore.Options{Now: func() core.Micros { return now }})
		if err != nil {
			return nil, err
		}
		return &lookedAt{Store: store, Close: store.Close}, nil
	}
	target, err := fillIn(f.url)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	store, err := redisstore.New(redisstore.Options{URL: target, PasswordFile: f.passwordFile, CAFile: f.ca, CertFile: f.cert,
		KeyFile: f.key, ServerName: f.serverName, Timeout: lookTimeout, Lanes: 1})
	if err != nil {
		return nil, err
	}
	return &lookedAt{Store: store, name: withoutUser(target), Close: store.Close}, nil
}

// withoutUser returns the URL, which has been read before, without who asks and with what password.
func withoutUser(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return "redis"
	}
	u.User = nil
	return u.String()
}

var variable = regexp.MustCompile(`\{env\.[^{}]*\}`)

// fillIn replaces {env.NAME} as Caddy does in the URL of a store: what stands before the host is escaped, since passwords
// hold any character.
func fillIn(text string) (filled string, err error) {
	at := strings.LastIndexByte(text, '@')
	for i, part := range []string{text[:max(0, at)], text[max(0, at):]} {
		filled += variable.ReplaceAllStringFunc(part, func(word string) string {
			value, wrong := policy.Secret(word)
			err = errors.Join(err, wrong)
			if i == 0 {
				value = url.PathEscape(value)
			}
			return value
		})
	}
	return filled, err
}

// look answers the plan's checks without charging anything.
func look(ctx context.Context, store core.Store, plan *core.Plan) error {
	checks := append([]core.Check(nil), plan.Checks()...)
	if len(checks) == 0 {
		return nil
	}
	for i := range checks {
		checks[i].Op, checks[i].Guard, checks[i].Violation = core.OpLook, 0, 0
	}
	if err := store.Take(ctx, checks, plan.Results()); err != nil {
		return fmt.Errorf("looking at the counters: %w", err)
	}
	return nil
}
