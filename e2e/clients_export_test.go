// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// recordsIn returns all records in a Redis by their keys, including those of networks and API keys.
func recordsIn(t *testing.T, server *redistest.Server) map[string]string {
	t.Helper()
	client, all := server.Client(), map[string]string{}
	for _, pattern := range []string{"rl1:~who:*", "rl1:~key:*", "rl1:~networks:*"} {
		for _, key := range client.Keys(t.Context(), pattern).Val() {
			all[key] = client.Get(t.Context(), key).Val()
		}
	}
	all["names"] = fmt.Sprint(client.ZRange(t.Context(), "rl1:~keys:{~directory}", 0, -1).Val())
	return all
}

// TestTheDirectoryIsExportedAndImported exports the directory, empties Redis while proxies run, and
// imports the export. Every record must be as it was before. Wrong files change nothing.
func TestTheDirectoryIsExportedAndImported(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := startDirected(t, server.URL(), 2)
	at := []string{"--admin", nodes[0].admin}
	run := func(args ...string) commandResult {
		t.Helper()
		return penstock(t, append(args, at...)...)
	}
	for _, args := range [][]string{{"block", "header.x-user:mallory"}, {"set-tier", "header.x-user:cid", "gold"}, {"block", "ip:192.0.2.0/24", "--for", "1h"},
		{"set-limit", "header.x-user:ann", "api", "5/31d fixed_window", "--until", "2100-01-01"}, {"grant", "header.x-user:ann", "api", "7"}} {
		run(append(append([]string{"client"}, args...), "--reason", "a <test> & more")...).mustSucceed(t)
	}
	run("key", "create", "--client", "api_key:acme", "--tier", "gold", "--reason", "a test").mustSucceed(t)
	run("key", "create", "--client", "user:u_1", "--name", "ci", "--reason", "a test").mustSucceed(t)
	before := recordsIn(t, server)
	exported := run("client", "export").mustSucceed(t)
	if lines := strings.Count(exported, "\n"); lines != 2+6 || !strings.HasSuffix(exported, `{"end":{"clients":4,"keys":2}}`+"\n") {
		t.Fatalf("the export:\n%s", exported)
	}
	file := filepath.Join(t.TempDir(), "directory.ndjson")
	writeFile(t, file, exported)
	if out := run("client", "import", file, "--reason", "again").mustSucceed(t); out != "0 records written, 6 were in the directory already\n" {
		t.Errorf("an import of what is there: %s", out)
	}
	if after := recordsIn(t, server); !maps.Equal(after, before) {
		t.Errorf("an import of what is there has changed\n%v to\n%v", before, after)
	}
	wrong := rejectedImports(t, exported)
	for name, c := range wrong {
		writeFile(t, file, c.text)
		r := run("client", "import", file, "--reason", "a mistake")
		if r.status != 1 || !strings.Contains(r.diagnostics, c.says) || !strings.Contains(r.diagnostics, "nothing was changed") {
			t.Errorf("%s: status %d, %s, want %q", name, r.status, r.diagnostics, c.says)
		}
	}
	if after := recordsIn(t, server); !maps.Equal(after, before) {
		t.Errorf("wrong files have changed\n%v to\n%v", before, after)
	}

	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, exported)
	if out := run("client", "import", file, "--reason", "Redis was emptied").mustSucceed(t); out != "6 records written, 0 were in the directory already\n" {
		t.Errorf("an import into an empty Redis: %s", out)
	}
	if after := recordsIn(t, server); !maps.Equal(after, before) {
		t.Errorf("the records were\n%v and are\n%v", before, after)
	}
	for i, node := range nodes {
		eventually.Until(t, patience, fmt.Sprint("the block is in force at node ", i), func() bool { return node.statuses("mallory", 1)[0] == 403 })
	}
	changed := strings.Replace(exported, `"tier":"gold"`, `"tier":"gold","note":"new"`, 1)
	writeFile(t, file, changed)
	if r := run("client", "import", file, "--reason", "x"); r.status != 1 || !strings.Contains(r.diagnostics, "1 of 6 records") {
		t.Errorf("a record that differs: status %d, %s", r.status, r.diagnostics)
	}
	run("client", "import", file, "--reason", "x", "--replace").mustSucceed(t)
	if out := run("client", "export").mustSucceed(t); strings.Count(out, `"note":"new"`) != 1 {
		t.Errorf("after a replacement:\n%s", out)
	}
	penstock(t, "client", "export", "--control", "http://127.0.0.1:1").mustFail(t, "leave out --control")
}

