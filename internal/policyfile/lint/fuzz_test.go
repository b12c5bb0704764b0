// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// FuzzAdvice checks that no accepted document makes Advise panic, and that Diff finds no difference
// between a valid document and itself. Seeds are the examples.
func FuzzAdvice(f *testing.F) {
	examples, err := filepath.Glob(filepath.Join("..", "..", "..", "examples", "*.yaml"))
	if err != nil || len(examples) < 2 {
		f.Fatalf("no examples: %v", err)
	}
	for _, path := range examples {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := policyfile.Decode("fuzz.yaml", policyfile.YAML, data)
		if err != nil {
			return
		}
		Advise(d)
		written, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var again policyfile.Document
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		if changes := Diff(d, &again); d.Check() == nil && !changes.Empty() {
			t.Fatalf("a document differs from itself: %s", changes.String())
		}
	})
}
