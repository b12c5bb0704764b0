// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"testing"

	"github.com/penstock/penstock/internal/test/storetest"
)

// TestVectors runs the stories in testdata/vectors against the reference store: Decide on a map.
func TestVectors(t *testing.T) {
	storetest.RunVectors(t, func(testing.TB) storetest.Subject { return (&storetest.Model{}).Subject() })
}
