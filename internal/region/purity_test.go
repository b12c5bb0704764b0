// SPDX-License-Identifier: Apache-2.0

package region

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestThePackageIsPure forbids I/O, clocks, locks, goroutines and maps, because a simulation could
// not reproduce their effects; the order of a map, for example, varies.
func TestThePackageIsPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	pure := []string{`"fmt"`, `"math"`, `"math/big"`, `"math/bits"`,
		`"github.com/penstock/penstock/core/counter"`}
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
			if !strings.Contains(strings.Join(pure, " "), i.Path.Value) {
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
}
