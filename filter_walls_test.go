// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// filterBytesMax is the maximum size of the filter. Envoy compiles the filter on its main thread
// when it starts, which takes a second for each MB. The size varies by a few hundred bytes with the
// state of the repository, which the go command writes into the filter.
const filterBytesMax = 3_575_000

// filterParts holds the KB of code of each package in an earlier filter, which had 3.56 MB. A
// failure shows the difference from these sizes.
var filterParts = map[string]int{"runtime": 1152, "core": 448, "filter": 68, "internal_strconv": 50, "type_": 47,
	"net_netip": 44, "slices": 41, "internal_runtime_maps": 38, "strings": 26, "wire": 22, "internal_sync": 21, "internal": 21,
	"internal_bisect": 18, "main": 18, "strconv": 18, "internal_poll": 16, "unique": 16, "syscall": 14, "internal_godebug": 11,
	"sync": 11, "encoding_base64": 9, "proxywasm": 9, "unicode": 8, "internal_runtime_atomic": 5, "os": 5, "unicode_utf8": 4}

// filterWithout holds functions that must not be in the filter, each with the reason. A list of
// dependencies would not show this: the filter depends on reflect, but has no method of
// reflect.Value.
var filterWithout = []struct{ name, why string }{
	{`^fmt\.(Sprint|Fprint|Append|Errorf)`, "0.4 MB with reflect: write texts with strconv"},
	{`^reflect\.(Value|.*rtype)`, "0.1 MB and whatever it keeps in"},
	{`^crypto_`, "0.5 MB, since each of it starts all of it"},
	{`^time\.__Location`, "no store is asked, so no calendar is needed: core.Assemble"},
	{`penstock_core_internal_validate\.`, "the bridge has verified the policy: core.Assemble"},
	{`penstock_core\..*explain`, "nobody asks the filter for explanations"},
	{`penstock_core_counter\.ParseLimit`, "limits come in the compact form"},
	{`penstock_core\.__calendar_`, "no store is asked: core.Assemble"},
}

func TestFilterStaysSmall(t *testing.T) {
	small, named := shippedFilter(t), buildFilter(t, "")
	functions := functionSizes(t, named)
	if len(functions) < 1000 {
		t.Fatalf("only %d functions have names: this test reads the module wrongly", len(functions))
	}
	for _, without := range filterWithout {
		pattern := regexp.MustCompile(without.name)
		var found []string
		for name := range functions {
			if pattern.MatchString(name) {
				found = append(found, name)
			}
		}
		if slices.Sort(found); len(found) > 0 {
			t.Errorf("the filter has %d functions such as %s in it: %s", len(found), found[0], without.why)
		}
	}
	t.Logf("penstock.wasm has %d bytes", len(small))
	if len(small) > filterBytesMax {
		t.Errorf("penstock.wasm has %d bytes, more than %d. Code by package:\n%s", len(small), filterBytesMax, listGrown(functions))
	}
}

func TestFilterDependsOnLittle(t *testing.T) {
	command := exec.Command("go", "list", "-tags", filterTag, "-deps", "./envoy-wasm")
	command.Env = append(os.Environ(), wasip1...)
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for dep, why := range map[string]string{"net": "7.8 MB with net/http", "net/http": "7.8 MB", "net/url": "0.6 MB", "encoding/json": "1 MB",
		"regexp": "0.6 MB", "text/template": "reflection keeps every method in", "crypto": "see core/slim/sha256.go", "math/big": "0.3 MB",
		"fmt": "0.12 MB with os", "os": "the sandbox has no files", "time": "0.23 MB with internal/godebug, which its start calls",
		"context": "time", "os/exec": "the sandbox has none", "log": "Envoy logs", "math/rand/v2": "core is deterministic"} {
		if slices.Contains(deps, dep) {
			t.Errorf("the filter depends on %s: %s", dep, why)
		}
	}
}

