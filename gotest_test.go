// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFailuresRunOnceMore runs tools/gotest.sh with several outputs of go test. It compares the
// tests that the script repeats, and whether it fails.
func TestFailuresRunOnceMore(t *testing.T) {
	t.Parallel()
	const one, two, pkg = "--- FAIL: TestOne (0.00s)\n", "--- FAIL: TestTwo (0.00s)\n", "FAIL\texample.com/p\t1s\n"
	for _, test := range []struct {
		name, output, left string
	}{
		{"one", one + pkg, `\^\(TestOne\)\$`},
		{"two", two + "    --- FAIL: TestTwo/sub (0.00s)\n" + one + pkg, `\^\(TestOne\|TestTwo\)\$`},
		{"four", one + two + "--- FAIL: TestC (0s)\n--- FAIL: TestD (0s)\n" + pkg, ""},
		{"race", "WARNING: DATA RACE\n" + one + pkg, ""},
		{"panic", one + "panic: test timed out after 1s\n" + pkg, ""},
		{"build", one + pkg + "FAIL\texample.com/q [build failed]\n", ""},
		{"outside a test", one + pkg + "FAIL\texample.com/q\t1s\n", ""},
		{"no test", pkg, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fake, list := filepath.Join(t.TempDir(), "fake"), filepath.Join(t.TempDir(), "list")
			if err := os.WriteFile(fake, []byte("#!/bin/sh\ncat <<'END'\n"+test.output+"END\nexit 1\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			command := exec.Command("tools/gotest.sh", fake, "-run", "^(TestBefore)$", "./p")
			command.Env = append(os.Environ(), "AGAIN="+list)
			output, err := command.CombinedOutput()
			if failed := err != nil; failed != (test.left == "") {
				t.Errorf("fails: %v\n%s", failed, output)
			}
			left, _ := os.ReadFile(list) // absent if nothing is left
			if want := fake + " ./p -run " + test.left + " \n"; test.left != "" && string(left) != want || test.left == "" && len(left) > 0 {
				t.Errorf("leaves %q, want %q", left, want)
			}
			if test.left != "" && !strings.Contains(string(output), "note: "+strings.SplitN(test.output, "\n", 2)[0]) {
				t.Errorf("the first failure is not printed:\n%s", output)
			}
		})
	}
}
