// SPDX-License-Identifier: Apache-2.0

// The tests of this folder enforce rules: which way imports point, what core may use, how large a
// function may grow, and that documents name what exists. Each failure says which rule is broken,
// and where.
package penstock_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock/penstock"

// wasip1 are the variables with which the go command builds the filter.
var wasip1 = []string{"GOOS=wasip1", "GOARCH=wasm"}

// filterTag is the build tag of the filter.
const filterTag = "penstock_filter"

// imports lists the packages of this module that each folder may import. A folder that is not
// listed is an error: add it here first.
var imports = map[string][]string{
	"core/slim":              {},
	"core/counter":           {"core/slim"},
	"core/internal/codec":    {"core/counter"},
	"core/policy":            {"core/counter", "core/slim"},
	"core/compact":           {"core/counter", "core/internal/codec", "core/policy", "core/slim"},
	"core/internal/match":    {"core/policy", "core/slim"},
	"core/internal/identify": {"core/counter", "core/internal/match", "core/policy", "core/slim"},
	"core/internal/validate": {"core/counter", "core/internal/identify", "core/internal/match", "core/policy", "core/slim"},
	"core": {
		"core/counter", "core/internal/codec", "core/internal/identify", "core/internal/match",
		"core/internal/validate", "core/policy", "core/slim",
	},
	"core/response": {"core", "core/counter", "core/internal/match", "core/policy", "core/slim"},
	"lua":           {},
	"internal/store": {
		"core/counter", "internal/region/writeoff", "internal/store/fallback", "internal/store/leasestore",
		"internal/store/memstore", "internal/store/redisstore", "internal/store/regionstore", "lua",
	},
	"internal/store/memstore":   {"core/counter"},
	"internal/store/redisstore": {"core/counter", "lua", "internal/sources", "internal/survive"},
	"internal/lease":            {"core/counter"},
	"internal/region":           {"core/counter"},
	"internal/region/gossip": {"core/counter", "core/policy", "internal/region/loan", "internal/store/redisstore",
		"internal/store/regionstore", "lua"},
	"internal/region/loan":          {"core/counter", "core/policy", "internal/region/writeoff", "internal/sources", "internal/store/regionstore"},
	"internal/region/writeoff":      {"core/counter", "internal/store/redisstore", "lua"},
	"internal/store/regionstore":    {"core/counter", "core/policy", "internal/region/writeoff", "internal/sources", "internal/survive"},
	"internal/store/leasestore":     {"core/counter", "internal/lease", "internal/sources"},
	"internal/store/fallback":       {"core/counter"},
	"internal/policyfile":           {"core", "core/counter", "core/policy", "internal/policyfile/syntax"},
	"internal/policyfile/ruletable": {"internal/policyfile"},
	"internal/policyfile/lint":      {"core", "core/counter", "core/policy", "internal/policyfile", "internal/policyfile/syntax"},
	"internal/policyfile/syntax":    {"core/policy"},
	"internal/store/redisadmin":     {"core/counter", "internal/store/redisstore"},
	"internal/store/redisbackup":    {"core/counter", "internal/store/redisadmin", "internal/store/redisstore", "lua"},
	"internal/directory":            {"core", "core/counter", "core/policy", "internal/survive"},
	"internal/directory/redisdir":   {"core/policy", "internal/directory", "internal/store/redisstore"},
	"internal/control": {
		"internal/control/api", "internal/control/archive", "internal/control/database", "internal/control/ingest", "internal/control/ledger", "internal/control/notify",
		"internal/control/publish", "internal/control/reports", "internal/control/retain", "internal/control/rollout", "internal/directory/redisdir",
		"internal/listen", "internal/published/redispolicy", "internal/store/redisstore",
	},
	"internal/control/api": {
		"core/counter", "core/policy", "internal/control/ingest", "internal/control/ledger", "internal/control/reports", "internal/credential", "internal/directory",
		"internal/explain", "internal/feed", "internal/listen", "internal/operator", "internal/policyfile", "internal/policyfile/lint", "internal/policyfile/syntax",
		"internal/published", "internal/sources", "internal/store/memstore", "internal/survive",
	},
	"controlclient":                  {},
	"internal/control/archive":       {"internal/control/retain"},
	"internal/control/notify":        {},
	"internal/control/ingest":        {"internal/events", "internal/feed"},
	"internal/control/reports":       {},
	"internal/control/retain":        {},
	"internal/control/database":      {},
	"internal/control/ledger":        {"core/policy", "internal/control/retain", "internal/directory", "internal/policyfile"},
	"internal/control/localpg":       {},
	"internal/control/publish":       {"core/policy", "internal/control/ledger", "internal/directory", "internal/directory/redisdir"},
	"internal/otlp":                  {},
	"internal/otlp/push":             {},
	"internal/survive":               {},
	"internal/control/rollout":       {"internal/control/ledger", "internal/fleet", "internal/policyfile/lint", "internal/published", "internal/published/redispolicy", "internal/store/redisstore"},
	"internal/published":             {"internal/policyfile", "internal/policyfile/syntax"},
	"internal/published/follow":      {"internal/enforce/live", "internal/policyfile", "internal/published", "internal/survive"},
	"internal/published/httppolicy":  {"internal/controlcall", "internal/published", "internal/published/follow"},
	"internal/published/redispolicy": {"internal/published/follow", "internal/store/redisstore"},
	"internal/explain":               {"core", "core/counter", "core/policy", "internal/directory", "internal/operator", "internal/policyfile"},
	"internal/operator":              {"core", "core/counter", "core/policy", "internal/credential", "internal/directory", "internal/enforce/live", "internal/events", "internal/fleet", "internal/policyfile"},
	"internal/listen":                {"internal/policyfile"},
	"internal/status":                {"core", "core/counter", "core/policy", "internal/directory"},
	"internal/fleet":                 {"internal/enforce/topk", "internal/events", "internal/store/redisstore", "internal/survive"},
	"internal/test/storetest":        {"core/counter", "internal/test/module", "internal/test/racescale", "internal/test/seed"},
	"internal/test/redistest":        {"internal/test/eventually", "internal/test/freeport"},
	"internal/test/clientgen":        {},
	"internal/test/pgtest":           {"internal/control/localpg", "internal/test/eventually"},
	"internal/test/s3test":           {"internal/test/eventually", "internal/test/freeport", "internal/test/module"},
	"internal/test/dnstest":          {},
	"internal/test/conformance":      {"core/counter", "internal/test/module"},
	"internal/credential":            {"core/counter", "core/policy", "internal/policyfile", "internal/policyfile/syntax"},
	"internal/events":                {"core/counter", "core/policy"},
	"internal/controlcall":           {},
	"internal/feed":                  {"internal/controlcall", "internal/events", "internal/meter", "internal/survive"},
	"internal/meter":                 {},
	"internal/enforce": {
		"core", "core/counter", "core/policy", "internal/enforce/live", "internal/enforce/metrics", "internal/enforce/topk", "internal/events",
		"internal/meter", "internal/store/regionstore",
	},
	"internal/enforce/live": {
		"core", "core/policy", "internal/credential", "internal/enforce/metrics",
		"internal/policyfile",
		"internal/policyfile/lint",
	},
	"internal/enforce/shadow":   {"core", "core/counter", "core/policy", "internal/directory", "internal/enforce/live"},
	"internal/enforce/throttle": {"core", "core/counter", "internal/sources"},
	"internal/enforce/settle":   {"core/counter", "internal/sources"},
	"internal/enforce/metrics": {
		"core", "core/counter", "core/policy", "internal/credential", "internal/directory", "internal/events", "internal/feed", "internal/policyfile",
		"internal/store", "internal/store/leasestore", "internal/store/redisstore", "internal/store/regionstore",
	},
	"internal/usage":         {"core/slim", "internal/sources"},
	"internal/usage/inflate": {"internal/sources"},
	"internal/enforce/topk":  {},
	"internal/envoy/wire":    {"core", "core/compact", "core/counter", "core/policy", "core/slim"},
	"internal/envoy/ecds":    {},
	"internal/sources":       {},
	"internal/envoy/bridge": {
		"core", "core/compact", "core/counter", "core/policy", "core/response", "internal/directory", "internal/enforce",
		"internal/enforce/live", "internal/enforce/metrics", "internal/enforce/settle", "internal/enforce/shadow",
		"internal/enforce/throttle", "internal/enforce/topk", "internal/sources", "internal/envoy/wire", "internal/events", "internal/fleet", "internal/lease", "internal/listen", "internal/meter", "internal/operator",
		"internal/policyfile", "internal/policyfile/lint", "internal/status", "internal/store/regionstore",
	},
	"internal/envoy/exchange": {"core", "core/counter", "core/policy", "core/response", "core/slim", "internal/envoy/wire", "internal/usage"},
	"envoy-module/front": {
		"core", "core/counter", "core/policy", "core/response", "envoy-module/console", "internal/controlcall", "internal/directory", "internal/directory/redisdir",
		"internal/enforce", "internal/enforce/live", "internal/enforce/metrics", "internal/enforce/settle", "internal/enforce/shadow",
		"internal/enforce/throttle", "internal/enforce/topk", "internal/envoy/exchange", "internal/envoy/wire", "internal/events",
		"internal/feed", "internal/fleet", "internal/meter", "internal/operator", "internal/otlp/push", "internal/policyfile", "internal/policyfile/lint",
		"internal/policyfile/syntax", "internal/published/follow", "internal/published/httppolicy", "internal/published/redispolicy", "internal/sources", "internal/status", "internal/store",
		"internal/store/memstore", "internal/store/redisstore", "internal/survive", "internal/usage/inflate",
	},
	"envoy-module/console": {"internal/listen", "internal/operator"},
	"envoy-module/abi":     {"core/response", "envoy-module/front"},
	"envoy-module":         {"envoy-module/abi"},
	"envoy-wasm/filter": {
		"core", "core/compact", "core/counter", "core/policy", "core/response", "core/slim",
		"internal/envoy/exchange", "internal/envoy/wire", "internal/lease",
	},
	"envoy-wasm/abi": {},
	"envoy-wasm":     {"core/compact", "core/counter", "core/slim", "envoy-wasm/abi", "envoy-wasm/filter"},
	"internal/envoy/rls": {
		"core", "core/counter", "core/policy", "core/response", "internal/directory", "internal/enforce",
		"internal/enforce/metrics", "internal/enforce/settle", "internal/enforce/shadow", "internal/sources", "internal/store/regionstore",
	},
	"internal/envoy/rlsimport": {"core/policy", "internal/envoy/rls", "internal/policyfile", "internal/policyfile/syntax"},
	"internal/test/eventually": {},
	"internal/test/otlptest":   {},
	"internal/test/limittest":  {"core/counter"},
	"internal/test/loantest":   {"core/counter", "internal/store/regionstore"},
	"internal/test/module":     {},
	"internal/test/regiontest": {"core/counter"},
	"internal/test/request":    {"core/counter", "core/policy", "internal/test/seed"},
	"internal/test/seed":       {},
	"internal/test/signer":     {},
	"internal/test/pipetest":   {},
	"internal/test/puretest":   {},
	"internal/test/freeport":   {},
	"internal/test/certtest":   {},
	"internal/test/benchpair":  {},
	"internal/test/racescale":  {},
	"internal/test/differs":    {},
	"caddy": {
		"core", "core/counter", "core/policy", "core/response", "internal/controlcall", "internal/directory",
		"internal/directory/redisdir", "internal/enforce", "internal/enforce/live", "internal/enforce/metrics", "internal/enforce/settle", "internal/enforce/shadow", "internal/enforce/throttle",
		"internal/enforce/topk", "internal/events", "internal/feed", "internal/fleet", "internal/meter", "internal/operator", "internal/policyfile",
		"internal/policyfile/lint", "internal/policyfile/syntax", "internal/published/follow", "internal/published/httppolicy", "internal/published/redispolicy", "internal/sources", "internal/status", "internal/store",
		"internal/store/memstore", "internal/store/redisstore", "internal/usage", "internal/usage/inflate",
	},
	"cmd/penstock": {
		"controlclient", "core", "core/counter", "core/policy", "internal/control", "internal/control/api", "internal/control/archive", "internal/control/database",
		"internal/control/ledger", "internal/control/localpg", "internal/control/notify", "internal/controlcall", "internal/credential", "internal/directory",
		"internal/directory/redisdir", "internal/enforce", "internal/enforce/metrics", "internal/envoy/bridge", "internal/envoy/ecds", "internal/envoy/rls",
		"internal/control/reports", "internal/control/retain", "internal/envoy/rlsimport", "internal/events", "internal/explain", "internal/feed", "internal/fleet", "internal/listen", "internal/meter", "internal/operator", "internal/otlp", "internal/policyfile",
		"internal/policyfile/lint", "internal/policyfile/ruletable", "internal/policyfile/syntax", "internal/published", "internal/published/follow", "internal/published/httppolicy", "internal/published/redispolicy",
		"internal/region/gossip", "internal/region/loan", "internal/region/writeoff", "internal/store", "internal/store/regionstore", "internal/store/memstore", "internal/store/redisadmin", "internal/store/redisbackup", "internal/store/redisstore",
	},
	"cmd/caddy": {"caddy"},
	"e2e":       {},
}