// shippedFilter returns the filter as `make bin/penstock.wasm` builds it. The first call builds it,
// and all calls return the same bytes.
func shippedFilter(t *testing.T) []byte {
	t.Helper()
	if shipped == nil {
		shipped = buildFilter(t, "-s -w")
	}
	return shipped
}

var shipped []byte

// buildFilter returns the filter as `make bin/penstock.wasm` builds it, except for the flags of the
// linker and further flags.
func buildFilter(t *testing.T, linker string, flags ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "penstock.wasm")
	command := append([]string{"build", "-tags", filterTag, "-trimpath", "-buildmode=c-shared", "-ldflags", linker, "-o", path}, flags...)
	build := exec.Command("go", append(command, "./envoy-wasm")...)
	build.Env = append(os.Environ(), wasip1...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// listGrown lists the packages that have more code than filterParts states, and the largest
// functions of the first of them.
func listGrown(functions map[string]int) string {
	packages := map[string]int{}
	for name, size := range functions {
		packages[packageOf(name)] += size
	}
	by := func(of map[string]int, was map[string]int) []string {
		return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
			return cmp.Or(of[b]-was[b]*1000-(of[a]-was[a]*1000), strings.Compare(a, b))
		})
	}
	var b strings.Builder
	first := by(packages, filterParts)
	for _, p := range first[:min(12, len(first))] {
		fmt.Fprintf(&b, "%7d KB, was %4d  %s\n", packages[p]/1000, filterParts[p], p)
	}
	for _, name := range by(functions, nil) {
		if packageOf(name) == first[0] && functions[name] > 4000 {
			fmt.Fprintf(&b, "%7d bytes  %s\n", functions[name], name)
		}
	}
	return b.String()
}

// packageOf returns the package of a function from its linker symbol, in the form of its last word:
// "core", "internal_strconv".
func packageOf(function string) string {
	path, _, _ := strings.Cut(function, "_go.shape") // the name of a generic function contains its types
	if at := strings.LastIndex(path, "/"); at >= 0 {
		path = path[at+1:]
	}
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "github.com_"), ".")
	if strings.HasPrefix(path, "penstock_") || strings.HasPrefix(path, "proxy_wasm_") {
		path = path[strings.LastIndex(path, "_")+1:]
	}
	return path
}

// functionSizes reads a module, and returns the bytes of code of each function by its name.
func functionSizes(t *testing.T, module []byte) map[string]int {
	t.Helper()
	r := &sections{rest: module[8:]} // behind the magic number and the version
	var sizes []int
	imported, names := 0, map[int]string{}
	for len(r.rest) > 0 {
		id := r.take(1)[0]
		body := &sections{rest: r.take(r.number())}
		switch id {
		case 2: // imports, which are all functions
			for imported = body.number(); len(body.rest) > 0; body.number() {
				body.take(body.number()) // the module
				body.take(body.number()) // the name
				if kind := body.take(1)[0]; kind != 0 {
					t.Fatalf("an import of kind %d", kind)
				}
			}
		case 10: // code
			for range body.number() {
				n := body.number()
				sizes = append(sizes, n)
				body.take(n)
			}
		case 0: // custom
			if string(body.take(body.number())) == "name" {
				body.functionNames(names)
			}
		}
	}
	functions := map[string]int{}
	for i, size := range sizes {
		functions[names[imported+i]] += size
	}
	return functions
}

// sections is the unread rest of a module, or of a part of it.
type sections struct{ rest []byte }

func (s *sections) take(n int) []byte {
	taken := s.rest[:n]
	s.rest = s.rest[n:]
	return taken
}

func (s *sections) number() int {
	n, length := binary.Uvarint(s.rest)
	s.take(length)
	return int(n)
}

func (s *sections) functionNames(names map[int]string) {
	for len(s.rest) > 0 {
		kind := s.take(1)[0]
		part := &sections{rest: s.take(s.number())}
		if kind != 1 {
			continue
		}
		for range part.number() {
			index := part.number()
			names[index] = string(part.take(part.number()))
		}
	}
}
