// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
	"testing"
)

func TestDescribeBuild(t *testing.T) {
	setting := func(pairs ...string) (all []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	for _, c := range []struct {
		version  string
		settings []debug.BuildSetting
		want     string
	}{
		{"(devel)", setting("vcs.revision", "181d82469eb1", "vcs.time", "2026-11-22T10:00:00Z", "vcs.modified", "false"),
			"penstock (devel) commit 181d82469eb1 2026-11-22T10:00:00Z go1.26.8"},
		{"v1.2.3+dirty", setting("vcs.revision", "181d82469eb1", "vcs.time", "2026-11-22T10:00:00Z", "vcs.modified", "true"),
			"penstock v1.2.3+dirty commit 181d82469eb1 (modified) 2026-11-22T10:00:00Z go1.26.8"},
		{"v1.2.3", nil, "penstock v1.2.3 go1.26.8"},
		{"", nil, "penstock (devel) go1.26.8"},
	} {
		got := describeBuild(&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: c.version}, Settings: c.settings})
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestSummarizeReload(t *testing.T) {
	for reply, want := range map[string]string{
		`{"policies":[{"name":"shop","version":"181d82469eb1","file":"/etc/policy.yaml"}]}`: "in force: /etc/policy.yaml (policy \"shop\", version 181d82469eb1)\n",
		`{"policies":[{"name":"shop","version":"181d82469eb1"}]}`:                           "no policy file is in use; \"caddy reload\" reads the Caddyfile again\n",
	} {
		if got, err := summarizeReload([]byte(reply)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", reply, got, err, want)
		}
	}
}
