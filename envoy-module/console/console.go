// SPDX-License-Identifier: Apache-2.0

package console

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/operator"
)

// againAfter is how long the console waits before it tries again to listen on an address that
// another process uses.
const againAfter = time.Second

// Options configures a console. All fields are required.
type Options struct {
	Metrics prometheus.Gatherer
	// Panicked is called during a panic of a request.
	Panicked func(reason any)
	Logger   *slog.Logger
}

// Console is the console of a process. A Console is safe for concurrent use.
type Console struct {
	options Options
	guard   listen.Guard
	now     atomic.Pointer[claim] // the claim in force; nil for none

	mu      sync.Mutex
	claims  []*claim // all claims, the latest last
	serving *server  // nil unless an address is open
	again   *time.Timer
}

// claim is the claim of one configuration to the console: the settings to listen with, and the
// operators' API to serve. The latest claim is in force.
type claim struct {
	*checkedSettings
	operators func() *operator.API
	told      bool // it has been logged that another process has the address
}

// New returns a console that nobody claims.
func New(o Options) *Console {
	return &Console{options: o, guard: listen.Guard{HostRemedy: "use an address or localhost, or a token of operators",
		Rejected: func() {}, Logger: o.Logger}}
}

// Claim makes the console serve the operators of a configuration until release() is called.
func (c *Console) Claim(s *Settings, operators func() *operator.API) (release func(), err error) {
	wanted, err := s.read()
	if err != nil {
		return nil, err
	}
	if wanted.beyond && wanted.tls == nil {
		c.options.Logger.Warn("operators are served beyond this machine without TLS: the token and all answers can be read on the network",
			"address", wanted.text.Listen)
	}
	own := &claim{checkedSettings: wanted, operators: operators}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = append(c.claims, own)
	if err := c.settle(); err != nil {
		c.drop(own)
		return nil, err
	}
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drop(own)
	}), nil
}

// Console.drop removes a claim, and serves what the latest of the remaining claims wants. The mutex
// must be held.
func (c *Console) drop(own *claim) {
	c.claims = slices.DeleteFunc(c.claims, func(one *claim) bool { return one == own })
	if err := c.settle(); err != nil {
		c.options.Logger.Error("operators are not served", "error", err)
	}
}

// Console.settle makes the console serve what the latest claim wants. The mutex must be held.
func (c *Console) settle() error {
	if c.again != nil {
		c.again.Stop()
		c.again = nil
	}
	if len(c.claims) == 0 {
		c.now.Store(nil)
		c.stop()
		return nil
	}
	own := c.claims[len(c.claims)-1]
	c.now.Store(own)
	if s := c.serving; s != nil {
		if s.serves(own.checkedSettings) {
			return nil
		}
		if s.address == own.address {
			c.stop() // it is opened again below, with the new settings
		}
	}
	opened, err := c.open(own.checkedSettings)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		if !own.told {
			own.told = true
			c.options.Logger.Error("operators are not served yet: another process has the address of admin; the module tries again each second",
				"address", own.text.Listen, "error", err)
		}
		c.again = time.AfterFunc(againAfter, c.retry)
		return nil
	case err != nil:
		return fmt.Errorf("admin: %w; write another address", err)
	}
	c.stop()
	c.serving = opened
	c.options.Logger.Info("the module serves operators", "address", opened.listener.Addr().String(), "tls", own.tls != nil)
	return nil
}

// Console.retry tries again to listen on the address of the latest claim.
func (c *Console) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again == nil {
		return // everything is settled
	}
	if err := c.settle(); err != nil {
		c.options.Logger.Error("operators are not served", "error", err)
	}
}

// Console.stop closes the address that is open. The mutex must be held.
func (c *Console) stop() {
	if c.serving != nil {
		c.serving.stop()
		c.serving = nil
	}
}
