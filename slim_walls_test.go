// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/racescale"
)

// slimLibrary maps each function of core/slim that replaces a function of the standard library to a
// body that calls the replaced function.
var slimLibrary = map[string]struct{ imports, body string }{
	"LowerASCII":  {"strings", `return strings.ToLower(text)`},
	"UpperASCII":  {"strings", `return strings.ToUpper(text)`},
	"EqualASCII":  {"strings", `return strings.EqualFold(a, b)`},
	"WholeNumber": {"strconv", `n, err := strconv.ParseInt(text, 10, 64); return n, err == nil && n <= most`},
	"ParseWhole":  {"strconv", `n, err := strconv.ParseInt(string(text), 10, 64); return n, err == nil`},
	"Trim":        {"strings", `return strings.Trim(text, set)`},
	"TrimLeft":    {"strings", `return strings.TrimLeft(text, set)`},
	"TrimSpace":   {"strings", `return strings.TrimSpace(text)`},
	"Split":       {"strings", `return strings.Split(text, separator)`},
	"IndexAny":    {"strings", `return strings.IndexAny(text, set)`},
	"FNV":         {"hash/fnv", `hash := fnv.New64a(); hash.Write([]byte(text)); return hash.Sum64()`},
	"AppendJSON":  {"encoding/json", `quoted, _ := json.Marshal(text); return append(dst, quoted[1:len(quoted)-1]...)`},
	"Quote":       {"strconv", `return strconv.Quote(text)`},
	"AppendHex":   {"encoding/hex", `return hex.AppendEncode(dst, data)`},
	"SHA256":      {"crypto/sha256", `return sha256.Sum256(data)`},
	"Order": {"slices", `order := make([]int32, n); for i := range order { order[i] = int32(i) }
		slices.SortStableFunc(order, func(i, j int32) int { return compare(int(i), int(j)) }); return order`},
	"SortNumbers": {"slices", `slices.SortFunc(list, func(a, b int32) int { if less(a, b) { return -1 }; if less(b, a) { return 1 }; return 0 })`},
	"Sorted":      {"slices", `list = slices.Clone(list); slices.SortStableFunc(list, func(a, b T) int { return compare(&a, &b) }); return list`},
	"SortedTexts": {"slices", `list = slices.Clone(list); slices.Sort(list); return list`},
	"SortedKeys":  {"slices maps", `return slices.Sorted(maps.Keys(of))`},
}

// slimParts are the functions of core/slim that are not compared with the standard library. These
// functions have no counterpart there, or, like NewError, only prevent inlining. The other
// functions of core/slim use them.
var slimParts = []string{"NewError", "LowerByte", "UpperByte", "Digits", "IsDigit", "Unescape", "IsHex", "HexValue"}

// lowPriceMax is a price in KB. A function with a higher price is far from saving nothing, so only
// "make exam" measures it.
const lowPriceMax = 4

// TestSlimIsWorthItsPrice builds the filter with the library's function in place of each function
// of core/slim. The filter must then be larger, by the price in the function's comment. Each build
// compiles core again. So only "make exam" measures all functions; other runs measure those that
// are closest to saving nothing.
func TestSlimIsWorthItsPrice(t *testing.T) {
	ours := len(shippedFilter(t))
	functions := slimFunctions(t)
	for _, name := range slices.Sorted(maps.Keys(slimLibrary)) {
		f, ok := functions[name]
		if !ok {
			t.Errorf("core/slim has no %s any more", name)
			continue
		}
		if comment := f.decl.Doc.Text(); os.Getenv(racescale.ExamVariable) == "" && statedPrice(comment) >= lowPriceMax {
			continue
		}
		t.Run(name, func(t *testing.T) { comparePrice(t, f.decl.Doc.Text(), ours, f.path, f.withLibrary()) })
	}
	t.Run("Incomparable", testIncomparableIsWorthItsPrice)
	for name := range functions {
		if _, replaces := slimLibrary[name]; !replaces && !slices.Contains(slimParts, name) {
			t.Errorf("the price of %s is not measured: list it in slimLibrary or in slimParts", name)
		}
	}
}

