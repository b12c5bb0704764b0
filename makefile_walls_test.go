// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMakefileNamesStories tests that each story that the Makefile names exists, since -run and
// -skip accept names that match no test, and that exactly the stories without t.Parallel run alone.
func TestMakefileNamesStories(t *testing.T) {
	parallel := stories(t)
	for _, name := range variable(t, "CHECK_STORIES") {
		if _, ok := parallel[name]; !ok {
			t.Errorf("CHECK_STORIES names %s, which e2e does not have", name)
		}
	}
	quiet := variable(t, "QUIET_STORIES")
	for _, name := range quiet {
		if alongside, ok := parallel[name]; !ok || alongside {
			t.Errorf("QUIET_STORIES names %s: e2e has it: %v; it calls t.Parallel: %v", name, ok, alongside)
		}
	}
	for name, alongside := range parallel {
		if !alongside && !slices.Contains(quiet, name) {
			t.Errorf("%s does not call t.Parallel, and QUIET_STORIES lacks it", name)
		}
	}
}

// variable returns the names that a variable of the Makefile lists.
func variable(t *testing.T, name string) []string {
	t.Helper()
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + name + ` := (.+)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatalf("the Makefile has no %s", name)
	}
	return strings.Split(string(line[1]), "|")
}

// stories returns the tests of e2e, and whether each calls t.Parallel.
func stories(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("e2e/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	story := regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}$`)
	parallel := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range story.FindAllStringSubmatch(string(text), -1) {
			parallel[match[1]] = strings.Contains(match[2], "t.Parallel()")
		}
	}
	if len(parallel) < 50 {
		t.Fatalf("only %d stories found in e2e", len(parallel))
	}
	return parallel
}
