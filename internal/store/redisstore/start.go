// SPDX-License-Identifier: Apache-2.0

package redisstore

import "context"

// AwaitStart waits until the store has tried to connect to the servers that it knows initially, or
// until ctx is done. A call that is made earlier has to connect within its own deadline, which a
// busy machine can miss although Redis answers.
func (s *Store) AwaitStart(ctx context.Context) {
	if !awaitEnd(ctx, s.discovered) {
		return
	}
	for _, n := range s.nodes() {
		if !awaitEnd(ctx, n.inspected) {
			return
		}
	}
}

// awaitEnd waits until a channel is closed. It returns false if ctx is done before that.
func awaitEnd(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
