// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Health is the state of the servers at the time of the inspection.
type Health struct {
	Summary string
	Nodes   []NodeHealth
	// for information; also what could not be determined, and the right or setting that it takes
	Notes []string
	Wrong []string // problems, each with a remedy
}

// NodeHealth is the state of one server, as text.
type NodeHealth struct {
	Addr, Role, Slots, State, Keys, Memory, Behind, Version string
}

// Health returns the state of the servers, as read by Connect.
func (d *Deployment) Health() *Health {
	h := &Health{}
	for _, n := range slices.Concat(d.Nodes, d.Sentinels) {
		h.Nodes = append(h.Nodes, NodeHealth{Addr: n.Addr, Role: d.role(n), Slots: slotsText(n.Slots), State: n.state(),
			Keys: n.keys(), Memory: n.memory(), Behind: d.behind(n), Version: n.info["redis_version"]})
		if wrong := d.problemOf(n); wrong != "" {
			h.Wrong = append(h.Wrong, wrong)
		}
	}
	h.Summary = d.summary()
	for i := range d.moves {
		h.Notes = append(h.Notes, d.moveText(&d.moves[i]))
	}
	h.Wrong = append(h.Wrong, d.topologyProblems()...)
	restricted, _ := d.restricted()
	h.Notes = append(h.Notes, restricted...)
	return h
}

// Print writes the state as text. Print reports whether there is no problem.
func (h *Health) Print(out io.Writer) (ok bool, err error) {
	fmt.Fprintln(out, h.Summary)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tROLE\tSLOTS\tSTATE\tKEYS\tMEMORY\tBEHIND\tREDIS")
	for _, n := range h.Nodes {
		row := []string{n.Addr, n.Role, n.Slots, n.State, n.Keys, n.Memory, n.Behind, n.Version}
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return false, err
	}
	for _, note := range h.Notes {
		if _, err := fmt.Fprintf(out, "note: %s\n", note); err != nil {
			return false, err
		}
	}
	for _, wrong := range h.Wrong {
		if _, err := fmt.Fprintf(out, "wrong: %s\n", wrong); err != nil {
			return false, err
		}
	}
	return len(h.Wrong) == 0, nil
}

func (d *Deployment) summary() string {
	masters := 0
	for _, n := range d.Nodes {
		if n.Master {
			masters++
		}
	}
	replicas := len(d.Nodes) - masters
	switch d.Mode {
	case ModeCluster:
		served := slotsOfCluster
		for _, s := range d.unservedSlots() {
			served -= s.Last - s.First + 1
		}
		return fmt.Sprintf("a cluster of %s and %s; %d of %d slots are served", plural(masters, "master"), plural(replicas, "replica"),
			served, slotsOfCluster)
	case ModeSentinel:
		return fmt.Sprintf("%q: %s and %s, watched by %s", d.Name, plural(masters, "master"), plural(replicas, "replica"),
			plural(d.sentinelCount, "sentinel"))
	case ModeRing:
		return fmt.Sprintf("a ring of %s, which know nothing of one another", plural(len(d.Nodes), "server"))
	default:
		return "one server"
	}
}

func (d *Deployment) role(n *Node) string {
	switch {
	case slices.Contains(d.Sentinels, n):
		return "sentinel"
	case n.Master:
		return "master"
	case n.Of != "":
		return "replica of " + n.Of
	default:
		return "replica of " + net.JoinHostPort(n.info["master_host"], n.info["master_port"])
	}
}

// maxSlotRanges is the greatest number of slot ranges to print; after many moves a master can have
// thousands.
const maxSlotRanges = 3

func slotsText(slots []Slots) string {
	var parts []string
	for i, s := range slots {
		if i == maxSlotRanges {
			parts = append(parts, fmt.Sprintf("and %d more ranges", len(slots)-i))
			break
		}
		parts = append(parts, s.String())
	}
	return strings.Join(parts, ",")
}

