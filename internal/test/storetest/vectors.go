// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"github.com/penstock/penstock/internal/test/module"
	"os"
	"path/filepath"
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
)

// RunVectors runs every story in core/testdata/vectors, each with a new store.
func RunVectors(t *testing.T, open func(t testing.TB) Subject) {
	files, err := filepath.Glob(filepath.Join(module.Path(t, "core", "testdata", "vectors"), "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %q: %v", module.Path(t, "core", "testdata", "vectors"), err)
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
				t.Run(stories[i].Name, func(t *testing.T) { stories[i].run(newExaminer(t, open(t)), file) })
			}
		})
	}
}

// Story.run runs the story, and fails the test at the first answer that is not as expected.
func (s *Story) run(e *examiner, file string) {
	receipts := map[string]corecounter.Micros{"none": 0}
	for i := range s.Steps {
		step := &s.Steps[i]
		e.at(step.At)
		for j, name := range step.receipts {
			step.Checks[j].Receipt = receipts[name]
		}
		results := make([]corecounter.Result, len(step.Checks))
		err := e.Store.Take(context.Background(), step.Checks, results)
		switch {
		case step.Invalid && !errors.Is(err, corecounter.ErrInvalid):
			e.Fatalf("%s:%d: %s: the error is %v, want invalid", file, step.Line, step.Text, err)
		case step.Stale && !(errors.Is(err, corecounter.ErrStale) && errors.Is(err, corecounter.ErrUnavailable)):
			e.Fatalf("%s:%d: %s: the error is %v, want stale and unavailable", file, step.Line, step.Text, err)
		case step.Invalid || step.Stale:
			continue
		case err != nil:
			e.Fatalf("%s:%d: %s: %v", file, step.Line, step.Text, err)
		}
		for j := range results {
			for _, w := range step.Want[j] {
				if got := w.numberIn(&results[j]); got != w.Value {
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

// numberIn returns the number in an answer that the expectation is about.
func (w *Expectation) numberIn(r *corecounter.Result) int64 {
	switch w.Field {
	case "refused":
		if r.Denied {
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
