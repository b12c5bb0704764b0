// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"sync"
	"time"

	"github.com/penstock/penstock/envoy-module/front"
)

// exitTime is how long Envoy's exit waits for configurations that are being closed, because they
// return leased units. If the store does not answer within that time, the units stay charged until
// their window ends.
const exitTime = time.Second

// closings waits for the configurations that are being closed. Configurations are closed in the
// background, because Envoy drops them on its main thread, which must not wait for a store.
var closings closingFronts

type closingFronts struct{ running sync.WaitGroup }

// closingFronts.close closes a configuration in the background.
func (c *closingFronts) close(f *front.Front) {
	c.running.Go(func() {
		defer recoverHook()
		if err := f.Close(); err != nil {
			logger.Warn("closing a configuration", "error", err)
		}
	})
}

// closingFronts.await waits until all these configurations are closed, for at most the given time.
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
