// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// policyFile is a policy file and how it comes to say something else.
type policyFile struct {
	t      testing.TB
	path   string // as the Caddyfile names it
	edit   func(text string)
	remove func()
}

// renamed is a file that is replaced by another, as editors do.
func renamed(t testing.TB, path string) *policyFile {
	f := &policyFile{t: t, path: path}
	f.edit = func(text string) {
		f.must(os.WriteFile(path+".new", []byte(text), 0o600))
		f.must(os.Rename(path+".new", path))
	}
	f.remove = func() { f.must(os.Remove(path)) }
	return f
}

// overwritten is a file that is emptied and written again, as shells do.
func overwritten(t testing.TB, path string) *policyFile {
	f := renamed(t, path)
	f.edit = func(text string) { f.must(os.WriteFile(path, []byte(text), 0o600)) }
	return f
}

// byTurns is a file that is replaced and overwritten by turns.
func byTurns(t testing.TB, path string) *policyFile {
	ways, n := [2]*policyFile{renamed(t, path), overwritten(t, path)}, 0
	f := renamed(t, path)
	f.edit = func(text string) {
		n++
		ways[n%2].edit(text)
	}
	return f
}

// mounted is a file as Kubernetes mounts it: policy.yaml -> ..data/policy.yaml, and ..data -> a folder with a date, which
// is swapped for another folder and removed.
func mounted(t testing.TB, path string) *policyFile {
	f := &policyFile{t: t, path: path}
	volume, file := filepath.Split(path)
	data, n, current := filepath.Join(volume, "..data"), 0, ""
	swap := func(fill func(folder string)) {
		n++
		dated := fmt.Sprintf("..2026_11_21_%06d", n)
		f.must(os.Mkdir(filepath.Join(volume, dated), 0o700))
		fill(filepath.Join(volume, dated))
		f.must(os.Symlink(dated, data+"_tmp"))
		f.must(os.Rename(data+"_tmp", data))
		if current != "" {
			f.must(os.RemoveAll(filepath.Join(volume, current)))
		}
		current = dated
	}
	f.edit = func(text string) {
		swap(func(folder string) { f.must(os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600)) })
	}
	f.remove = func() { swap(func(string) {}) } // the volume has lost the key
	f.must(os.Symlink(filepath.Join("..data", file), path))
	return f
}

func (f *policyFile) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// logLine is what a test reads of a line of Caddy's log.
type logLine struct {
	Level, Msg, File, Policy, Version, Changes, Error, Rule string
}

// logLines returns the lines of the log with that message.
func (p *process) logLines(message string) (lines []logLine) {
	for line := range strings.Lines(p.log.String()) {
		var l logLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == message {
			lines = append(lines, l)
		}
	}
	return lines
}

// What the log says of edits.
const (
	editInForce = "the edited policy file is in force"
	editRefused = "the edited policy file is refused; the policy before stays in force"
	editBack    = "the policy file says again what is in force"
)

// version returns the version that the metrics tell of a policy; "" if they tell none, or that another takes its place.
func (p *process) version(policy string) string {
	p.t.Helper()
	found := regexp.MustCompile(`penstock_policy_info\{policy="`+regexp.QuoteMeta(policy)+`",version="([0-9a-f]{12})"\} 1\n`).
		FindAllStringSubmatch(p.scrape(), -1)
	if len(found) != 1 {
		return ""
	}
	return found[0][1]
}

// edits returns how many edits of the policy the metrics say had that result.
func (p *process) edits(policy, result string) int {
	return int(p.metric(fmt.Sprintf("penstock_policy_reloads_total{policy=%q,result=%q}", policy, result)))
}

// oversized is more than a policy may be.
var oversized = string(bytes.Repeat([]byte("# nothing\n"), 1<<19))
