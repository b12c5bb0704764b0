// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/signal"
	"syscall"
)

// untilStopped returns a context that ends at SIGINT or SIGTERM. It also makes the process ignore
// SIGPIPE. Otherwise Go would end the process at the next line of its log after the reader of the
// log has ended. That is right for a command in a pipeline, but wrong for a server.
func untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}