// listed is the output of `go list -json` for a package.
type listed struct {
	ImportPath, Dir, Doc      string
	Standard                  bool
	Imports, Deps             []string
	GoFiles                   []string
	TestImports, XTestImports []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	return listFor(t, nil, args...)
}

// listFor lists packages with further environment variables.
func listFor(t *testing.T, environment []string, args ...string) []listed {
	t.Helper()
	command := exec.Command("go", append([]string{"list", "-json"}, args...)...)
	command.Env = append(os.Environ(), environment...)
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p listed
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range append(list(t, "./..."), listFor(t, wasip1, "-tags", filterTag, "./envoy-wasm/...")...) {
		folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if folder == "" {
			continue
		}
		allowed, known := imports[folder]
		if !known {
			t.Errorf("%s is in no row of the table of imports: add one, in the direction the architecture allows", folder)
		}
		for _, path := range p.Imports {
			ours, ok := strings.CutPrefix(path, module+"/")
			if strings.HasPrefix(ours, "internal/test/") && !strings.HasPrefix(folder, "internal/test/") {
				t.Errorf("%s imports %s: what helps tests is imported by tests only", folder, ours)
			}
			if ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s: it may import %v", folder, ours, allowed)
			}
		}
	}
}

// TestDocumentsNameCommitsThatExist tests that the commits at which tables were measured are in the
// history. Without the whole history, there is nothing to compare with.
func TestDocumentsNameCommitsThatExist(t *testing.T) {
	if out, err := exec.Command("git", "rev-parse", "--is-shallow-repository").Output(); err != nil || string(out) != "false\n" {
		return
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	commit := regexp.MustCompile("commit `([0-9a-f]{7,40})`")
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range commit.FindAllStringSubmatch(string(text), -1) {
			if exec.Command("git", "merge-base", "--is-ancestor", match[1], "HEAD").Run() != nil {
				t.Errorf("%s names commit %s, which the history does not have", name, match[1])
			}
		}
	}
}

