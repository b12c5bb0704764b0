// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/policyfile/lint"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const bridgeHelp = `Answer the filters of Envoy: decide by a policy, over Redis or in memory.

Without --policy the environment says a token bucket for each client address:
  BUCKET_SIZE   tokens that a client has at most (10)
  REFILL_RATE   tokens that come back in a second, an exact decimal: 0.5 is one in two seconds (1.0)

Without --redis the environment may say where to count:
  REDIS_MODE    standalone (or single), sentinel, cluster or ring
  REDIS_ADDR    host:port of one server (localhost:6379, with REDIS_MODE)
  REDIS_ADDRS   host:port,host:port of the sentinels, of some servers of the cluster, or of all of the ring
  REDIS_MASTER  the name by which sentinels know the master
  REDIS_SENTINEL_PASSWORD  the password of the sentinels, if they have one
  REDIS_PASSWORD  also with --redis, unless --redis-password-file says it

PENSTOCK_EVENTS says the same as --events.

The variables of OpenTelemetry make the bridge send spans of checks and metrics by OTLP. Nothing is sent without them:
  OTEL_EXPORTER_OTLP_ENDPOINT  the collector, as http://localhost:4318
  OTEL_EXPORTER_OTLP_PROTOCOL  http/protobuf (the default) or grpc
  OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER  none sends the other only; otlp sends to http://localhost:4318 without an endpoint
  OTEL_SERVICE_NAME            the name of the service (penstock-bridge)

A flag wins over a variable that says the same thing otherwise. What contradicts or has no effect is an error.

