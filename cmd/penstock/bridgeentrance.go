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
	"strings"
)

// certificates are files in PEM.
type certificates struct{ cert, key, clientCA string }

// config returns how TLS is served; nil for none.
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

// entrance is where the bridge will listen.
type entrance struct{ network, address string }

// entrances are where the bridge will listen, and with what certificates.
type entrances struct {
	http, rls, xds entrance // the network of one that there is not is ""
	tls            *tls.Config
	mode           fs.FileMode // of Unix sockets
	guarded        bool        // callers show a token or a certificate
}

// entrances finds out where to listen, and refuses to let in anybody from other machines who shows nothing.
func (f *bridgeFlags) entrances(token string, logger *slog.Logger) (e entrances, err error) {
	if e.tls, err = f.certificates.config(); err != nil {
		return e, err
	}
	mode, err := strconv.ParseUint(f.socketMode, 8, 32)
	if err != nil || mode > 0o777 {
		return e, fmt.Errorf("--socket-mode %q is no octal mode: write 0660", f.socketMode)
	}
	e.mode, e.guarded = fs.FileMode(mode), token != "" || e.certified()
	beyond := false
	for _, g := range [...]struct {
		flag, address string
		entrance      *entrance
	}{{"--listen", f.listen, &e.http}, {"--rls-listen", f.rls, &e.rls}, {"--xds-listen", f.xds, &e.xds}} {
		if g.address == "" && g.entrance != &e.http {
			continue
		}
		var far bool
		if *g.entrance, far, err = entranceOf(g.address); err != nil {
			return e, fmt.Errorf("%s: %w", g.flag, err)
		}
		if far && token == "" && !e.certified() {
			return e, fmt.Errorf("%s %q is reached from other machines, and whoever reaches the bridge can spend anybody's "+
				"allowance: give --token-file, or --tls-cert, --tls-key and --client-ca, or listen on 127.0.0.1 or a Unix socket",
				g.flag, g.address)
		}
		beyond = beyond || far
	}
	if beyond && e.tls == nil {
		logger.Warn("the bridge listens beyond this machine without TLS: the network sees the token and who asks for what")
	}
	return e, nil
}

// certified reports whether callers show certificates.
func (e *entrances) certified() bool {
	return e.tls != nil && e.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// entranceOf reads an address, and reports whether it can be reached from other machines. A host name is looked up now, so
// that what was looked at is what is listened on.
func entranceOf(address string) (e entrance, beyond bool, err error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if path == "" {
			return e, false, errors.New("unix: has no path; write unix:/run/penstock.sock")
		}
		return entrance{"unix", path}, false, nil
	}
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return e, false, fmt.Errorf("%w; write host:port, or unix:PATH", err)
	}
	return entrance{"tcp", tcp.String()}, !tcp.IP.IsLoopback(), nil
}

// open listens, and lets so many connections be open at once.
func (e *entrances) open(at entrance, connectionsMax int, logger *slog.Logger) (net.Listener, error) {
	listener, err := listenOn(at.network, at.address, e.mode)
	if err != nil {
		return nil, err
	}
	return newCrowd(listener, connectionsMax, e.guarded, logger), nil
}
