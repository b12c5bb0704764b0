// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control"
	"github.com/penstock/penstock/internal/control/localpg"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const controlHelp = `Keep clients, tiers and their history in PostgreSQL, and publish them to Redis.

--database may say {env.NAME} for a part of the address, such as the password; without it, the variable PENSTOCK_DATABASE says
the address. PGPASSWORD, PGPASSFILE and a service file work as with psql. Redis is named as for penstock bridge, by flags or
by REDIS_MODE, REDIS_ADDR and so on. If the proxies of each region have a Redis of their own, give --region for each, in place of
--redis. Any number of processes may run over one database, each with all regions or some of them.

People may use the tokens of an OpenID Connect issuer (--oidc-issuer) instead of tokens of the control plane.

The first start prints an admin's token, once. /healthz, /readyz and /openapi.json need no token.`

// controlFlags are the flags of the commands of the control plane, as written.
type controlFlags struct {
	database     string
	redis        redisstore.Options
	regions      []string
	listen       string
	socketMode   string
	certificates certificates
	tokenFile    string
	folder       string
	policyKey    string
	archive      archiveFlags
	webhooks     webhookFlags
	oidc         oidcFlags
}

func newControl() *cobra.Command {
	cmd := &cobra.Command{Use: "control", Short: "Keep clients in PostgreSQL, and publish them to Redis", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newControlServe(), newControlDev(), newControlToken(), newControlAudit(), newControlOpenAPI(), newControlPolicy(), newControlArchive(), newControlThreshold(),
		newControlImport(), newControlMetrics(), newControlStatus(), newControlTier(), newControlEvents(), newControlForget(), newControlRemaining())
	return cmd
}

func newControlServe() *cobra.Command {
	f := new(controlFlags)
	cmd := &cobra.Command{Use: "serve", Short: "Serve the API, and publish to Redis", Long: controlHelp, Args: noArgs,
		Example: "  penstock control serve --database postgres://penstock@db/penstock --redis redis://localhost:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := f.databaseAddress()
			if err != nil {
				return err
			}
			return f.serve(cmd.Context(), address)
		}}
	f.registerDatabase(cmd)
	f.register(cmd)
	return cmd
}

func newControlDev() *cobra.Command {
	f := new(controlFlags)
	cmd := &cobra.Command{Use: "dev", Short: "Serve with a private PostgreSQL of this machine", Args: noArgs,
		Long: "Start a private PostgreSQL in a folder, on a Unix socket, and serve as penstock control serve does.\n" +
			"Its programs are those in /usr/lib/postgresql, else those in the search path.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			server, err := localpg.Start(cmd.Context(), localpg.Options{Folder: f.folder})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, server.Stop()) }()
			if f.policyKey == "" {
				f.policyKey = filepath.Join(f.folder, "policy.key")
				if _, err := makePolicyKey(f.policyKey); err != nil && !errors.Is(err, fs.ErrExist) {
					return err
				}
			}
			return f.serve(cmd.Context(), server.URL())
		}}
	cmd.Flags().StringVar(&f.folder, "dir", ".penstock", "the `FOLDER` of the database; it is made if it is missing")
	f.register(cmd)
	return cmd
}

func (f *controlFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	addRedis(flags, &f.redis, "the Redis of the proxies: redis://user:{env.NAME}@host:6379/0")
	flags.StringArrayVar(&f.regions, "region", nil, "in place of --redis, a region and the Redis of its proxies, as `NAME=redis://user:{env.NAME}@host:6379/0`; once for each region")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7070", "where to serve the API: host:port, or unix:PATH")
	flags.StringVar(&f.socketMode, "socket-mode", "0660", "the mode of a Unix socket")
	flags.StringVar(&f.certificates.cert, "tls-cert", "", "a PEM `FILE` with the certificate of the API")
	flags.StringVar(&f.certificates.key, "tls-key", "", "a PEM `FILE` with its key")
	flags.StringVar(&f.certificates.clientCA, "client-ca", "", "a PEM `FILE` with the CAs of callers, which must show a certificate")
	flags.StringVar(&f.policyKey, "policy-key", "", "a `FILE` with the private key that signs policies, made by penstock control policy key")
	f.archive.register(flags)
	f.webhooks.register(flags)
	f.oidc.register(flags)
	flags.StringVar(&f.tokenFile, "first-token-file", "", "write the first admin's token to a `FILE` that only this user reads, in place of printing it")
}

// controlFlags.serve runs the control plane until SIGINT or SIGTERM.
func (f *controlFlags) serve(ctx context.Context, database string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	regions, err := f.openRegions(logger)
	if err != nil {
		return err
	}
	defer closeRegions(regions)
	key, err := readPolicyKey(f.policyKey, logger)
	if err != nil {
		return err
	}
	bucket, err := f.archive.bucket()
	if err != nil {
		return err
	}
	keep, err := f.archive.keep()
	if err != nil {
		return err
	}
	webhooks, err := f.webhooks.caller(logger)
	if err != nil {
		return err
	}
	issuer, people, err := f.oidc.open(logger)
	if err != nil {
		return err
	}
	defer issuer.Close()
	listener, config, err := f.listener()
	if err != nil {
		return err
	}
	defer listener.Close()
	ctx, stop := untilStopped(ctx)
	defer stop()
	logger.Info("penstock control listens", "address", listener.Addr().String())
	return control.Run(ctx, control.Options{Database: database, Regions: regions, Listener: listener, TLS: config, Logger: logger, PolicyKey: key,
		FirstToken: f.showToken, Archive: bucket, Keep: keep, Webhooks: webhooks, People: people})
}

// controlFlags.listener listens on the address in the flags. It also returns the configuration of
// TLS, or nil if the flags name no certificate.
func (f *controlFlags) listener() (net.Listener, *tls.Config, error) {
	config, err := f.certificates.config()
	if err != nil {
		return nil, nil, err
	}
	mode, err := parseSocketMode(f.socketMode)
	if err != nil {
		return nil, nil, err
	}
	at, beyond, err := listen.Parse(f.listen)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	if beyond && config == nil {
		return nil, nil, fmt.Errorf("other machines can reach --listen %q, and tokens could be read on the network: give --tls-cert and --tls-key, or "+
			"listen on 127.0.0.1 or a Unix socket behind a proxy with TLS", f.listen)
	}
	listener, err := listen.On(at, mode)
	return listener, config, err
}

// showToken shows the first admin's token.
func (f *controlFlags) showToken(secret string, expires time.Time) error {
	if f.tokenFile != "" {
		if err := writeSecret(f.tokenFile, secret); err != nil {
			return fmt.Errorf("--first-token-file: %w", err)
		}
		return nil
	}
	_, err := fmt.Printf("the first admin's token, shown this once, until %s:\n%s\n", expires.Format(time.DateOnly), secret)
	return err
}

// writeSecret writes a secret to a file that only this user can read, even if the file existed
// before.
func writeSecret(path, secret string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = file.Chmod(0o600); err == nil {
		_, err = file.WriteString(secret + "\n")
	}
	return errors.Join(err, file.Close())
}
