// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/policy"
)

var policyInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "penstock_policy_info",
	Help: "The version of each policy file in force, always 1.",
}, []string{"policy", "version"})

func init() { metrics = append(metrics, policyInfo) }

// fileVersion is an edition of a policy file as the metric names it. The zero fileVersion is none.
type fileVersion struct{ policy, version string }

func versionOf(d *policy.Document) fileVersion { return fileVersion{d.Name, d.Version()} }

// filesInForce says which editions of policy files run, and in how many places: during a reload two configurations do, and
// a metric that only grew would name every edition there ever was. Safe for concurrent use.
var filesInForce = versionBook{places: make(map[fileVersion]int)}

type versionBook struct {
	mu     sync.Mutex
	places map[fileVersion]int
}

// change puts one edition in the place of another; none of them may be one.
func (b *versionBook) change(before, after fileVersion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(after, 1)
	b.add(before, -1)
}

func (b *versionBook) add(v fileVersion, n int) {
	if v == (fileVersion{}) {
		return
	}
	if b.places[v] += n; b.places[v] > 0 {
		policyInfo.WithLabelValues(v.policy, v.version).Set(1)
		return
	}
	delete(b.places, v)
	policyInfo.DeleteLabelValues(v.policy, v.version)
}
