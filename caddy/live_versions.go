// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/policyfile"
)

var policyInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "penstock_policy_info",
	Help: "The version of each policy file in force, always 1.",
}, []string{"policy", "version"})

func init() { collectors = append(collectors, policyInfo) }

// fileVersion identifies a policy file version in the metric. The zero value means none.
type fileVersion struct{ policy, version string }

func versionOf(d *policyfile.Document) fileVersion { return fileVersion{d.Name, d.Version()} }

// filesInForce counts, for each policy file version, the places in which it is in force. During a
// reload two configurations run.
var filesInForce = versionGauge{places: make(map[fileVersion]int)}

// versionGauge exports the versions in force as policyInfo. It is safe for concurrent use.
type versionGauge struct {
	mu     sync.Mutex
	places map[fileVersion]int
}

// change replaces one version by another. Each may be the zero fileVersion.
func (g *versionGauge) change(before, after fileVersion) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(after, 1)
	g.add(before, -1)
}

// add adds n to the places in which a version is in force.
func (g *versionGauge) add(v fileVersion, n int) {
	if v == (fileVersion{}) {
		return
	}
	if g.places[v] += n; g.places[v] > 0 {
		policyInfo.WithLabelValues(v.policy, v.version).Set(1)
		return
	}
	delete(g.places, v)
	policyInfo.DeleteLabelValues(v.policy, v.version)
}
