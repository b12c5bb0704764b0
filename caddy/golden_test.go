// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the adapter says into testdata")

// TestCaddyfiles adapts each testdata/*.caddyfiletest. Such a file consists of a Caddyfile, a line
// of dashes, and the JSON or the error that is expected.
func TestCaddyfiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	const dashes = "\n----------\n"
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(text), dashes)
			got := adapt(t, input+"\n")
			if *update {
				if err := os.WriteFile(file, []byte(input+dashes+got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" && !*update {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func adapt(t *testing.T, input string) string {
	t.Helper()
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(input), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err.Error() + "\n"
	}
	var out bytes.Buffer
	for _, w := range warnings {
		out.WriteString("warning: " + w.Message + "\n")
	}
	if err := json.Indent(&out, adapted, "", "\t"); err != nil {
		t.Fatal(err)
	}
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), folder, "FOLDER") + "\n"
}
