// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"sync"
	"time"

	"github.com/penstock/penstock/envoy-module/front"
)

// exitTime is how long the exit of Envoy waits for configurations to end, so that leased units are
// returned. If the store does not answer within that time, the units stay charged until their
// window ends.
const exitTime = time.Second

// The variable closings are the configurations that are being closed. Envoy drops them on its main
// thread, which must not wait for a store.
var closings closingFronts

type closingFronts struct{ running sync.WaitGroup }

// The method close ends a configuration in the background.
func (c *closingFronts) close(f *front.Front) {
	c.running.Go(func() {
		defer recoverHook()
		if err := f.Close(); err != nil {
			logger.Warn("closing a configuration", "error", err)
		}
	})
}

// The method await waits until all configurations have ended, for at most the given time.
func (c *closingFronts) await(most time.Duration) {
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(most):
	}
}
