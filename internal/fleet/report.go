// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// States of a node.
const (
	StateOK       = "ok"
	StateDegraded = "degraded" // it reports a problem
	StateSilent   = "silent"   // its last heartbeat is at least SilentAfter ago
)

// NodeState is what operators see of a node.
type NodeState struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Front    string    `json:"front"`
	Build    string    `json:"build,omitempty"`
	Since    time.Time `json:"since"`
	SeenMs   int64     `json:"seen_ms"` // the time since the last heartbeat
	State    string    `json:"state"`
	Policies []Policy  `json:"policies"`
	Problems []string  `json:"problems,omitempty"`
}

// Nodes describes all nodes of a Redis, or a single process that does not use Redis.
type Nodes struct {
	Nodes []NodeState `json:"nodes"`
	// Unreadable is the number of records in Redis that could not be read.
	Unreadable int `json:"unreadable,omitempty"`
}

// Add adds the current record of a process, in place of an earlier one.
func (r *Reading) Add(own *Record) {
	r.Records = slices.DeleteFunc(r.Records, func(one *Record) bool { return one.ID == own.ID })
	r.Records = append(r.Records, own)
}

// Recent returns the records of the nodes that are not silent.
func (r *Reading) Recent() []*Record {
	return slices.DeleteFunc(slices.Clone(r.Records), func(one *Record) bool { return r.age(one) > SilentAfter })
}

// Nodes returns the nodes, sorted by name. The argument named now is the time on the caller's
// clock.
func (r *Reading) Nodes(now time.Time) *Nodes {
	all := &Nodes{Nodes: []NodeState{}, Unreadable: r.Unreadable}
	for _, one := range r.Records {
		age := r.age(one)
		n := NodeState{ID: one.ID, Name: one.Name, Front: one.Front, Build: one.Build, SeenMs: age.Milliseconds(), State: StateOK,
			Since: now.Add(-age - time.Duration(one.UpSeconds)*time.Second).UTC().Truncate(time.Second), Policies: one.Policies,
			Problems: slices.Clone(one.Problems)}
		for _, p := range one.Policies {
			if p.Rejected {
				n.Problems = append(n.Problems, fmt.Sprintf("the last edit of the policy %q is rejected: see its log", p.Name))
			}
		}
		all.Nodes = append(all.Nodes, n)
	}
	all.compareVersions()
	for i := range all.Nodes {
		switch n := &all.Nodes[i]; {
		case n.SeenMs > SilentAfter.Milliseconds():
			n.State = StateSilent
		case len(n.Problems) > 0:
			n.State = StateDegraded
		}
	}
	slices.SortFunc(all.Nodes, func(a, b NodeState) int {
		return cmp.Or(cmp.Compare(a.Front, b.Front), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Reading.age returns how long ago a node wrote its record.
func (r *Reading) age(one *Record) time.Duration {
	if one.SeenMicros == 0 {
		return 0
	}
	return time.Duration(min(max(0, r.NowMicros-one.SeenMicros), forgottenAfter.Microseconds())) * time.Microsecond
}

// compareVersions adds a problem to each node whose version of a policy is not the one that most
// nodes of its kind have. A Caddyfile may add to a policy, so nodes of different kinds are not
// compared.
func (all *Nodes) compareVersions() {
	type kind struct{ front, policy string }
	versions := map[kind]map[string]int{}
	for i := range all.Nodes {
		n := &all.Nodes[i]
		for policy, version := range n.versions() {
			k := kind{n.Front, policy}
			if versions[k] == nil {
				versions[k] = map[string]int{}
			}
			versions[k][version]++
		}
	}
	for i := range all.Nodes {
		n := &all.Nodes[i]
		for policy, version := range n.versions() {
			of := versions[kind{n.Front, policy}]
			most, total := 0, 0
			for _, count := range of {
				most, total = max(most, count), total+count
			}
			if len(of) > 1 && (of[version] < most || 2*most <= total) {
				n.Problems = append(n.Problems, fmt.Sprintf("the policy %q has the version %s here and on %d of %d nodes of the kind %s", policy,
					version, of[version], total, n.Front))
			}
		}
		slices.Sort(n.Problems)
	}
}

// NodeState.versions returns the versions of the node's policies by name. Several policies may have
// one name.
func (n *NodeState) versions() map[string]string {
	of := map[string][]string{}
	for _, p := range n.Policies {
		of[p.Name] = append(of[p.Name], p.Version)
	}
	joined := make(map[string]string, len(of))
	for name, all := range of {
		slices.Sort(all)
		joined[name] = strings.Join(slices.Compact(all), "+")
	}
	return joined
}

// Top holds the rules and the clients with the most denials, summed over all nodes.
type Top struct {
	Nodes   int      `json:"nodes"` // the number of nodes in the sums
	Rules   []Rule   `json:"rules"`
	Clients []Client `json:"clients"`
}

// Top returns the sums over all nodes, at most n clients and n rules. The figures of silent nodes
// for the last minute are left out.
func (r *Reading) Top(n int) *Top {
	rules, clients := map[ruleName]*Rule{}, map[ruleName]*Client{}
	top := &Top{Nodes: len(r.Records), Rules: []Rule{}, Clients: []Client{}}
	for _, one := range r.Records {
		silent := r.age(one) > SilentAfter
		for _, rule := range one.Rules {
			sum := entry(rules, ruleName{rule.Policy, rule.Rule}, Rule{Policy: rule.Policy, Rule: rule.Rule})
			sum.Admitted += rule.Admitted
			sum.Denied += rule.Denied
			if !silent {
				sum.AdmittedMinute += rule.AdmittedMinute
				sum.DeniedMinute += rule.DeniedMinute
			}
		}
		for _, client := range one.Clients {
			sum := entry(clients, ruleName{client.Policy, client.Client}, Client{Policy: client.Policy, Client: client.Client})
			sum.Denied += client.Denied
			sum.Over += client.Over
		}
	}
	for _, rule := range rules {
		top.Rules = append(top.Rules, *rule)
	}
	for _, client := range clients {
		top.Clients = append(top.Clients, *client)
	}
	sortRules(top.Rules)
	slices.SortFunc(top.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Over, b.Over), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Client, b.Client))
	})
	top.Rules, top.Clients = top.Rules[:min(n, len(top.Rules))], top.Clients[:min(n, len(top.Clients))]
	return top
}

// entry returns the sum for a rule's name. If there is none, it first adds a sum with the initial
// value.
func entry[T any](of map[ruleName]*T, name ruleName, first T) *T {
	sum := of[name]
	if sum == nil {
		sum = &first
		of[name] = sum
	}
	return sum
}
