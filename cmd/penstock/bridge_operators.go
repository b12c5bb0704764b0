// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/listen"
)

// adminConnectionsMax bounds the connections of operators.
const adminConnectionsMax = 256

// operatorFlags are the flags of the bridge for operators.
type operatorFlags struct {
	listen           string
	token, tokenFile string
}

func (f *operatorFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "admin-listen", "", "where to serve operators (penstock client, reset and so on with --bridge): host:port, or unix:PATH")
	flags.StringVar(&f.token, "admin-token", "", "the bearer token of operators, or {env.NAME}: with it, --listen serves them, too")
	flags.StringVar(&f.tokenFile, "admin-token-file", "", "a `FILE` that holds the token of operators")
}

// readToken returns the token of operators, or "" if there is none. The token must differ from the
// token of filters.
func (f *operatorFlags) readToken(ofFilters string) (string, error) {
	token, err := listen.ReadToken("--admin-token", f.token, "--admin-token-file", f.tokenFile)
	if err == nil && token != "" && token == ofFilters {
		return "", errors.New("--admin-token is the same as --token, so every filter could reset limits: make another one, as with " +
			"openssl rand -hex 16")
	}
	return token, err
}

// requireToken reports whether operators must send a token.
func (f *operatorFlags) requireToken() bool { return f.token != "" || f.tokenFile != "" }

// operatorFlags.entrance adds the address for operators, and reports whether other machines can
// reach it.
func (f *operatorFlags) entrance(e *entrances) (beyond bool, err error) {
	if f.listen == "" {
		return false, nil
	}
	if e.admin, beyond, err = listen.Parse(f.listen); err != nil {
		return false, fmt.Errorf("--admin-listen: %w", err)
	}
	if beyond && !f.requireToken() {
		return false, fmt.Errorf("other machines can reach --admin-listen %q, and everyone that reaches it can reset any client's limits: "+
			"give --admin-token-file, or listen on 127.0.0.1 or a Unix socket", f.listen)
	}
	return beyond, nil
}

// serveOperators begins to serve operators, if there is an address for them. A Unix socket has no
// TLS.
func (s *serveArgs) serveOperators(b *bridge.Bridge, guarded bool, logger *slog.Logger) (*http.Server, error) {
	config := s.tls
	if s.admin.Network == "unix" {
		config = nil
	}
	server := httpServer(b.AdminHandler(), config, logger)
	if s.admin.Network == "" {
		return server, nil
	}
	listener, err := listen.On(s.admin, s.mode)
	if err != nil {
		return nil, err
	}
	listener = listen.NewLimit(listener, adminConnectionsMax, guarded, logger)
	go func() {
		if err := serveHTTP(server, listener); err != nil {
			logger.Error("operators are no longer served", "error", err)
		}
	}()
	logger.Info("the bridge serves operators", "address", listener.Addr().String())
	return server, nil
}