// rejectedImports returns wrong files, and for each the text that the command's message must
// contain.
func rejectedImports(t *testing.T, exported string) map[string]struct{ text, says string } {
	t.Helper()
	lines := strings.SplitAfter(exported, "\n")
	var acme string
	for _, line := range lines {
		if strings.Contains(line, "mallory") {
			acme = line
		}
	}
	return map[string]struct{ text, says string }{
		"cut off":        {strings.Join(lines[:4], ""), "the export has no last line, so it is not complete"},
		"a line missing": {strings.Replace(exported, acme, "", 1), "export again, or remove the first and the last line"},
		"twice":          {strings.Join(lines[1:7], "") + acme, "is in line"},
		"a misspelling":  {strings.Join(lines[1:7], "") + `{"client":"user:x","record":{"teir":"gold"}}`, `:7: the record is not read`},
		"a bad limit":    {`{"client":"user:x","record":{"limits":{"api":{"limits":["5/fortnight"]}}}}`, `"5/fortnight"`},
		"another record": {strings.Replace(acme, `\u003ctest\u003e`, "x", 1), "has another record in the directory"},
		"empty":          {"\n", "has no records"},
		"later":          {`{"export":{"version":2}}`, "of another version"},
		"text after it":  {exported + acme, "text after its last line"},
		"a long line":    {strings.Repeat("x", 50_000), "the line has more than"},
	}
}

// TestALargeDirectoryIsImported tests that the memory of the commands is bounded when they export
// and import many records.
func TestALargeDirectoryIsImported(t *testing.T) {
	t.Parallel()
	n := examOr(100_000, 40_000)
	most := int64(40<<10 + 160<<10*n/100_000) // KiB
	server := redistest.Start(t)
	var text bytes.Buffer
	for i := range n {
		line, err := json.Marshal(map[string]any{"client": fmt.Sprint("user:u_", i), "record": map[string]any{"tier": "gold", "tenant": fmt.Sprint("t_", i%100)}})
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(line, '\n'))
	}
	file := filepath.Join(t.TempDir(), "clients.ndjson")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--reason", "a test", "--redis", server.URL()}
	run := func(want string, args ...string) (out string) {
		t.Helper()
		var into, said bytes.Buffer
		command := exec.Command(penstockProgram(t), args...)
		command.Stdout, command.Stderr = &into, &said
		if err := command.Run(); err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage)
		// The reported peak is at least the peak of the process that started the command, which is
		// this one.
		var own syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
			t.Fatal(err)
		}
		if kib := usage.Maxrss; !ok || kib > max(most, own.Maxrss) {
			t.Errorf("%q has taken %d KiB of memory", args, kib)
		}
		t.Logf("%q: %v of the processor, %d KiB", args[1], command.ProcessState.UserTime(), usage.Maxrss)
		if want != "" && into.String() != want {
			t.Errorf("%q: %s, want %s", args, into.String(), want)
		}
		return into.String()
	}
	run(fmt.Sprintf("%d records written, 0 were in the directory already\n", n), append([]string{"client", "import", file}, args...)...)
	if got := run("", "client", "export", "--redis", server.URL()); !strings.HasSuffix(got, fmt.Sprintf(`{"end":{"clients":%d,"keys":0}}`+"\n", n)) {
		t.Errorf("the export ends with %.100q", got[max(0, len(got)-100):])
	}
}
