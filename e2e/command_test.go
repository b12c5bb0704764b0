// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// commandResult is the output and exit status of a command.
type commandResult struct {
	out, diagnostics string
	status           int
}

// penstock runs the penstock command.
func penstock(t testing.TB, args ...string) commandResult {
	t.Helper()
	var out, diagnostics bytes.Buffer
	command := exec.Command(penstockProgram(t), args...)
	command.Stdout, command.Stderr = &out, &diagnostics
	command.Env = append(os.Environ(), "TOKEN_SECRET="+tokenSecret)
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return commandResult{out.String(), diagnostics.String(), command.ProcessState.ExitCode()}
}

// tokenSecret is the secret of the tokens in the examples.
const tokenSecret = "0123456789abcdef0123456789abcdef"

// mustSucceed fails the test unless the command succeeded without diagnostics. It returns the
// output.
func (s commandResult) mustSucceed(t testing.TB) string {
	t.Helper()
	if s.status != 0 || s.diagnostics != "" {
		t.Errorf("status %d: %s%s", s.status, s.out, s.diagnostics)
	}
	return s.out
}

// mustFail fails the test unless the command exited with status 1, printed nothing to standard
// output, and printed one line to standard error. The line must contain all of the wanted texts.
func (s commandResult) mustFail(t testing.TB, wants ...string) {
	t.Helper()
	s.endsWith(t, 1, wants...)
}

// endsWith is mustFail for any exit status.
func (s commandResult) endsWith(t testing.TB, status int, wants ...string) {
	t.Helper()
	if s.status != status || s.out != "" || !strings.HasPrefix(s.diagnostics, "penstock: ") || strings.Count(s.diagnostics, "\n") != 1 {
		t.Errorf("status %d, printed %q, said %q, want status %d and one line that says why", s.status, s.out, s.diagnostics, status)
	}
	for _, want := range wants {
		if !strings.Contains(s.diagnostics, want) {
			t.Errorf("it said %q, want %q", s.diagnostics, want)
		}
	}
}

// commandResult.read decodes the JSON that a command printed.
func (s commandResult) read(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.mustSucceed(t)), into); err != nil {
		t.Fatalf("%v: %s", err, s.out)
	}
}

// TestExitStatusOfValidate tests that the exit status is 0 for a valid policy, 1 for errors, and
// with --strict also 1 for warnings.
func TestExitStatusOfValidate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		flags      []string
		status     int
		says       string
	}{
		{name: "good.yaml", text: "rules: [{name: a, limit: 10/1m}]\n", says: "valid, no warnings"},
		{name: "good.toml", text: "[[rules]]\nname = \"a\"\nlimit = \"10/1m\"\n", flags: []string{"--strict"}, says: "valid, no warnings"},
		{name: "doubtful.yaml", text: "rules: [{name: a, limit: 10/day}]\n", says: "valid, 1 warning"},
		{name: "doubtful.yaml", text: "rules: [{name: a, limit: 10/day}]\n", flags: []string{"--strict"}, status: 1, says: `warning: doubtful.yaml:1: rules[0] "a".limit[0]`},
		{name: "bad.json", text: `{"rules": [{"name": "a", "limit": "10/minute"}]}`, status: 1, says: `error: bad.json:1: rules[0] "a".limit[0]: "10/minute"`},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := penstock(t, append([]string{"validate", path}, c.flags...)...); got.status != c.status || !strings.Contains(got.out, c.says) {
			t.Errorf("%v %s: status %d and %q, want %d and %q", c.flags, c.name, got.status, got.out, c.status, c.says)
		}
	}
	penstock(t, "explain", "--policy", filepath.Join(dir, "none.yaml")).mustFail(t, "none.yaml: no such file", "create it")
	penstock(t, "explain", "--policy", filepath.Join(dir, "bad.json")).mustFail(t, `"10/minute"`)
	penstock(t, "explain").mustFail(t, "--policy policy.yaml")
}