// slimFunction is an exported function of core/slim, as the filter has it.
type slimFunction struct {
	path   string
	source []byte
	file   *ast.File
	decl   *ast.FuncDecl
}

func slimFunctions(t *testing.T) map[string]slimFunction {
	t.Helper()
	paths, err := filepath.Glob("core/slim/*.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]slimFunction{}
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") || strings.HasSuffix(p, "_native.go") {
			continue
		}
		source, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), p, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok && decl.Name.IsExported() {
				functions[decl.Name.Name] = slimFunction{path: p, source: source, file: file, decl: decl}
			}
		}
	}
	return functions
}

var pricePattern = regexp.MustCompile(`Price: ([0-9.]+) KB`)

// statedPrice returns the price that the comment states in KB, or 0.
func statedPrice(comment string) float64 {
	found := pricePattern.FindStringSubmatch(strings.Join(strings.Fields(comment), " "))
	if found == nil {
		return 0
	}
	price, _ := strconv.ParseFloat(found[1], 64)
	return price
}

// comparePrice builds the filter with another source of a file, and compares its size with the
// price that the comment states, in KB.
func comparePrice(t *testing.T, comment string, ours int, file string, source []byte) {
	t.Helper()
	theirs := len(buildFilter(t, "-s -w", "-overlay", overlay(t, file, source)))
	saved := float64(theirs-ours) / 1000
	stated := statedPrice(comment)
	switch {
	case saved <= 0:
		t.Errorf("the filter is smaller by %.1f KB with the library's: use that", -saved)
	case math.Abs(stated-saved) > max(1, saved/4):
		t.Errorf("the comment states a price of %v KB: write \"Price: %.1f KB\"", stated, saved)
	default:
		t.Logf("%.1f KB, stated are %v KB", saved, stated)
	}
}

// testIncomparableIsWorthItsPrice measures the equality functions that slim.Incomparable prevents.
func testIncomparableIsWorthItsPrice(t *testing.T) {
	const file = "core/slim/incomparable.go"
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comparable := bytes.Replace(source, []byte("= [0]func()"), []byte("= struct{}"), 1)
	if bytes.Equal(comparable, source) {
		t.Fatal("slim.Incomparable is declared differently")
	}
	comparePrice(t, string(source), len(shippedFilter(t)), file, comparable)
}

// withLibrary returns the source of the function's file with the library's body.
func (f slimFunction) withLibrary() []byte {
	library := slimLibrary[f.decl.Name.Name]
	offset := func(pos token.Pos) int { return int(pos - f.file.FileStart) }
	rest := string(f.source[offset(endOfImports(f.file)):offset(f.decl.Body.Pos())]) + "{" + library.body + "}" +
		string(f.source[offset(f.decl.Body.End()):])
	imports := strings.Fields(library.imports)
	for _, i := range f.file.Imports {
		imports = append(imports, strings.Trim(i.Path.Value, `"`))
	}
	slices.Sort(imports)
	var source bytes.Buffer
	source.Write(f.source[:offset(f.file.Name.End())])
	for _, i := range slices.Compact(imports) {
		if strings.Contains(rest, path.Base(i)+".") {
			fmt.Fprintf(&source, "\nimport %q", i)
		}
	}
	source.WriteString("\n" + rest)
	return source.Bytes()
}

// overlay writes the source, and a file for -overlay that replaces the given file by the source.
func overlay(t *testing.T, file string, source []byte) string {
	t.Helper()
	dir := t.TempDir()
	replaced := filepath.Join(dir, "replaced.go")
	if err := os.WriteFile(replaced, source, 0o600); err != nil {
		t.Fatal(err)
	}
	original, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: replaced}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// endOfImports returns the position after the imports of the file.
func endOfImports(file *ast.File) token.Pos {
	end := file.Name.End()
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			end = g.End()
		}
	}
	return end
}
