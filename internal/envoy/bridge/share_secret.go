// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"time"
)

// How often a bridge asks the store for the shared receipt secret.
const (
	// secretEvery bounds how long a replaced secret goes unnoticed.
	secretEvery = 30 * time.Second
	// secretRetry is the pause after a failure.
	secretRetry = time.Second
)

// shareSecret keeps the receipt secret equal to the one in the store until ctx is done. While the
// store does not answer, receipts are sealed with the last known secret, which at first is the
// bridge's own secret. Receipts that other bridges have sealed with another secret are then not
// redeemed.
func (b *Bridge) shareSecret(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		secret, err := b.options.ShareSecret(ctx, b.sealer.secret())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				b.logger.Warn("the receipt secret cannot be shared: other bridges may not redeem receipts of this one", "error", err)
			}
			failing = true
			timer.Reset(secretRetry)
			continue
		case b.sealer.replace(secret, micros(time.Now())) || failing:
			b.logger.Info("the receipt secret is shared with other bridges")
		}
		failing = false
		timer.Reset(secretEvery)
	}
}
