// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestThePackageIsPure forbids I/O, clocks, locks, goroutines and maps. A filter in a proxy's
// worker cannot use them, or a model could not reproduce their effects; the order of a map, for
// example, varies.
func TestThePackageIsPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	set := token.NewFileSet()
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if i.Path.Value != `"math"` && i.Path.Value != `"github.com/penstock/penstock/core/counter"` {
				t.Errorf("%s imports %s", path, i.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt, *ast.MapType, *ast.ChanType:
				t.Errorf("%s: %T", set.Position(n.Pos()), n)
			}
			return true
		})
	}
	build := exec.Command("go", "build", ".")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("it does not build for wasip1: %v\n%s", err, out)
	}
}
