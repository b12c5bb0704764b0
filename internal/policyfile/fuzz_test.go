// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

func FuzzYAML(f *testing.F) { fuzz(f, YAML, "yaml") }
func FuzzTOML(f *testing.F) { fuzz(f, TOML, "toml") }
func FuzzJSON(f *testing.F) { fuzz(f, JSON, "json") }

// fuzz checks that no document makes the decoder panic, that every rejection has a reason, and that
// every accepted document is unchanged after it is marshaled and decoded again. The seeds are the
// examples and every bad document.
func fuzz(f *testing.F, format Format, ext string) {
	paths, err := filepath.Glob(filepath.Join("testdata", "bad", "*."+ext))
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	examples, err := filepath.Glob(filepath.Join("..", "..", "examples", "*."+ext))
	if err != nil || len(examples) < 2 {
		f.Fatalf("no examples: %v", err)
	}
	for _, path := range append(paths, examples...) {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Decode("fuzz."+ext, format, data)
		if err != nil {
			checkReasons(t, err)
			return
		}
		written, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("Marshal of an accepted document: %v", err)
		}
		var again Document
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("what was accepted is refused when written as\n%s\n%v", written, err)
		}
		sameDocument(t, d, &again)
		if before, after := d.Version(), again.Version(); before != after {
			t.Fatalf("the same document has the versions %s and %s", before, after)
		}
		p, err := d.Policy()
		q, errAgain := again.Policy()
		if (err == nil) != (errAgain == nil) || !reflect.DeepEqual(p, q) {
			t.Fatalf("the policies differ: %v / %v", err, errAgain)
		}
	})
}

func checkReasons(t *testing.T, err error) {
	t.Helper()
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		t.Fatalf("error %v is not core.Problems", err)
	}
	for _, problem := range problems {
		if problem.Path == "" || problem.Why == "" {
			t.Fatalf("a problem lacks its path or reason: %+v", problem)
		}
	}
}
