// SPDX-License-Identifier: Apache-2.0

//go:build unix

package policyfile

import (
	"testing"

	"github.com/penstock/penstock/internal/test/pipetest"
)

// TestPipeIsRejected: a policy file that is a pipe is rejected. Opening a pipe would block until
// there is a writer.
func TestPipeIsRejected(t *testing.T) {
	pipetest.IsRejected(t, "policy.yaml", func(path string) error {
		_, err := Load(path)
		return err
	})
}
