// SPDX-License-Identifier: Apache-2.0

package region

import (
	"testing"

	"github.com/penstock/penstock/internal/test/puretest"
)

// TestThePackageIsPure tests that the package is pure, as package puretest defines it, so that a
// simulation can reproduce everything that the package does.
func TestThePackageIsPure(t *testing.T) {
	puretest.Check(t, "fmt", "math", "math/big", "math/bits", "github.com/penstock/penstock/core/counter")
}
