// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/penstock/penstock/internal/test/racescale"
)

// longHere matches the tests of package filter that fill a bounded structure with thousands of
// requests. They take half of the time of all tests there, and the bounds do not depend on the
// platform, so only "make exam" runs them compiled.
const longHere = "^(TestCallsAreBoundedInQuestions|TestCredentialCacheIsBounded|TestAFloodLeavesHalfOfTheQueues|TestABurstOfOneClient|" +
	"TestRecordsAreBounded|TestAQueueIsBounded|TestCountersAreBounded)$"

// TestFilterCompiled compiles the tests of package filter to WebAssembly, like the filter, and runs
// them. Integer widths and allocations differ there.
func TestFilterCompiled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "filter.wasm")
	// The tests are linked without debugging information, so that wazero compiles less.
	command := exec.Command("go", "test", "-c", "-ldflags", "-s -w", "-o", file, "./filter")
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("building the tests: %v\n%s", err, out)
	}
	module, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	runtime := wazero.NewRuntime(ctx)
	t.Cleanup(func() { _ = runtime.Close(ctx) })
	wasi_snapshot_preview1.MustInstantiate(ctx, runtime)
	var out bytes.Buffer
	args := []string{"filter.test", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if os.Getenv(racescale.ExamVariable) == "" {
		args = append(args, "-test.skip", longHere)
	}
	config := wazero.NewModuleConfig().WithArgs(args...).WithStdout(&out).WithStderr(&out).
		WithSysWalltime().WithSysNanotime().WithRandSource(rand.Reader).WithEnv("PENSTOCK_SEED", os.Getenv("PENSTOCK_SEED")).
		WithFSConfig(wazero.NewFSConfig().WithReadOnlyDirMount("filter", "/")) // fuzzing seeds
	_, err = runtime.InstantiateWithConfig(ctx, module, config)
	var exit *sys.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 0) {
		t.Fatalf("%v\n%s", err, out.String())
	}
	ran := bytes.Count(out.Bytes(), []byte("\n--- PASS: "))
	if t.Logf("%d tests", ran); ran < 50 {
		t.Errorf("only %d tests were run:\n%s", ran, out.String())
	}
}
