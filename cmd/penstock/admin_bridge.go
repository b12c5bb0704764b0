// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/listen"
)

// adminTokenVariable is the environment variable with the token of operators.
const adminTokenVariable = "PENSTOCK_ADMIN_TOKEN"

// bridgeTarget is a running bridge to which a command sends its request.
type bridgeTarget struct {
	url           string
	tokenFile     string
	ca, cert, key string
}

func (b *bridgeTarget) register(flags *pflag.FlagSet) {
	flags.StringVar(&b.url, "bridge", "", "ask this bridge, or this native module in Envoy, in place of a Caddy: http://host:port, https://host:port or unix:PATH")
	flags.StringVar(&b.tokenFile, "bridge-token-file", "", "a `FILE` that holds the bridge's token of operators (the variable "+adminTokenVariable+")")
	flags.StringVar(&b.ca, "bridge-ca", "", "a PEM `FILE` with the CAs of the bridge's certificate (those of the system)")
	flags.StringVar(&b.cert, "bridge-cert", "", "a PEM `FILE` with a certificate to show to the bridge")
	flags.StringVar(&b.key, "bridge-key", "", "a PEM `FILE` with its key")
}

// bridgeTarget.check returns an error if flags are given that have no effect.
func (b *bridgeTarget) check() error {
	if b.url == "" && (b.tokenFile != "" || b.ca != "" || b.cert != "" || b.key != "") {
		return errors.New("the flags --bridge-… need --bridge, which is missing; write --bridge http://127.0.0.1:8442")
	}
	return nil
}

// bridgeTarget.process returns the bridge as the target of a request.
func (b *bridgeTarget) process() (p *process, err error) {
	p = &process{name: "the bridge", flag: "--bridge", at: b.url, is: "a bridge that serves operators",
		takes: "the address of --admin-listen, or of --listen with --admin-token-file", remedy: "is it running, with --admin-listen or --admin-token-file?"}
	if p.token, err = b.token(); err != nil {
		return nil, err
	}
	if path, ok := strings.CutPrefix(b.url, "unix:"); ok && path != "" {
		p.base, p.client = url.URL{Scheme: "http", Host: "localhost"}, overSocket(path)
		return p, nil
	}
	at, err := url.Parse(b.url)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || strings.Trim(at.Path, "/") != "" || at.User != nil ||
		at.RawQuery != "" {
		return nil, fmt.Errorf("--bridge %q is no address of a bridge; write http://host:port, https://host:port or unix:PATH", b.url)
	}
	config, err := b.tls()
	if err != nil {
		return nil, err
	}
	p.base = url.URL{Scheme: at.Scheme, Host: at.Host}
	// The token is sent only to the bridge that the flag names, not to a redirect's target.
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: config},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return p, nil
}

// bridgeTarget.token returns the token of operators, or "" if there is none.
func (b *bridgeTarget) token() (string, error) {
	if b.tokenFile == "" {
		return os.Getenv(adminTokenVariable), nil
	}
	token, err := listen.ReadSecret(b.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--bridge-token-file: %w", err)
	}
	return token, nil
}

// bridgeTarget.tls returns the TLS configuration of connections to the bridge.
func (b *bridgeTarget) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if b.ca != "" {
		var err error
		if config.RootCAs, err = readCAs("--bridge-ca", b.ca); err != nil {
			return nil, err
		}
	}
	if b.cert == "" && b.key == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(b.cert, cmp.Or(b.key, b.cert))
	if err != nil {
		return nil, fmt.Errorf("--bridge-cert %q and --bridge-key %q: %w", b.cert, b.key, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}