func TestCoreStaysSmall(t *testing.T) {
	banned := map[string]string{
		"net/http":      "2 MB of every filter",
		"net":           "core does no I/O",
		"os/exec":       "core does no I/O",
		"encoding/json": "reflection costs the filter a second of start-up per MB",
		"text/template": "reflection costs the filter a second of start-up per MB",
		"regexp":        "matching is by index, and compiling one on a request is an attack",
		"database/sql":  "core does no I/O",
		"log":           "core does not log",
		"log/slog":      "core does not log",
		"math/rand":     "core is deterministic",
		"math/rand/v2":  "core is deterministic",
	}
	for _, p := range list(t, "./core/...") {
		for _, dep := range p.Deps {
			if why, bad := banned[dep]; bad {
				t.Errorf("%s depends on %s: %s", p.ImportPath, dep, why)
			}
		}
		for _, path := range p.Imports {
			if strings.Contains(path, ".") && path != module+"/core" && !strings.HasPrefix(path, module+"/core/") {
				t.Errorf("%s imports %s: it takes only core and the standard library", p.ImportPath, path)
			}
		}
	}
	build := exec.Command("go", "build", "./core/...")
	build.Env = append(os.Environ(), wasip1...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("core does not build for wasip1: %v\n%s", err, out)
	}
}

