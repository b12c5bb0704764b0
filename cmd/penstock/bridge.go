// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/redisstore"
)

// drainTime is how long calls under way may take when the bridge is told to stop.
const drainTime = 5 * time.Second

func newBridge() *cobra.Command {
	var policyFile, listen, redisURL string
	cmd := &cobra.Command{
		Use:     "bridge",
		Short:   "Answer the filters of Envoy: decide by a policy, over Redis or in memory",
		Example: "  penstock bridge --policy policy.yaml --redis redis://localhost:6379 --listen unix:/run/penstock.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			store, closeStore, err := openBridgeStore(redisURL, logger)
			if err != nil {
				return err
			}
			b, err := bridge.New(bridge.Options{PolicyFile: policyFile, Store: store, Shared: redisURL != "", Logger: logger})
			if err != nil {
				return errors.Join(err, closeStore())
			}
			return errors.Join(serveBridge(cmd.Context(), listen, b.Handler(), logger), b.Close(), closeStore())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&policyFile, "policy", "", "the policy file")
	flags.StringVar(&listen, "listen", "127.0.0.1:8441", "where to listen: host:port, or unix:PATH")
	flags.StringVar(&redisURL, "redis", "", "the Redis to count in; in memory if left out")
	_ = cmd.MarkFlagRequired("policy") // the flag exists
	return cmd
}

func openBridgeStore(url string, logger *slog.Logger) (core.Store, func() error, error) {
	if url == "" {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	}
	store, err := redisstore.New(redisstore.Options{URL: url, Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}

// serveBridge serves HTTP/1.1 and HTTP/2 without TLS until it is told to stop.
func serveBridge(ctx context.Context, address string, handler http.Handler, logger *slog.Logger) error {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	listener, err := listenOn(network, address)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	drained := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ending, end := context.WithTimeout(context.Background(), drainTime)
		defer end()
		drained <- server.Shutdown(ending)
	}()
	logger.Info("the bridge listens", "address", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}
