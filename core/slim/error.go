// SPDX-License-Identifier: Apache-2.0

package slim

import "errors"

// NewError is errors.New without inlining. Each inlined call adds 100 bytes to the filter.
//
//go:noinline
func NewError(text string) error { return errors.New(text) }
