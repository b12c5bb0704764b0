// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"runtime/debug"
	"sync/atomic"

	"github.com/penstock/penstock/internal/policyfile"
)

// panics counts the panics that recoverPanic has caught.
var panics atomic.Uint64

// Panics returns how many loads of keys have panicked in this process. After each, the previous
// keys remained in force.
func Panics() uint64 { return panics.Load() }

// recoverPanic calls the function named load and returns its panic as a [policyfile.PanicError].
// Keys are loaded in separate goroutines, where a panic would end the process.
func recoverPanic(load func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			panics.Add(1)
			err = &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
		}
	}()
	return load()
}

// notices.panicked logs an error of recoverPanic, with its stack. It logs the same error again only
// after a success or a different failure.
func (n *notices) panicked(text string, err error, args ...any) {
	if p, ok := errors.AsType[*policyfile.PanicError](err); ok {
		args = append(args, "stack", string(p.Stack))
	}
	n.logFailure(text+": "+cut(err.Error()), args...)
}