func TestCoreHasNoClockAndNoGoroutine(t *testing.T) {
	for path, file := range sources(t, func(p string) bool { return strings.HasPrefix(p, "core/") && !isTest(p) }) {
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", file.at(n))
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && n.Sel.Name == "Now" {
					t.Errorf("%s reads the clock", file.at(n))
				}
			}
			return true
		})
		_ = path
	}
}

func TestEveryPackageSaysWhatItPromises(t *testing.T) {
	for _, p := range list(t, "./...") {
		if len(p.GoFiles) > 0 && len(p.Doc) < 40 {
			t.Errorf("%s has no package comment worth the name", p.ImportPath)
		}
	}
}

func TestFilesCarryTheLicence(t *testing.T) {
	for path, file := range sources(t, func(string) bool { return true }) {
		if !bytes.HasPrefix(file.text, []byte("// SPDX-License-Identifier: Apache-2.0\n\n")) {
			t.Errorf("%s does not begin with the licence line and a blank line", path)
		}
	}
}

func TestNothingGrowsTooLarge(t *testing.T) {
	const functionLinesMax, fileLinesMax = 70, 500
	for path, file := range sources(t, func(string) bool { return true }) {
		if n := bytes.Count(file.text, []byte("\n")); n > fileLinesMax {
			t.Errorf("%s has %d lines: a file is one idea of at most %d", path, n, fileLinesMax)
		}
		for _, d := range file.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := file.set.Position(f.End()).Line - file.set.Position(f.Pos()).Line + 1
			if lines > functionLinesMax {
				t.Errorf("%s: %s has %d lines, more than %d", file.at(f), f.Name.Name, lines, functionLinesMax)
			}
		}
	}
}