// Node.down reports whether the other servers consider this one down.
func (n *Node) down() bool {
	return strings.Contains(n.flags, "fail") && !strings.Contains(n.flags, "fail?") || strings.Contains(n.flags, "o_down") ||
		strings.Contains(n.flags, "s_down")
}

func (n *Node) state() string {
	switch {
	case n.Err != nil && n.down():
		return "down"
	case n.Err != nil:
		return "no answer"
	case n.info["loading"] == "1":
		return "loading"
	case n.info["master_link_status"] == "down":
		return "link down"
	case n.down():
		return "called down by others"
	default:
		return "ok"
	}
}

// Node.keys returns the number of keys in all databases of the server.
func (n *Node) keys() string {
	if n.info == nil || n.info["redis_mode"] == "sentinel" {
		return ""
	}
	sum := 0
	for name, value := range n.info {
		if !strings.HasPrefix(name, "db") {
			continue
		}
		if rest, ok := strings.CutPrefix(value, "keys="); ok {
			number, _, _ := strings.Cut(rest, ",")
			keys, _ := strconv.Atoi(number)
			sum += keys
		}
	}
	return strconv.Itoa(sum)
}

func (n *Node) memory() string {
	used, most := n.number("used_memory"), n.number("maxmemory")
	switch {
	case n.info == nil || n.info["redis_mode"] == "sentinel":
		return ""
	case most == 0:
		return megabytes(used)
	default:
		return fmt.Sprintf("%s of %s", megabytes(used), megabytes(most))
	}
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Node.number returns a numeric field of INFO, or 0 if it is missing.
func (n *Node) number(name string) int64 {
	number, _ := strconv.ParseInt(n.info[name], 10, 64)
	return number
}

// Deployment.behind describes how far a replica is behind its master. If the operator named only
// one server, a master, behind describes how far each of its replicas is behind.
func (d *Deployment) behind(n *Node) string {
	if n.Master || n.info == nil || n.info["redis_mode"] == "sentinel" {
		if d.alone() {
			return n.replicasBehind()
		}
		return ""
	}
	if n.info["master_link_status"] != "up" {
		return n.cutOff()
	}
	for _, master := range d.Nodes {
		if master.Addr == n.Of && master.info != nil {
			bytes := max(0, master.number("master_repl_offset")-n.number("slave_repl_offset"))
			return fmt.Sprintf("%d bytes, %s s", bytes, n.info["master_last_io_seconds_ago"])
		}
	}
	return fmt.Sprintf("?, %s s", n.info["master_last_io_seconds_ago"])
}

// cutOff describes how long a replica has had no link to its master. For a replica that was never
// linked, Redis reports -1 or omits the field.
func (n *Node) cutOff() string {
	if seconds := n.info["master_link_down_since_seconds"]; seconds != "" && seconds != "-1" {
		return fmt.Sprintf("cut off for %s s", seconds)
	}
	return "not linked yet"
}

// replicasBehind describes how far the replicas of a server are behind.
func (n *Node) replicasBehind() string {
	var parts []string
	for _, known := range n.linked() {
		offset, _ := strconv.ParseInt(known["offset"], 10, 64)
		parts = append(parts, fmt.Sprintf("%s: %d bytes, %s s", net.JoinHostPort(known["ip"], known["port"]),
			max(0, n.number("master_repl_offset")-offset), known["lag"]))
	}
	return strings.Join(parts, "; ")
}

// Node.linked returns the fields that a server reports about each of its replicas.
func (n *Node) linked() (replicas []map[string]string) {
	for i := range n.number("connected_slaves") {
		known := map[string]string{}
		for pair := range strings.SplitSeq(n.info["slave"+strconv.FormatInt(i, 10)], ",") {
			name, value, _ := strings.Cut(pair, "=")
			known[name] = value
		}
		if known["ip"] != "" {
			replicas = append(replicas, known)
		}
	}
	return replicas
}

// Deployment.alone reports whether no other server, such as a sentinel, observes the servers.
func (d *Deployment) alone() bool { return d.Mode == ModeSingle || d.Mode == ModeRing }

// problemOf returns the problem of one server, or "".
func (d *Deployment) problemOf(n *Node) string {
	switch {
	case n.Err != nil && d.Mode == ModeCluster && n.down():
		return fmt.Sprintf("%v, or take it out of the cluster: %s", n.Err, d.answers().clusterCLI("del-node", d.answers().Addr, n.id))
	case n.Err != nil:
		return n.Err.Error()
	case n.info["loading"] == "1":
		return fmt.Sprintf("%s is loading its data and does not answer yet; wait %s s", n.Addr, n.info["loading_eta_seconds"])
	case d.Mode == ModeCluster && !n.Master && n.Of == "":
		return fmt.Sprintf("%s is a replica of a master whose address is lost: it came back without its nodes.conf, as another node. "+
			"With what the replica still has of the counters, let it take the slots: %s", n.Addr, n.cli("CLUSTER", "FAILOVER", "TAKEOVER"))
	case n.info["master_link_status"] == "down":
		return fmt.Sprintf("%s has no link to its master, %s; see its log, and whether it may ask the master: %s", n.Addr, n.cutOff(),
			n.cli("CONFIG", "GET", "masteruser"))
	case n.down():
		return fmt.Sprintf("%s answers, but the others report it as down; check whether they can reach it", n.Addr)
	}
	return ""
}

// Deployment.answers returns a server that answers. There is at least one such server: the one that
// was contacted first.
func (d *Deployment) answers() *Node {
	for _, n := range slices.Concat(d.Nodes, d.Sentinels) {
		if n.info != nil {
			return n
		}
	}
	return d.Nodes[0]
}

// Deployment.topologyProblems returns what is wrong with the topology of the servers.
func (d *Deployment) topologyProblems() (wrong []string) {
	switch d.Mode {
	case ModeCluster:
		if missing := d.unservedSlots(); len(missing) > 0 {
			wrong = append(wrong, fmt.Sprintf("no server has the slots %s: checks of their counters fail; start the servers that "+
				"had them, or give them to others: %s", slotsText(missing), d.answers().clusterCLI("fix", d.answers().Addr)))
		}
	case ModeRing:
		for _, n := range d.Nodes {
			if n.info["cluster_enabled"] == "1" {
				wrong = append(wrong, fmt.Sprintf("%s is a node of a cluster, and answers only what is in its slots; write --redis-mode cluster",
					n.Addr))
			}
			if !n.Master {
				wrong = append(wrong, fmt.Sprintf("%s is a replica, and takes no writes; name its primary, which is %s", n.Addr,
					net.JoinHostPort(n.info["master_host"], n.info["master_port"])))
			}
		}
	case ModeSentinel:
		if n := d.Nodes[0]; n.info != nil && n.info["role"] == "slave" {
			wrong = append(wrong, fmt.Sprintf("the sentinels say that %s is the master, and it is a replica: a failover is under way, or "+
				"did not end; see %s", n.Addr, d.Sentinels[0].cli("SENTINEL", "MASTER", d.Name)))
		}
		_, restricted := d.restricted()
		wrong = append(wrong, restricted...)
	}
	return wrong
}

// Deployment.unservedSlots returns the slots that are not served by a running master.
func (d *Deployment) unservedSlots() (missing []Slots) {
	var served [slotsOfCluster]bool
	for _, n := range d.Nodes {
		if n.down() || !n.Master {
			continue
		}
		for _, s := range n.Slots {
			for slot := max(0, s.First); slot <= min(s.Last, slotsOfCluster-1); slot++ {
				served[slot] = true
			}
		}
	}
	for slot, ok := range served {
		switch last := len(missing) - 1; {
		case ok:
		case last >= 0 && missing[last].Last == slot-1:
			missing[last].Last = slot
		default:
			missing = append(missing, Slots{slot, slot})
		}
	}
	return missing
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