Over TCP it listens beyond this machine only if callers show a token or a client certificate, over gRPC as well. SIGHUP reads
the policy file, which is followed anyway; tokens, passwords and certificates are read at the start. SIGTERM makes /readyz say
503, and after --drain-delay the bridge answers what is under way and ends.`

// bridgeFlags are the flags of the bridge command, as written.
type bridgeFlags struct {
	policy       string
	published    publishedFlags
	shadow       string
	region       string
	redis        redisstore.Options
	countersMax  int
	clientsMax   int
	bytesMax     int64
	remember     bool
	token        string
	tokenFile    string
	callsMax     int
	waitersMax   int
	listen, rls  string
	hosts        []string
	xds          string
	xdsWasm      string
	xdsFilter    string
	socketMode   string
	certificates certificates
	operators    operatorFlags
	drainDelay   time.Duration
	events       string
	feed         feedFlags
}

func newBridge() *cobra.Command {
	f := new(bridgeFlags)
	cmd := &cobra.Command{
		Use:     "bridge",
		Short:   "Answer the filters of Envoy: decide by a policy, over Redis or in memory",
		Long:    bridgeHelp,
		Example: "  penstock bridge --policy policy.yaml --redis redis://localhost:6379 --listen unix:/run/penstock.sock",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "", "the policy `FILE`, which is followed; or redis:NAME or http:NAME, which a control plane publishes in --redis or in its API")
	f.published.register(flags)
	flags.StringVar(&f.shadow, "shadow-policy", "", "a policy `FILE` to try out beside the policy: it is followed and counted, and decides nothing")
	flags.StringVar(&f.region, "region", "", "the `NAME` of this bridge's region: one of the policy's regions")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8441", "where to serve HTTP/1.1 and HTTP/2: host:port, or unix:PATH")
	flags.StringSliceVar(&f.hosts, "host", nil, "a host `NAME` with a dot by which callers without a token reach the bridge over TCP; that of --listen is known")
	flags.StringVar(&f.rls, "rls-listen", "", "where to serve Envoy's rate limit protocol, over gRPC: host:port, or unix:PATH")
	flags.StringVar(&f.xds, "xds-listen", "", "where to serve Envoy the filter with its policy, over gRPC (ECDS, the resource penstock)")
	flags.StringVar(&f.xdsWasm, "xds-wasm", "", "the path of `penstock.wasm` on Envoy's machine")
	flags.StringVar(&f.xdsFilter, "xds-filter", "", "a `FILE` with the filter's configuration, lines of name: value without a policy")
	flags.StringVar(&f.socketMode, "socket-mode", "0660", "the `MODE` of a Unix socket")
	flags.StringVar(&f.token, "token", "", "the bearer token of callers, or {env.NAME}: at least 16 characters")
	flags.StringVar(&f.tokenFile, "token-file", "", "a `FILE` that holds the token")
	flags.StringVar(&f.certificates.cert, "tls-cert", "", "a PEM `FILE` with the certificate to serve TLS with")
	flags.StringVar(&f.certificates.key, "tls-key", "", "a PEM `FILE` with its key")
	flags.StringVar(&f.certificates.clientCA, "client-ca", "", "a PEM `FILE` with the CAs of callers' certificates")
	f.operators.register(flags)
	addRedis(flags, &f.redis, "the Redis to count in: redis://user:{env.NAME}@host:6379/0, rediss:// or unix://; in memory if left out")
	flags.DurationVar(&f.redis.Timeout, "redis-timeout", 0, "timeout of a store call (50ms)")
	flags.BoolVar(&f.remember, "remember-denials", true, "remember denials of Redis for up to a second, for fewer calls")
	flags.IntVar(&f.countersMax, "counters-max", 0, "maximum number of counters in memory (1048576)")
	flags.IntVar(&f.clientsMax, "clients-max", 0, "maximum number of clients of the directory that are remembered (65536)")
	flags.Int64Var(&f.bytesMax, "bytes-max", 0, "bytes that counters in memory take at most (256 for each of --counters-max, "+
		"and 268435456 at least)")
	flags.IntVar(&f.callsMax, "calls-max", 0, "maximum number of calls in progress; further calls get 503 (1024)")
	flags.IntVar(&f.waitersMax, "waiting-max", 0, "maximum number of requests that wait for throttle rules (16384)")
	flags.StringVar(&f.events, "events", "", "where to write the events that the policy reports, as lines of JSON: "+events.Forms+" (stdout)")
	f.feed.register(flags)
	flags.DurationVar(&f.drainDelay, "drain-delay", time.Second, "how long to report that the bridge will stop before it stops")
	return cmd
}

// checkNegative returns an error if a bound is below 0. Some packages would read a negative bound
// as the default, others would ignore it.
func (f *bridgeFlags) checkNegative() error {
	var problems []error
	for _, bound := range []struct {
		flag  string
		value int
	}{{"calls-max", f.callsMax}, {"waiting-max", f.waitersMax}, {"counters-max", f.countersMax},
		{"clients-max", f.clientsMax}} {
		if bound.value < 0 {
			problems = append(problems, fmt.Errorf("--%s %d is negative: leave it out for the default", bound.flag, bound.value))
		}
	}
	if f.bytesMax != 0 && f.bytesMax < memstore.BytesMaxLeast {
		problems = append(problems, fmt.Errorf("--bytes-max %d is too little: write %d or more, or leave it out for the default",
			f.bytesMax, memstore.BytesMaxLeast))
	}
	if f.drainDelay < 0 {
		problems = append(problems, fmt.Errorf("--drain-delay %v is negative: write 0s to stop at once", f.drainDelay))
	}
	return errors.Join(problems...)
}

// bridgeFlags.run serves until ctx ends.
func (f *bridgeFlags) run(ctx context.Context, logger *slog.Logger) (err error) {
	if err := f.checkNegative(); err != nil {
		return err
	}
	if err := f.published.check(f.policy); err != nil {
		return err
	}
	document, err := f.fromEnvironment(os.Getenv, logger)
	if err != nil {
		return err
	}
	token, err := f.readToken()
	if err != nil {
		return err
	}
	adminToken, err := f.operators.readToken(token)
	if err != nil {
		return err
	}
	f.warnOfArguments(logger)
	entrances, err := f.entrances(token, logger)
	if err != nil {
		return err
	}
	o := bridge.Options{PolicyFile: f.policy, Region: f.region, ShadowPolicyFile: f.shadow, Policy: document, Token: token, AdminToken: adminToken, Shared: namesServer(&f.redis), CallsMax: f.callsMax,
		WaitersMax: f.waitersMax, Forgetful: !f.remember, Called: listen.Called, Hosts: f.hosts, Logger: logger}
	if host, _, err := net.SplitHostPort(f.listen); err == nil {
		o.Hosts = append(o.Hosts, host)
	}
	if f.rls != "" {
		o.Fronts = append(o.Fronts, lint.FrontRLS)
	}
	envoys, err := f.discovery(&entrances, token, logger)
	if err != nil {
		return err
	}
	if envoys != nil {
		o.Changed = envoys.Set
	}
	closeEvents, err := f.openEvents(&o)
	if err != nil {
		return err
	}
	defer closeEvents()
	opened, err := f.openStore(&o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	closeSending, err := openSending(ctx, &o)
	if err != nil {
		return err
	}
	defer closeSending()
	if err := f.usePublished(&o, opened, logger); err != nil {
		return err
	}
	b, err := bridge.New(o)
	if err != nil {
		return err
	}
	if opened.Redis != nil {
		defer fleet.Join(opened.Redis, b.Node()).Close()
	}
	return errors.Join(f.serve(ctx, b, &serveArgs{store: o.Store, corrections: o.Corrections, loans: o.Loans, metrics: o.Metrics, outages: o.Outages,
		envoys: envoys, token: token, callsMax: f.callsMax, tracer: o.Tracer, entrances: entrances}, logger), b.Close())
}

// usePublished sets the source of a policy that a control plane publishes.
func (f *bridgeFlags) usePublished(o *bridge.Options, opened *store.Store, logger *slog.Logger) (err error) {
	if !isPublished(f.policy) {
		return nil
	}
	o.PolicyFile = ""
	o.Source, err = f.published.source(f.policy, opened.Redis, &f.feed, logger)
	return err
}

// warnOfArguments warns about secrets in the command line, which other users of the machine can
// see.
func (f *bridgeFlags) warnOfArguments(logger *slog.Logger) {
	for flag, token := range map[string]string{"token": f.token, "admin-token": f.operators.token} {
		if token != "" && !strings.HasPrefix(token, "{env.") {
			logger.Warn(fmt.Sprintf("--%s is visible to every user of this machine in the list of processes: give --%[1]s-file, or "+
				"--%[1]s '{env.NAME}'", flag))
		}
	}
	if from, err := url.Parse(f.redis.URL); err == nil && from.User != nil {
		if _, given := from.User.Password(); given {
			logger.Warn("the password in --redis is visible to every user of this machine in the list of processes: give " +
				"--redis-password-file, or REDIS_PASSWORD")
		}
	}
}

// readToken returns the token of filters, or "" if there is none.
func (f *bridgeFlags) readToken() (string, error) {
	return listen.ReadToken("--token", f.token, "--token-file", f.tokenFile)
}
