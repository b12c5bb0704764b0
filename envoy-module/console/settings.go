// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/penstock/penstock/internal/listen"
)

// Settings configure the console. The fields have the names of the bridge's flags for operators,
// and the rules for the values are the same.
type Settings struct {
	// Where to serve: `host:port`, or `unix:PATH`. Required.
	Listen string `json:"listen,omitempty"`

	// The bearer token of operators, or `{env.NAME}`. Without a token, only this machine is served.
	Token string `json:"token,omitempty"`

	// A file that holds the token.
	TokenFile string `json:"token_file,omitempty"`

	// A second bearer token, or `{env.NAME}`, that is accepted only for /metrics.
	MetricsToken string `json:"metrics_token,omitempty"`

	// A file that holds the second token.
	MetricsTokenFile string `json:"metrics_token_file,omitempty"`

	// Two PEM files: the certificate for TLS, and its key. A Unix socket has no TLS.
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`

	// The octal mode of a Unix socket. Default: 0660.
	SocketMode string `json:"socket_mode,omitempty"`
}

// modeDefault is the mode of a Unix socket if no mode is given.
const modeDefault = 0o660

// checkedSettings holds checked settings, together with the secrets and the certificate that were
// read from the files they name.
type checkedSettings struct {
	text          Settings
	address       listen.Address
	beyond        bool // other machines can reach the address
	mode          fs.FileMode
	token, metric string // "" for none
	tls           *tls.Config
}

// Check returns an error if the settings are not valid.
func (s *Settings) Check() error {
	_, err := s.read()
	return err
}

// Settings.read checks the settings and reads the files that they name.
func (s *Settings) read() (r *checkedSettings, err error) {
	r = &checkedSettings{text: *s, mode: modeDefault}
	if s.Listen == "" {
		return nil, errors.New("admin: listen is missing: write listen: 127.0.0.1:8442, or unix:PATH")
	}
	if r.address, r.beyond, err = listen.Parse(s.Listen); err != nil {
		return nil, fmt.Errorf("admin: listen: %w", err)
	}
	if r.token, err = listen.ReadToken("token", s.Token, "token_file", s.TokenFile); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if r.metric, err = listen.ReadToken("metrics_token", s.MetricsToken, "metrics_token_file", s.MetricsTokenFile); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if s.SocketMode != "" {
		mode, err := strconv.ParseUint(s.SocketMode, 8, 32)
		if err != nil || mode > 0o777 {
			return nil, fmt.Errorf("admin: socket_mode %q is not an octal mode: write \"0660\"", s.SocketMode)
		}
		r.mode = fs.FileMode(mode)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if s.Cert == "" {
		return r, nil
	}
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return nil, fmt.Errorf("admin: cert %q and key %q: %w", s.Cert, s.Key, err)
	}
	r.tls = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	return r, nil
}

// checkedSettings.check returns an error for settings that contradict each other.
func (r *checkedSettings) check() error {
	s, unix := &r.text, r.address.Network == "unix"
	switch {
	case r.beyond && r.token == "":
		return fmt.Errorf("admin: other machines can reach %q, and everyone that reaches it can reset any client's limits: write "+
			"token_file, or listen on 127.0.0.1 or a Unix socket", s.Listen)
	case r.metric != "" && r.token == "":
		return errors.New("admin: metrics_token has no effect without a token of operators: write token_file as well, or leave it out")
	case r.metric != "" && r.metric == r.token:
		return errors.New("admin: metrics_token is the same as the token, so every scraper could reset limits: make another one, as " +
			"with openssl rand -hex 16")
	case (s.Cert == "") != (s.Key == ""):
		return errors.New("admin: cert and key belong together: write both or none")
	case unix && s.Cert != "":
		return errors.New("admin: a Unix socket has no TLS: leave cert and key out")
	case !unix && s.SocketMode != "":
		return errors.New("admin: socket_mode is for a Unix socket: leave it out")
	}
	return nil
}
