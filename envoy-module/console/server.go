// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/operator"
)

// Bounds of the console.
const (
	connectionsMax = 256
	headerBytesMax = 16 << 10
	readTime       = listen.FirstCallTime / 2 // for reading a request
	replyTime      = 2 * readTime
	idleTime       = time.Minute
	// stopTime is how long requests may still take after the address was closed.
	stopTime = time.Second
)

// server serves one address.
type server struct {
	address  listen.Address
	mode     fs.FileMode
	cert     [2]string
	guarded  bool // operators need a token
	listener net.Listener
	http     *http.Server
	stopping atomic.Bool
}

// Console.open listens on an address and serves it.
func (c *Console) open(r *checkedSettings) (*server, error) {
	listener, err := listen.On(r.address, r.mode)
	if err != nil {
		return nil, err
	}
	logger := c.options.Logger
	s := &server{address: r.address, mode: r.mode, cert: [2]string{r.text.Cert, r.text.Key}, guarded: r.token != "",
		listener: listen.NewLimit(listener, connectionsMax, r.token != "", logger)}
	s.http = &http.Server{Handler: c.handler(s), ConnContext: listen.WithConn, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: readTime, ReadTimeout: readTime, WriteTimeout: replyTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytesMax}
	if r.tls != nil {
		s.http.TLSConfig = &tls.Config{MinVersion: r.tls.MinVersion, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.certificate(s)
		}}
	}
	go func() {
		serve := s.http.Serve
		if r.tls != nil {
			serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
		}
		if err := serve(s.listener); !errors.Is(err, http.ErrServerClosed) && !s.stopping.Load() {
			logger.Error("operators are no longer served", "error", err)
		}
	}()
	return s, nil
}

// server.serves reports whether the server matches the settings. The values of the tokens and of
// the certificate need not match, because the server reads them from the claim in force, for each
// request and for each connection. But a server that requires a token never matches settings
// without one.
func (s *server) serves(r *checkedSettings) bool {
	return s.address == r.address && s.mode == r.mode && s.guarded == (r.token != "") && s.cert == [2]string{r.text.Cert, r.text.Key}
}

// claimOf returns the claim in force, or nil if the server s does not match its settings. This
// happens if the claim still waits for its own address while the server of the previous claim is
// open.
func (c *Console) claimOf(s *server) *claim {
	if own := c.now.Load(); own != nil && s.serves(own.checkedSettings) {
		return own
	}
	return nil
}

// certificate returns the certificate of the configuration whose claim is in force (see [claim]).
// So the server uses a renewed certificate as soon as a later configuration has read it.
func (c *Console) certificate(s *server) (*tls.Certificate, error) {
	own := c.claimOf(s)
	if own == nil {
		return nil, errors.New("no configuration of Envoy serves operators at this address")
	}
	return &own.tls.Certificates[0], nil
}

// server.stop closes the address at once. Requests that are being served may go on for stopTime.
func (s *server) stop() {
	s.stopping.Store(true)
	_ = s.listener.Close()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close()
		}
	}()
}

// Console.handler returns the handler of a server, which serves the operators' routes and the
// metrics.
func (c *Console) handler(s *server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(operator.Prefix, c.withToken(s, false, func(own *claim) http.Handler { return own.operators() }))
	metrics := promhttp.HandlerFor(c.options.Metrics, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", c.withToken(s, true, func(*claim) http.Handler { return metrics }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer c.rescue(w)
		token := ""
		if own := c.claimOf(s); own != nil {
			token = own.token
		}
		c.guard.RejectPages(mux, token).ServeHTTP(w, r)
	})
}

// withToken returns a handler that requires the operators' token. If the argument scrapers is set,
// the scrapers' token suffices. The handler answers 503 if the claim in force does not match the
// server.
func (c *Console) withToken(s *server, scrapers bool, next func(*claim) http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		own := c.claimOf(s)
		if own == nil {
			http.Error(w, "no configuration of Envoy serves operators at this address", http.StatusServiceUnavailable)
			return
		}
		token := own.token
		if scrapers && own.metric != "" && listen.Shows(r, own.metric) {
			token = own.metric
		}
		guard := listen.Guard{Rejected: func() {}, Admitted: func(r *http.Request) { listen.Called(r.Context(), true) }}
		guard.RequireToken("the token of operators", token, next(own).ServeHTTP)(w, r)
	}
}

// Console.rescue recovers from a panic in a handler and answers 500. It must be deferred. net/http
// would recover as well, but it would log the panic like an error of the caller.
func (c *Console) rescue(w http.ResponseWriter) {
	if reason := recover(); reason != nil {
		c.options.Panicked(reason)
		http.Error(w, "internal error (panic): see the log", http.StatusInternalServerError)
	}
}
