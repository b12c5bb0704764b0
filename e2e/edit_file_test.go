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

// policyFile is a policy file on disk, together with the functions that edit and remove it.
type policyFile struct {
	t      testing.TB
	path   string // as the Caddyfile names it
	edit   func(text string)
	remove func()
}

// newRenamedFile returns a policy file. An edit replaces it by another file, as editors do.
func newRenamedFile(t testing.TB, path string) *policyFile {
	f := &policyFile{t: t, path: path}
	f.edit = func(text string) {
		f.check(os.WriteFile(path+".new", []byte(text), 0o600))
		f.check(os.Rename(path+".new", path))
	}
	f.remove = func() { f.check(os.Remove(path)) }
	return f
}

// overwritten returns a policy file. An edit truncates and rewrites it, as shells do.
func overwritten(t testing.TB, path string) *policyFile {
	f := newRenamedFile(t, path)
	f.edit = func(text string) { f.check(os.WriteFile(path, []byte(text), 0o600)) }
	return f
}

// newAlternatingFile returns a policy file. Edits alternately replace and overwrite it.
func newAlternatingFile(t testing.TB, path string) *policyFile {
	ways, n := [2]*policyFile{newRenamedFile(t, path), overwritten(t, path)}, 0
	f := newRenamedFile(t, path)
	f.edit = func(text string) {
		n++
		ways[n%2].edit(text)
	}
	return f
}

// newMountedFile returns a file as Kubernetes mounts it: policy.yaml links to ..data/policy.yaml,
// and ..data to a dated folder. An edit links ..data to a new folder and removes the previous one.
func newMountedFile(t testing.TB, path string) *policyFile {
	f := &policyFile{t: t, path: path}
	volume, file := filepath.Split(path)
	data, n, current := filepath.Join(volume, "..data"), 0, ""
	swap := func(fill func(folder string)) {
		n++
		dated := fmt.Sprintf("..2026_11_21_%06d", n)
		f.check(os.Mkdir(filepath.Join(volume, dated), 0o700))
		fill(filepath.Join(volume, dated))
		f.check(os.Symlink(dated, data+"_tmp"))
		f.check(os.Rename(data+"_tmp", data))
		if current != "" {
			f.check(os.RemoveAll(filepath.Join(volume, current)))
		}
		current = dated
	}
	f.edit = func(text string) {
		swap(func(folder string) { f.check(os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600)) })
	}
	f.remove = func() { swap(func(string) {}) } // the ConfigMap no longer has the key
	f.check(os.Symlink(filepath.Join("..data", file), path))
	return f
}

func (f *policyFile) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// logLine is the part of a line of Caddy's log that the tests read.
type logLine struct {
	Level, Msg, File, Policy, Version, Changes, Error, Rule string
}

// logLines returns the lines of the log with the given message.
func (p *process) logLines(message string) (lines []logLine) {
	for line := range strings.Lines(p.log.String()) {
		var l logLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == message {
			lines = append(lines, l)
		}
	}
	return lines
}

// Messages that Caddy logs about edits.
const (
	editInForce = "the edited policy file is in force"
	editRefused = "the edited policy file is rejected; the previous policy stays in force"
	editBack    = "the policy file has the policy in force again"
)

// version returns the version of a policy in the metrics. It returns "" if the metrics have no
// version, or several ones during a change.
func (p *process) version(policy string) string {
	p.t.Helper()
	found := regexp.MustCompile(`penstock_policy_info\{policy="`+regexp.QuoteMeta(policy)+`",version="([0-9a-f]{12})"\} 1\n`).
		FindAllStringSubmatch(p.scrape(), -1)
	if len(found) != 1 {
		return ""
	}
	return found[0][1]
}

// process.edits returns how many edits of the policy had the given result, according to the
// metrics.
func (p *process) edits(policy, result string) int {
	return int(p.metric(fmt.Sprintf("penstock_policy_reloads_total{policy=%q,result=%q}", policy, result)))
}

// oversized is a text that is larger than a policy may be.
var oversized = string(bytes.Repeat([]byte("# nothing\n"), 1<<19))
