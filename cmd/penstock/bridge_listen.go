// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"net"

	"github.com/penstock/penstock/internal/listen"
)

// entrances are the addresses that the bridge will listen on, with their certificates.
type entrances struct {
	http, rls, xds listen.Address // zero for an address that is not used
	admin          listen.Address
	tls            *tls.Config
	mode           fs.FileMode // the mode of Unix sockets
	guarded        bool        // callers must present a token or a certificate
}

// bridgeFlags.entrances returns the addresses to listen on. It rejects addresses that other
// machines could use without a token or certificate.
func (f *bridgeFlags) entrances(token string, logger *slog.Logger) (e entrances, err error) {
	if e.tls, err = f.certificates.config(); err != nil {
		return e, err
	}
	if e.mode, err = parseSocketMode(f.socketMode); err != nil {
		return e, err
	}
	e.guarded = token != "" || e.certified()
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

// entrances.certified reports whether callers must present certificates.
func (e *entrances) certified() bool {
	return e.tls != nil && e.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// The limits of the connections of each address that the bridge listens on.
const (
	// httpConnectionsMax is larger than the number of running and waiting calls, because with
	// HTTP/1.1 each call has its own connection. An idle connection holds about 10 KB.
	httpConnectionsMax = 1 << 15
	// grpcConnectionsMax allows one connection for each worker of about a hundred Envoys. An idle
	// connection holds about 80 KB.
	grpcConnectionsMax = 1 << 12
)

// entrances.open listens, and limits the number of open connections.
func (e *entrances) open(at listen.Address, connectionsMax int, logger *slog.Logger) (net.Listener, error) {
	listener, err := listen.On(at, e.mode)
	if err != nil {
		return nil, err
	}
	return listen.NewLimit(listener, connectionsMax, e.guarded, logger), nil
}
