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
	"sync"
	"testing"
)

// buildPenstock builds the command penstock beside the Caddy of this run, once.
var buildPenstock = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "penstock")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/penstock").CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return path, nil
})

// said is what a command printed, and its exit status.
type said struct {
	out, diagnostics string
	status           int
}

// penstock runs the command penstock.
func penstock(t testing.TB, args ...string) said {
	t.Helper()
	path, err := buildPenstock()
	if err != nil {
		t.Fatal(err)
	}
	var out, diagnostics bytes.Buffer
	command := exec.Command(path, args...)
	command.Stdout, command.Stderr = &out, &diagnostics
	command.Env = append(os.Environ(), "TOKEN_SECRET="+tokenSecret)
	err = command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return said{out.String(), diagnostics.String(), command.ProcessState.ExitCode()}
}

// tokenSecret is the secret of tokens in examples.
const tokenSecret = "0123456789abcdef0123456789abcdef"

// works holds that a command ended well and returns what it printed.
func (s said) works(t testing.TB) string {
	t.Helper()
	if s.status != 0 || s.diagnostics != "" {
		t.Errorf("status %d: %s%s", s.status, s.out, s.diagnostics)
	}
	return s.out
}

// refuses holds that a command ended with status 1, said all this on its standard error, and nothing elsewhere.
func (s said) refuses(t testing.TB, wants ...string) {
	t.Helper()
	if s.status != 1 || s.out != "" || !strings.HasPrefix(s.diagnostics, "penstock: ") || strings.Count(s.diagnostics, "\n") != 1 {
		t.Errorf("status %d, printed %q, said %q, want status 1 and one line that says why", s.status, s.out, s.diagnostics)
	}
	for _, want := range wants {
		if !strings.Contains(s.diagnostics, want) {
			t.Errorf("it said %q, want %q", s.diagnostics, want)
		}
	}
}

// read decodes the JSON that a command printed.
func (s said) read(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.works(t)), into); err != nil {
		t.Fatalf("%v: %s", err, s.out)
	}
}

// TestExitStatusOfValidate: 0 for what is right, 1 for errors, and for warnings where that is asked for.
func TestExitStatusOfValidate(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		flags      []string
		status     int
		says       string
	}{
		{"good.yaml", "rules: [{name: a, limit: 10/1m}]\n", nil, 0, "valid, no warnings"},
		{"good.toml", "[[rules]]\nname = \"a\"\nlimit = \"10/1m\"\n", []string{"--strict"}, 0, "valid, no warnings"},
		{"doubtful.yaml", "rules: [{name: a, limit: 10/day}]\n", nil, 0, "valid, 1 warning"},
		{"doubtful.yaml", "rules: [{name: a, limit: 10/day}]\n", []string{"--strict"}, 1, "warning: doubtful.yaml:1: rules[0].limit[0]"},
		{"bad.json", `{"rules": [{"name": "a", "limit": "10/minute"}]}`, nil, 1, `error: bad.json:1: rules[0].limit[0]: "10/minute"`},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := penstock(t, append([]string{"validate", path}, c.flags...)...); got.status != c.status || !strings.Contains(got.out, c.says) {
			t.Errorf("%v %s: status %d and %q, want %d and %q", c.flags, c.name, got.status, got.out, c.status, c.says)
		}
	}
	penstock(t, "explain", "--policy", filepath.Join(dir, "none.yaml")).refuses(t, "none.yaml: no such file", "put it there")
	penstock(t, "explain", "--policy", filepath.Join(dir, "bad.json")).refuses(t, `"10/minute"`)
	penstock(t, "explain").refuses(t, "--policy policy.yaml")
}
