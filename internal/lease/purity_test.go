// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"os"
	"os/exec"
	"testing"

	"github.com/penstock/penstock/internal/test/puretest"
)

// TestThePackageIsPure: a model can reproduce everything that the package does, and a filter in a
// proxy's worker can use it.
func TestThePackageIsPure(t *testing.T) {
	puretest.Check(t, "math", "github.com/penstock/penstock/core/counter")
	build := exec.Command("go", "build", ".")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("it does not build for wasip1: %v\n%s", err, out)
	}
}
