// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

var update = flag.Bool("update", false, "write the golden lists of messages in testdata/bad")

// TestBadDocuments: for every document in testdata/bad, the file NAME.want beside it lists the
// problems that are reported. Users will read these messages, so review them when they change.
func TestBadDocuments(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "bad", "*.*"))
	if err != nil || len(paths) < 20 {
		t.Fatalf("Glob = %d files, %v; want at least 20", len(paths), err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, ".want") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			got := problemsOf(t, path)
			golden := path + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s: the messages changed (-want +got):\n%s", path, diff)
			}
		})
	}
}

// problemsOf loads and compiles a document that must be rejected, and returns the problems.
func problemsOf(t *testing.T, path string) string {
	t.Helper()
	d, err := Load(path)
	if err == nil {
		err = d.Check()
	}
	var problems policy.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("%s: error %v is not core.Problems", path, err)
	}
	for _, problem := range problems {
		if problem.Path == "" || problem.Why == "" || !strings.HasPrefix(problem.Place, filepath.Base(path)) {
			t.Errorf("a problem lacks its path, reason or place: %+v", problem)
		}
	}
	return err.Error() + "\n"
}

// TestProblemsAreBounded: if a document has very many problems, the first are listed and the rest
// are only counted.
func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "- {name: r%d, limit: none, %s: 1}\n", i, strings.Repeat("x", 5000))
	}
	_, err := Decode("p.yaml", YAML, []byte(b.String())[:syntax.SizeMax/8])
	if err == nil {
		_, err = Decode("p.yaml", YAML, []byte(b.String()))
	}
	var problems policy.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("error %v is not core.Problems", err)
	}
	if len(problems) > syntax.ProblemsMax+1 || len(err.Error()) > 50_000 {
		t.Errorf("%d problems in %d bytes, want at most %d", len(problems), len(err.Error()), syntax.ProblemsMax+1)
	}
}
