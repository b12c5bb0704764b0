// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/events"
)

// Sources provide the data for a node's record. Each function may be nil.
type Sources struct {
	Front string // "caddy", "bridge" or "module"
	// Receipts is the latest form of receipts that a bridge reads; 0 for other nodes.
	Receipts int
	// Policies returns the policies in force.
	Policies func() []Policy
	// Totals returns the requests by rule since the process began.
	Totals func() []Total
	// Denied are the clients denied most often.
	Denied *topk.Sketch
	// Problems returns the present problems, described for an operator.
	Problems func() []string
	// Events returns a part of the latest events; see [events.Log.Tail].
	Events func(from uint64, wants func(*events.Event) bool) events.Tail
}

// Total is the number of requests that a rule admitted and denied.
type Total struct {
	Policy, Rule     string
	Admitted, Denied uint64
}

// Node describes a process. A Node is safe for concurrent use.
type Node struct {
	sources Sources
	id      string
	name    string
	build   string
	began   time.Time

	mu   sync.Mutex
	past []snapshot // the totals at earlier times, the oldest first
}

// snapshot holds the totals at one time.
type snapshot struct {
	at     time.Time
	totals map[ruleName]Total
}

type ruleName struct{ policy, rule string }

// Snapshots are taken at least snapshotEvery apart. The present totals are compared with the latest
// snapshot that is at least a minute old.
const (
	snapshotEvery = 5 * time.Second
	rateOver      = time.Minute
)

// New returns a Node that describes this process.
func New(s Sources, now time.Time) *Node {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Node{sources: s, id: strconv.FormatUint(rand.Uint64(), 36), name: fmt.Sprintf("%s:%d", shorten(host), os.Getpid()),
		build: build(), began: now, past: []snapshot{{at: now}}}
}

// build returns the version of this module in the running program; "" if it is unknown.
func build() string {
	const module = "github.com/penstock/penstock"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range append(info.Deps, &info.Main) {
		if dep.Path == module {
			return dep.Version
		}
	}
	return ""
}

// shorten returns the beginning of a text, up to the bound.
func shorten(text string) string { return text[:min(len(text), textBytesMax)] }

// Record returns the node's current record. The record in Redis may be shorter.
func (n *Node) Record(now time.Time) *Record {
	r := &Record{Version: recordVersion, ID: n.id, Name: n.name, Front: n.sources.Front, Build: n.build, Receipts: n.sources.Receipts,
		UpSeconds: max(0, int64(now.Sub(n.began)/time.Second)), Policies: []Policy{}, Rules: []Rule{}, Clients: []Client{}}
	if n.sources.Policies != nil {
		r.Policies = append(r.Policies, n.sources.Policies()...)
	}
	if n.sources.Problems != nil {
		for _, problem := range n.sources.Problems() {
			r.Problems = append(r.Problems, shorten(problem))
		}
	}
	if n.sources.Totals != nil {
		r.Rules = n.rates(now, n.sources.Totals())
	}
	if n.sources.Denied != nil {
		for _, e := range n.sources.Denied.Top(topk.Entries) {
			r.Clients = append(r.Clients, Client(e))
		}
	}
	return r
}

// Node.rates returns the rules with their totals and their figures for the last minute, the rules
// with the most denials first.
func (n *Node) rates(now time.Time, totals []Total) []Rule {
	present := snapshot{at: now, totals: make(map[ruleName]Total, len(totals))}
	for _, t := range totals {
		present.totals[ruleName{t.Policy, t.Rule}] = t
	}
	before := n.before(present)
	elapsed := max(now.Sub(before.at), rateOver)
	lastMinute := func(now, then uint64) uint64 {
		return uint64(float64(now-min(then, now)) * float64(rateOver) / float64(elapsed))
	}
	rules := make([]Rule, 0, len(totals))
	for name, t := range present.totals {
		then := before.totals[name]
		rules = append(rules, Rule{Policy: t.Policy, Rule: t.Rule, Admitted: t.Admitted, Denied: t.Denied,
			AdmittedMinute: lastMinute(t.Admitted, then.Admitted), DeniedMinute: lastMinute(t.Denied, then.Denied)})
	}
	sortRules(rules)
	return rules
}

// sortRules sorts rules by their denials, then by their admissions.
func sortRules(rules []Rule) {
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(b.DeniedMinute, a.DeniedMinute), cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.AdmittedMinute, a.AdmittedMinute),
			cmp.Compare(b.Admitted, a.Admitted), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
	})
}

// Node.before keeps the present totals for later, and returns the earlier totals to compare them
// with.
func (n *Node) before(present snapshot) snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.past) > 1 && present.at.Sub(n.past[1].at) >= rateOver {
		n.past = n.past[1:]
	}
	before := n.past[0]
	if present.at.Sub(n.past[len(n.past)-1].at) >= snapshotEvery {
		n.past = append(n.past, present)
	}
	return before
}
