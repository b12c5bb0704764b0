// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"os"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// module is the path of Penstock in the build information of a program.
const module = "github.com/penstock/penstock"

// Build returns the metrics that identify the build and the node: penstock_build_info and
// penstock_node_info, both always 1. The argument front is the kind of front: caddy, bridge or
// module.
func Build(front string) []prometheus.Collector {
	version, revision, goVersion := "unknown", "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version, revision, goVersion = buildOf(info)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	always := func(name, help string, labels prometheus.Labels) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return 1 })
	}
	return []prometheus.Collector{
		always("penstock_build_info", "The version of Penstock, always 1.",
			prometheus.Labels{"version": labelOf(version), "revision": labelOf(revision), "goversion": labelOf(goVersion)}),
		always("penstock_node_info", "The node by its host name, always 1.", prometheus.Labels{"node": labelOf(host), "front": front}),
	}
}

// buildOf returns the version of Penstock in a program. If the program is a Caddy that uses
// Penstock as a module, the revision is unknown.
func buildOf(info *debug.BuildInfo) (version, revision, goVersion string) {
	if info.Main.Path == module {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				revision = setting.Value
			}
		}
		return cmp.Or(info.Main.Version, "(devel)"), revision, info.GoVersion
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return cmp.Or(dependency.Version, "(devel)"), "", info.GoVersion
		}
	}
	return "(devel)", "", info.GoVersion
}
