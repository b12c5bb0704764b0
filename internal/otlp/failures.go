// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"log/slog"
	"sync"
	"time"
)

// failureEvery is the least time between two log lines about failures to send.
const failureEvery = time.Minute

// failures logs errors of the exporters. A collector that does not answer causes one every few
// seconds.
type failures struct {
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	logged time.Time // when an error was logged last
	silent int       // the number of errors since then
}

// Handle implements the error handler of OpenTelemetry.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if !f.logged.IsZero() && now.Sub(f.logged) < failureEvery {
		f.silent++
		return
	}
	f.logger.Warn("spans or metrics could not be sent by OTLP, and are lost", "error", err, "others", f.silent)
	f.logged, f.silent = now, 0
}
