// SPDX-License-Identifier: Apache-2.0

package clientgen

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

// folder has the generated files. The test is in another package, so that it can replace files that
// do not compile.
const folder = "../../../controlclient"

var update = flag.Bool("update", false, "write the generated files")

// TestTheClientIsTheOneOfTheDocument tests that the generated files match the OpenAPI document in
// docs/reference. "go generate ./controlclient" updates them.
func TestTheClientIsTheOneOfTheDocument(t *testing.T) {
	document, err := os.ReadFile("../../../docs/reference/control.openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Files(document)
	if err != nil {
		t.Fatal(err)
	}
	present, err := filepath.Glob(filepath.Join(folder, "*_generated.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range present {
		if want[filepath.Base(name)] != nil {
			continue
		}
		if *update {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s has no operation of the document: go generate ./controlclient", name)
	}
	for name, text := range want {
		name = filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(name); err != nil || !bytes.Equal(have, text) {
			t.Errorf("%s is not generated from the document (%v): go generate ./controlclient", name, err)
		}
	}
}
