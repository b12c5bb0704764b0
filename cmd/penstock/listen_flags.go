// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// certificates holds the paths of PEM files.
type certificates struct{ cert, key, clientCA string }

// certificates.config returns the TLS configuration, or nil for no TLS.
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
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs, err = readCAs("--client-ca", c.clientCA)
	return config, err
}

// readCAs reads the PEM file with certificates that a flag names.
func readCAs(flag, path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %q holds no PEM certificate", flag, path)
	}
	return pool, nil
}

// parseSocketMode parses the mode of a Unix socket.
func parseSocketMode(text string) (fs.FileMode, error) {
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("--socket-mode %q is not an octal mode: write 0660", text)
	}
	return fs.FileMode(mode), nil
}
