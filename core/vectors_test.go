// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"testing"

	"github.com/penstock/penstock/internal/storetest"
)

// The stories in testdata/vectors, told to Decide over a map.
func TestVectors(t *testing.T) {
	storetest.RunVectors(t, func(testing.TB) storetest.Subject { return (&storetest.Model{}).Subject() })
}
