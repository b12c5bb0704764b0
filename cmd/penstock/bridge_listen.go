// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/penstock/penstock/internal/listen"
)

// certificates are the paths of PEM files.
type certificates struct{ cert, key, clientCA string }

// config returns the TLS configuration, or nil for no TLS.
func (c *certificates) config() (*tls.Config, error) {
	switch {
	case (c.cert == "") != (c.key == ""):
		return nil, errors.New("--tls-cert and --tls-key belong together: give both or none")
	case c.cert == "" && c.clientCA != "":
		return nil, errors.New("--client-ca needs TLS: give --tls-cert and --tls-key as well")
	case c.cert == "":
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %q and --tls-key %q: %w", c.cert, c.key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.clientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(c.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca: %q holds no PEM certificate", c.clientCA)
	}
	return config, nil
}

// entrances are the addresses that the bridge will listen on, with their certificates.
type entrances struct {
	http, rls, xds listen.Address // the zero value if it is not used
	admin          listen.Address
	tls            *tls.Config
	mode           fs.FileMode // of Unix sockets
	guarded        bool        // callers must present a token or a certificate
}

// entrances returns the addresses to listen on. It rejects addresses that other machines could use
// without a token or certificate.
func (f *bridgeFlags) entrances(token string, logger *slog.Logger) (e entrances, err error) {
	if e.tls, err = f.certificates.config(); err != nil {
		return e, err
	}
	mode, err := strconv.ParseUint(f.socketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return e, fmt.Errorf("--socket-mode %q is not an octal mode: write 0660", f.socketMode)
	}
	e.mode, e.guarded = fs.FileMode(mode), token != "" || e.certified()
	beyond := false
	for _, g := range [...]struct {
		flag, address string
		entrance      *listen.Address
	}{{"--listen", f.listen, &e.http}, {"--rls-listen", f.rls, &e.rls}, {"--xds-listen", f.xds, &e.xds}} {
		if g.address == "" && g.entrance != &e.http {
			continue
		}
		var far bool
		if *g.entrance, far, err = listen.Parse(g.address); err != nil {
			return e, fmt.Errorf("%s: %w", g.flag, err)
		}
		if far && token == "" && !e.certified() {
			return e, fmt.Errorf("other machines can reach %s %q, and everyone that reaches the bridge can spend any client's "+
				"allowance: give --token-file, or --tls-cert, --tls-key and --client-ca, or listen on 127.0.0.1 or a Unix socket",
				g.flag, g.address)
		}
		beyond = beyond || far
	}
	far, err := f.operators.entrance(&e)
	if err != nil {
		return e, err
	}
	beyond = beyond || far
	if beyond && e.tls == nil {
		logger.Warn("the bridge listens beyond this machine without TLS: the token and all requests can be read on the network")
	}
	return e, nil
}

// certified reports whether callers must present certificates.
func (e *entrances) certified() bool {
	return e.tls != nil && e.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// The limits of the connections of each address that the bridge listens on.
const (
	// httpConnectionsMax is larger than the number of running and waiting calls, because with
	// HTTP/1.1 each call has its own connection. An idle connection holds some 10 KB.
	httpConnectionsMax = 1 << 15
	// grpcConnectionsMax allows one connection for each worker of some hundred Envoys. An idle
	// connection holds some 80 KB.
	grpcConnectionsMax = 1 << 12
)

// open listens, and limits the number of open connections.
func (e *entrances) open(at listen.Address, connectionsMax int, logger *slog.Logger) (net.Listener, error) {
	listener, err := listen.On(at, e.mode)
	if err != nil {
		return nil, err
	}
	return listen.NewLimit(listener, connectionsMax, e.guarded, logger), nil
}
