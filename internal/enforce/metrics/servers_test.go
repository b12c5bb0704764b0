// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

// servers collects the metrics of the stores' Redis servers, as a scrape does.
type servers []*redisstore.Store

func (s servers) Describe(ch chan<- *prometheus.Desc) { describeServers(ch) }
func (s servers) Collect(ch chan<- prometheus.Metric) { collectServers(ch, time.Now(), s...) }

// TestServersOfSeveralStores: a server of two stores has one series of each metric, and a server
// that is down has only penstock_redis_up.
func TestServersOfSeveralStores(t *testing.T) {
	up, down := redistest.StartTCP(t), redistest.StartTCP(t)
	down.Kill()
	both := servers{
		open(t, redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{up.Addr, down.Addr}}),
		open(t, redisstore.Options{URL: up.URL()}),
	}
	count, all := map[string]int{}, series(t, both)
	for _, line := range all {
		addr, value, _ := strings.Cut(line, " ")
		count[addr]++
		if addr == down.Addr && value != "0" {
			t.Errorf("%q of a server that is down", line)
		}
	}
	// Eleven figures of a server without replicas, and penstock_redis_up; the fourteenth series,
	// the number of omitted servers, belongs to no server.
	if count[up.Addr] != 12 || count[down.Addr] != 1 || len(all) != 14 {
		t.Errorf("%d series of the server, %d of the one that is down, %d in all:\n%s", count[up.Addr], count[down.Addr], len(all),
			strings.Join(all, "\n"))
	}
}

// TestLabelsOfOthers: text that servers chose is cut and made valid UTF-8. Otherwise no metric at
// all could be shown.
func TestLabelsOfOthers(t *testing.T) {
	for _, text := range []string{"redis-1:6379", "a\xff\xfeb", strings.Repeat("é", 1000), "\xc3"} {
		got := labelOf(text)
		if !strings.HasPrefix(fmt.Sprintf("%q", got), `"`) || len(got) > 255 || strings.ToValidUTF8(got, "") != got {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestBuildInfo(t *testing.T) {
	for _, c := range []struct {
		info debug.BuildInfo
		want [3]string
	}{
		{debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: module, Version: "v1.2.3"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "181d82469eb1"}}}, [3]string{"v1.2.3", "181d82469eb1", "go1.26"}},
		{debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "caddy", Version: "v9"},
			Deps: []*debug.Module{{Path: "other", Version: "v8"}, {Path: module, Version: "v1.2.3"}}}, [3]string{"v1.2.3", "", "go1.26"}},
		{debug.BuildInfo{GoVersion: "go1.26"}, [3]string{"(devel)", "", "go1.26"}},
	} {
		version, revision, goVersion := buildOf(&c.info)
		if got := [3]string{version, revision, goVersion}; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	for _, line := range series(t, Build("bridge")...) {
		if !strings.HasSuffix(line, " 1") {
			t.Errorf("%q is not 1", line)
		}
	}
}
