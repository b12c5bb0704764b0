// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/racescale"
)

// builtVariable is the environment variable that names a folder in which the programs are already
// built, such as bin/ after "make build".
const builtVariable = "PENSTOCK_BIN"

// built is a temporary folder for the programs that this run builds.
var built string

// parallelDefault is the least number of tests that run at a time if -parallel is not given. Tests
// mostly wait, so it is greater than the number of processors of a small machine.
const parallelDefault = 4

func TestMain(m *testing.M) { os.Exit(runIn(m)) }

func runIn(m *testing.M) int {
	flag.Parse()
	if err := setParallel(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if missing := missingPrograms(); len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "these tests need %s: run make setup\n", strings.Join(missing, ", "))
		return 1
	}
	dir, err := os.MkdirTemp("", "penstock-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = dir
	defer stopSharedEnvoys()
	return pgtest.Main(m)
}

// examOr returns the first value in "make exam" and the second one elsewhere. "make test" covers
// the same code with fewer steps or combinations.
func examOr[T any](inExam, otherwise T) T {
	if os.Getenv(racescale.ExamVariable) != "" {
		return inExam
	}
	return otherwise
}

// missingPrograms returns the names of the programs that the tests start and that this machine
// lacks. "make setup" installs them.
func missingPrograms() (missing []string) {
	for _, name := range []string{"redis-server", "node", "nginx", "prometheus", "promtool", envoyProgram} {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if _, err := os.Stat("/usr/sbin/" + name); err == nil { // this folder is not in every user's search path
			continue
		}
		missing = append(missing, filepath.Base(name))
	}
	if _, err := exec.LookPath("initdb"); err != nil {
		if found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); err != nil || len(found) == 0 {
			missing = append(missing, "PostgreSQL")
		}
	}
	return missing
}

// setParallel sets the flag -parallel unless the command line sets it.
func setParallel() error {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(max(parallelDefault, runtime.GOMAXPROCS(0))))
}

// The programs under test. Each is built at most once in a run, as soon as a test needs it.
var (
	buildCaddy    = sync.OnceValues(func() (string, error) { return program("caddy", buildNative("caddy", "../cmd/caddy")) })
	buildPenstock = sync.OnceValues(func() (string, error) {
		return program("penstock", buildNative("penstock", "../cmd/penstock"))
	})
	buildWasm = sync.OnceValues(func() (string, error) {
		return program("penstock.wasm", func() (string, error) { return compileWasm("penstock.wasm") })
	})
	buildModule = sync.OnceValues(func() (string, error) {
		return program("libpenstock.so", func() (string, error) { return compileModule("libpenstock.so") })
	})
)

// program returns the path of a program. It is in the folder that the environment names, or else is
// built with build().
func program(name string, build func() (string, error)) (string, error) {
	folder := os.Getenv(builtVariable)
	if folder == "" {
		return build()
	}
	path, err := filepath.Abs(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s says where the programs are: %w", builtVariable, err)
	}
	return path, nil
}

// buildNative returns a function that builds a program for this machine.
func buildNative(name, source string) func() (string, error) {
	return func() (string, error) {
		path := filepath.Join(built, name)
		return path, run(exec.Command("go", "build", "-o", path, source))
	}
}

// compileWasm builds the filter. The argument flags holds further flags for go build.
func compileWasm(name string, flags ...string) (string, error) {
	path := filepath.Join(built, name)
	args := append([]string{"build", "-tags", "penstock_filter", "-trimpath", "-buildmode=c-shared", "-ldflags", "-s -w", "-o", path}, flags...)
	command := exec.Command("go", append(args, "../envoy-wasm")...)
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	return path, run(command)
}

// compileModule builds the native module. The argument flags holds further flags for go build.
func compileModule(name string, flags ...string) (string, error) {
	path := filepath.Join(built, name)
	args := append([]string{"build", "-trimpath", "-buildmode=c-shared", "-ldflags", "-s -w", "-o", path}, flags...)
	return path, run(exec.Command("go", append(args, "../envoy-module")...))
}

// run runs a build. The error contains the output of the build.
func run(command *exec.Cmd) error {
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", command.Args, err, out)
	}
	return nil
}

// caddyProgram returns the path of a Caddy that contains Penstock.
func caddyProgram(t testing.TB) string { return mustBuild(t, buildCaddy) }

// penstockProgram returns the path of the penstock command.
func penstockProgram(t testing.TB) string { return mustBuild(t, buildPenstock) }

// wasm returns the path of the filter as users load it.
func wasm(t testing.TB) string { return mustBuild(t, buildWasm) }

// module returns the path of the native module as users load it.
func module(t testing.TB) string { return mustBuild(t, buildModule) }

func mustBuild(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
