// SPDX-License-Identifier: Apache-2.0

//go:build unix

package credential

import (
	"testing"

	"github.com/penstock/penstock/internal/test/pipetest"
)

// TestPipeIsRejected: a keys file that is a pipe is rejected. Opening it would block until there
// is a writer, and so would Close.
func TestPipeIsRejected(t *testing.T) {
	pipetest.IsRejected(t, "keys.toml", func(path string) error {
		_, err := NewKeys(KeysOptions{File: path})
		return err
	})
}
