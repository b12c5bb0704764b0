// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/core"
)

// vectorsDir returns core/testdata/vectors of the module that the test runs in.
func vectorsDir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "core", "testdata", "vectors")
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test: the vectors are in core/testdata of the module")
		}
		dir = filepath.Dir(dir)
	}
}

// RunVectors tells a store every story in core/testdata/vectors, each to a store of its own.
func RunVectors(t *testing.T, open func(t testing.TB) Subject) {
	files, err := filepath.Glob(filepath.Join(vectorsDir(t), "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %q: %v", vectorsDir(t), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			stories, err := ParseStories(string(text))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for i := range stories {
				t.Run(stories[i].Name, func(t *testing.T) { stories[i].tell(newExaminer(t, open(t)), file) })
			}
		})
	}
}

// tell runs the story and fails the test at the first answer that is not as expected.
func (s *Story) tell(e *examiner, file string) {
	receipts := map[string]core.Micros{"none": 0}
	for i := range s.Steps {
		step := &s.Steps[i]
		e.at(step.At)
		for j, name := range step.receipts {
			step.Checks[j].Receipt = receipts[name]
		}
		results := make([]core.Result, len(step.Checks))
		err := e.Store.Take(context.Background(), step.Checks, results)
		switch {
		case step.Invalid && !errors.Is(err, core.ErrInvalid):
			e.Fatalf("%s:%d: %s: the error is %v, want invalid", file, step.Line, step.Text, err)
		case step.Stale && !(errors.Is(err, core.ErrStale) && errors.Is(err, core.ErrUnavailable)):
			e.Fatalf("%s:%d: %s: the error is %v, want stale and unavailable", file, step.Line, step.Text, err)
		case step.Invalid || step.Stale:
			continue
		case err != nil:
			e.Fatalf("%s:%d: %s: %v", file, step.Line, step.Text, err)
		}
		for j := range results {
			for _, w := range step.Want[j] {
				if got := w.of(&results[j]); got != w.Value {
					e.Fatalf("%s:%d: %s\ncheck %d: %s is %d, want %d; the answer is %+v", file, step.Line, step.Text, j+1, w.Field,
						got, w.Value, results[j])
				}
			}
			if name := step.names[j]; name != "" {
				receipts[name] = results[j].Receipt
			}
		}
	}
}

// of returns the number of an answer that the expectation is about.
func (w *Expectation) of(r *core.Result) int64 {
	switch w.Field {
	case "refused":
		if r.Refused {
			return 1
		}
		return 0
	case "granted":
		return r.Granted
	case "remaining":
		return r.Remaining
	case "violations":
		return r.Violations
	case "wait":
		return int64(r.Wait)
	case "reset":
		return int64(r.Reset)
	case "leased":
		return int64(r.LeasedIn)
	default:
		return int64(r.Next)
	}
}
