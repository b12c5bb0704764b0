// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/signal"
	"syscall"
)

// untilStopped returns a context that ends when the process is told to stop. The process goes on if
// its output is not read any more: Go would otherwise end it when it writes there, as is right for
// commands in a pipeline, but not for servers whose log is read by another process.
func untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}