func TestNamesSayWhatTheyHold(t *testing.T) {
	vague := regexp.MustCompile(`(?i)(^|/)(utils?|common|helpers?|managers?|misc)(\.go|_test\.go)?$`)
	for path := range sources(t, func(string) bool { return true }) {
		for _, name := range []string{path, filepath.Dir(path)} {
			if vague.MatchString(name) {
				t.Errorf("%s: a name that says nothing", name)
			}
		}
	}
}

// TestTestsDoNotSleep tests that tests do not sleep, except in files that use testing/synctest.
// There the test has a clock of its own, and a sleep takes no time.
func TestTestsDoNotSleep(t *testing.T) {
	for _, file := range sources(t, isTest) {
		if slices.ContainsFunc(file.syntax.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			continue
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "time" && s.Sel.Name == "Sleep" {
				t.Errorf("%s sleeps: time is an argument; where a server must be waited for, poll with a deadline", file.at(s))
			}
			return true
		})
	}
}

func TestModulesStandAlone(t *testing.T) {
	for _, path := range tracked(t) {
		switch filepath.Base(path) {
		case "go.work", "go.work.sum":
			t.Errorf("%s is committed: it would change how others build", path)
		case "go.mod":
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if regexp.MustCompile(`(?m)^\s*replace\b`).Match(text) {
				t.Errorf("%s has a replace directive: users would not inherit it", path)
			}
		}
	}
}

// named finds paths of this repository in prose: `core/plan.go`, `examples/Caddyfile`,
// `docs/reference/policy.md`.
var named = regexp.MustCompile("`((?:\\.ci|core|lua|caddy|envoy-wasm|envoy-module|internal|cmd|examples|e2e|deploy|docs|bench|tools)/[A-Za-z0-9_./*-]*)`")

func TestDocumentsNameWhatExists(t *testing.T) {
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllSubmatch(text, -1) {
			found, err := filepath.Glob(strings.TrimSuffix(string(match[1]), "/"))
			if err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there", path, match[1])
			}
		}
	}
}

// goFile finds the names of Go files in comments: see serve.go.
var goFile = regexp.MustCompile(`\b[a-z0-9_]+\.go\b`)

// TestCommentsNameFilesThatAreThere compares only the names of files, because a comment may name a
// file of another package.
func TestCommentsNameFilesThatAreThere(t *testing.T) {
	there := map[string]bool{}
	all := sources(t, func(string) bool { return true })
	for path := range all {
		there[filepath.Base(path)] = true
	}
	for path, file := range all {
		for _, comment := range file.syntax.Comments {
			for _, name := range goFile.FindAllString(comment.Text(), -1) {
				if !there[name] {
					t.Errorf("%s speaks of %s, which is not there", path, name)
				}
			}
		}
	}
}
