// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestFailuresRunOnceMore runs tools/gotest.sh with several outputs of go test. The test compares
// the tests and the packages that the script repeats, and whether it fails.
func TestFailuresRunOnceMore(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 21 {
		fmt.Fprintf(&many, "--- FAIL: Test%c (0s)\n", 'A'+i)
	}
	const one, two, pkg = "--- FAIL: TestOne (0.00s)\n", "--- FAIL: TestTwo (0.00s)\n", "FAIL\texample.com/p\t1s\n"
	const sub = "    --- FAIL: TestTwo/a.b (0.00s)\n        --- FAIL: TestTwo/a.b/c (0.00s)\n    --- FAIL: TestTwo/d (0.00s)\n"
	const both = `\^\(TestOne\|TestTwo\)\$`
	for _, test := range []struct {
		name, output string
		left, last   string // the patterns of the first and of the last repetition
	}{
		{"one", one + pkg, `\^\(TestOne\)\$`, `\^\(TestOne\)\$`},
		{"two", two + "    --- FAIL: TestTwo/sub (0.00s)\n" + one + pkg, both, both},
		{"subtests", two + sub + pkg, `\^\(TestTwo\)\$/\^\(a\\.b\|d\)\$`, `\^\(TestTwo\)\$`},
		{"too many", many.String() + pkg, "", ""},
		{"race", "WARNING: DATA RACE\n" + one + pkg, "", ""},
		{"panic", one + "panic: test timed out after 1s\n" + pkg, "", ""},
		{"build", one + pkg + "FAIL\texample.com/q [build failed]\n", "", ""},
		{"outside a test", one + pkg + "FAIL\texample.com/q\t1s\n", "", ""},
		{"no test", pkg, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fake, list := filepath.Join(t.TempDir(), "fake"), filepath.Join(t.TempDir(), "list")
			if err := writeProgram(fake, "#!/bin/sh\ncat <<'END'\n"+test.output+"END\nexit 1\n"); err != nil {
				t.Fatal(err)
			}
			command := exec.Command("tools/gotest.sh", fake, "-run", "^(TestBefore)$", "-skip", "^(TestA/b/c)$", "./o", "./p", "example.com/m/p")
			command.Env = append(os.Environ(), "AGAIN="+list)
			output, err := command.CombinedOutput()
			if failed := err != nil; failed != (test.left == "") {
				t.Errorf("fails: %v\n%s", failed, output)
			}
			left, _ := os.ReadFile(list) // absent if nothing is left
			command1, command2 := fake+` -skip \^\(TestA/b/c\)\$ -run `+test.left+" example.com/p ", fake+` -skip \^\(TestA/b/c\)\$ -run `+test.last+" example.com/p "
			if want := command1 + "\t" + command2 + "\n"; test.left != "" && string(left) != want || test.left == "" && len(left) > 0 {
				t.Errorf("leaves %q, want %q", left, want)
			}
			if test.left != "" && !strings.Contains(string(output), "note: "+strings.SplitN(test.output, "\n", 2)[0]) {
				t.Errorf("the first failure is not printed:\n%s", output)
			}
		})
	}
}

// TestFailuresAloneRunALastTime runs `tools/gotest.sh again` with a command that fails a number of
// times, and compares how often it ran and whether the script fails.
func TestFailuresAloneRunALastTime(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, output   string
		failures, runs int
		fails          bool
	}{
		{"passes", "", 0, 1, false},
		{"fails once", "--- FAIL: TestOne (0.00s)", 1, 2, false},
		{"fails twice", "--- FAIL: TestOne (0.00s)", 2, 2, true},
		{"race", "WARNING: DATA RACE", 1, 1, true},
		{"panic", "panic: test timed out after 1s", 1, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			fake, list, runs := filepath.Join(folder, "fake"), filepath.Join(folder, "list"), filepath.Join(folder, "runs")
			script := fmt.Sprintf("#!/bin/sh\necho run >>%s\necho '%s'\n[ $(wc -l <%s) -gt %d ]\n", runs, test.output, runs, test.failures)
			if err := writeProgram(fake, script); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(list, []byte(fake+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			command := exec.Command("tools/gotest.sh", "again")
			command.Env = append(os.Environ(), "AGAIN="+list)
			output, err := command.CombinedOutput()
			if fails := err != nil; fails != test.fails {
				t.Errorf("fails: %v, want %v\n%s", fails, test.fails, output)
			}
			if ran, _ := os.ReadFile(runs); strings.Count(string(ran), "run") != test.runs {
				t.Errorf("ran %d times, want %d\n%s", strings.Count(string(ran), "run"), test.runs, output)
			}
		})
	}
}

// TestStagesRunInTheirOrder runs tools/stages.sh with a fake make, which fails for one target, and
// compares which targets had ended when others began, and how the scheduler treats them.
func TestStagesRunInTheirOrder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	script, err := os.ReadFile("tools/stages.sh")
	if err != nil {
		t.Fatal(err)
	}
	// The target low1 ends when the file "released" exists, which the target b creates.
	const fake = `#!/bin/bash
echo "$2 begins, $(chrt -p $$ | sed -n 's/.*policy: //p')" >>order
case $2 in
low1) until [ -e released ]; do sleep 0.01; done ;;
bad) exit 1 ;;
b) touch released ;;
esac
echo "$2 ends" >>order
`
	if err := os.Mkdir(filepath.Join(folder, "tools"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"tools/stages.sh": string(script), "make": fake} {
		if err := writeProgram(filepath.Join(folder, name), text); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(filepath.Join(folder, "tools/stages.sh"), "low:low1", "low:low2", "quiet", "then", "a", "bad", "then", "b")
	command.Env = append(os.Environ(), "MAKE=./make")
	output, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "FAILED: bad (all in") {
		t.Errorf("with a target that fails: %v\n%s", err, output)
	}
	if !regexp.MustCompile(`(?m)^ok +quiet +\d+ s, processors +\d+ s$`).Match(output) || !regexp.MustCompile(`(?m)^FAILED +bad +\d+ s, processors +\d+ s$`).Match(output) {
		t.Errorf("there are no times of targets in\n%s", output)
	}
	order, err := os.ReadFile(filepath.Join(folder, "order"))
	if err != nil {
		t.Fatal(err)
	}
	at := func(line string) int {
		n := strings.Index("\n"+string(order), "\n"+line+"\n")
		if n < 0 {
			t.Fatalf("there is no %q in\n%s", line, order)
		}
		return n
	}
	for _, pair := range [][2]string{{"quiet ends", "a begins, SCHED_OTHER"}, {"quiet ends", "bad begins, SCHED_OTHER"}, {"a ends", "b begins, SCHED_OTHER"},
		{"b begins, SCHED_OTHER", "low1 ends"}, {"low1 ends", "low2 begins, SCHED_IDLE"}} {
		if at(pair[0]) > at(pair[1]) {
			t.Errorf("%q comes after %q:\n%s", pair[0], pair[1], order)
		}
	}
	at("low1 begins, SCHED_IDLE")
	at("low2 ends")
}

// writeProgram writes a program while no other test can start a process. A process that is started
// meanwhile would hold the file open for writing, and the program could not be run ("text file
// busy").
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o700)
}
