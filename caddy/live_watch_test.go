// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// waitUntil waits until the function holds returns true. If that takes 10 s, the test fails. A busy
// machine needs less.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually.Until(t, 10*time.Second, what, holds)
}

// write replaces a file atomically, as an editor does.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func startWatched(t *testing.T, text string) (s *server, path string) {
	path = filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, text)
	return start(t, ":PORT {\n\tpenstock {\n\t\tpolicy "+path+"\n\t}\n\trespond \"ok\"\n}"), path
}

func (s *server) version() string {
	_, answer := s.ask(http.MethodGet, "rules")
	return answer["policies"].([]any)[0].(map[string]any)["version"].(string)
}

func TestEditedPolicyKeepsConsumption(t *testing.T) {
	s, path := startWatched(t, "name: shop\nrules: [{name: api, limit: 2/1h fixed_window}]\n")
	if got := s.statuses(3, "/"); got != "200 200 429" {
		t.Fatal(got)
	}
	before := s.version()
	write(t, path, "name: shop\nrules: [{name: api, limit: 5/1h fixed_window}]\n")
	waitUntil(t, "the edited policy is in force", func() bool { return s.version() != before })
	if got := s.statuses(4, "/"); got != "200 200 200 429" {
		t.Errorf("a limit raised from 2 to 5 with 2 consumed: %s, want 200 200 200 429", got)
	}
}

func TestWrongEditIsRejectedAndTheLastPolicyStays(t *testing.T) {
	s, path := startWatched(t, "name: shop\nrules: [{name: api, limit: 2/1h fixed_window}]\n")
	write(t, path, "name: shop\nrules: [{name: api, limit: 2/hour}]\n")
	status, answer := s.ask(http.MethodPost, "reload")
	if said := fmt.Sprint(answer["error"]); status != 422 || !strings.Contains(said, `policy.yaml:2: rules[0] "api".limit[0]`) || !strings.Contains(said, "1h") {
		t.Errorf("reload of a wrong edit: %d %v, want the place and the remedy", status, answer)
	}
	if got := s.statuses(3, "/"); got != "200 200 429" {
		t.Errorf("with a wrong edit: %s, want the last good policy", got)
	}
	write(t, path, "name: shop\nrules: [{name: api, limit: 3/1h fixed_window}]\n")
	if status, answer := s.ask(http.MethodPost, "reload"); status != 200 {
		t.Fatalf("reload of a mended edit: %d %v", status, answer)
	}
	if got := s.statuses(2, "/"); got != "200 429" {
		t.Errorf("mended: %s, want 200 429", got)
	}
}

// TestEditsUnderLoadLoseAndDoubleNothing edits a policy a hundred times while clients exhaust one
// of its limits. Exactly the limit is admitted, across all versions.
func TestEditsUnderLoadLoseAndDoubleNothing(t *testing.T) {
	const limit, edits, clients = 3000, 100, 8
	text := func(edit int) string {
		return fmt.Sprintf("name: shop\nrules:\n  - {name: api, limit: %d/1d fixed_window}\n"+
			"  - {name: other-%d, match: {path: /none}, limit: 1/1s}\n", limit, edit)
	}
	s, path := startWatched(t, text(0))
	var admitted, denied atomic.Int64
	var done atomic.Bool
	var load sync.WaitGroup
	for range clients {
		load.Go(func() {
			for !done.Load() || admitted.Load()+denied.Load() < limit+500 {
				switch status := s.get("/").StatusCode; status {
				case 200:
					admitted.Add(1)
				case 429:
					denied.Add(1)
				default:
					t.Errorf("status %d", status)
					return
				}
			}
		})
	}
	for i := 1; i <= edits; i++ {
		write(t, path, text(i))
		if status, answer := s.ask(http.MethodPost, "reload"); status != 200 {
			t.Errorf("edit %d: %d %v", i, status, answer)
		}
	}
	done.Store(true)
	load.Wait()
	if admitted.Load() != limit || denied.Load() == 0 {
		t.Errorf("%d admitted and %d refused, want exactly %d admitted", admitted.Load(), denied.Load(), limit)
	}
}

// TestTheVersionMetric: the metric omits rejected and closed configurations, and an
// edit replaces the previous version.
func TestTheVersionMetric(t *testing.T) {
	s, path := startWatched(t, "name: told\nrules: [{name: api, limit: 2/1h fixed_window}]\n")
	told := func() string { return grep(s.metrics(), "penstock_policy_info{") }
	want := func(version string) string {
		return `penstock_policy_info{policy="told",version="` + version + "\"} 1\n"
	}
	equal(t, "at the start", told(), want(s.version()))
	other := filepath.Join(t.TempDir(), "other.yaml")
	write(t, other, "name: other\nrules: [{name: api, limit: 2/1h}]\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := s.load("http://" + taken.Addr().String() + " {\n\tbind 127.0.0.1\n\tpenstock {\n\t\tpolicy " + other + "\n\t}\n}"); err == nil {
		t.Fatal("a configuration was taken over whose port is taken")
	}
	equal(t, "after a load that was refused", told(), want(s.version()))
	write(t, path, "name: told\nrules: [{name: api, limit: 3/1h fixed_window}]\n")
	s.ask(http.MethodPost, "reload")
	equal(t, "after an edit", told(), want(s.version()))
	if err := s.load(":PORT {\n\tpenstock 1/1m\n}"); err != nil {
		t.Fatal(err)
	}
	if shown := told(); strings.Contains(shown, `"told"`) || strings.Count(shown, "\n") != 1 {
		t.Errorf("after the file is gone: got %q, want the policy of the Caddyfile alone", shown)
	}
}

// TestTheLogNamesTheFileAndEachNewCounterOnce: each new counter is named once, together with the
// file, even for a path with a placeholder and for a rejected edit that is undone.
func TestTheLogNamesTheFileAndEachNewCounterOnce(t *testing.T) {
	dir := t.TempDir()
	path, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "log")
	t.Setenv("PENSTOCK_TEST_FOLDER", dir)
	hourly := "name: shop\nrules: [{name: api, limit: 2/1h fixed_window}]\n"
	write(t, path, hourly)
	s := start(t, "{\n\tlog {\n\t\toutput file "+log+"\n\t}\n}\n"+
		":PORT {\n\tpenstock {\n\t\tpolicy {env.PENSTOCK_TEST_FOLDER}/policy.yaml\n\t}\n\trespond \"ok\"\n}")
	for _, text := range []string{"name: shop\nrules: []\n", hourly, strings.ReplaceAll(hourly, "1h", "2h")} {
		write(t, path, text)
		s.ask(http.MethodPost, "reload")
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"the edited policy file is rejected", "the policy file has the policy in force again",
		"counters that start at zero: api 2/2h fixed_window: its window or algorithm is new"} {
		if said := grep(string(text), line); linesWith(said, `"file":"`+path+`"`) != 1 {
			t.Errorf("want one line %q that names %s:\n%s", line, path, text)
		}
	}
	if said := grep(string(text), "afresh"); said != "" {
		t.Errorf("what begins anew is said twice:\n%s", said)
	}
}
