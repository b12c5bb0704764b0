// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMakefileNamesStories tests that each story that the Makefile names exists: -run and -skip
// accept names that match no test. It also tests that exactly the stories without t.Parallel run
// alone.
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

// TestMakefileRunsExams tests that the target unit-rest runs each test that the target race skips,
// in each package that has the test.
func TestMakefileRunsExams(t *testing.T) {
	differs, exams := strings.Join(variable(t, "DIFFERS"), "|"), variable(t, "EXAMS")
	out, err := exec.Command("grep", "-rE", "--include=*_test.go", `^func (`+strings.Join(exams, "|")+`)\(`, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string][]string{}
	for _, found := range regexp.MustCompile(`(?m)^(.+)/[^/]+:func (\w+)`).FindAllStringSubmatch(string(out), -1) {
		folders[found[1]] = append(folders[found[1]], found[2])
	}
	known := map[string]bool{}
	for folder, names := range folders {
		out, err := exec.Command("go", "run", "./internal/test/differs", differs, folder).Output()
		if err != nil {
			t.Fatal(err)
		}
		differing := strings.Split(strings.TrimSpace(string(out)), "|")
		for _, name := range names {
			if known[name] = true; !slices.Contains(differing, name) {
				t.Errorf("race skips %s of %s, and unit-rest does not run it", name, folder)
			}
		}
	}
	for _, name := range exams {
		if !known[name] {
			t.Errorf("EXAMS names %s, which no package has", name)
		}
	}
}
