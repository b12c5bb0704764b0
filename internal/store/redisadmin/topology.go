// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// slotsOfCluster is the number of slots of a cluster.
const slotsOfCluster = 16_384

// Slots is the range of slots from First to Last.
type Slots struct{ First, Last int }

// String formats the range as Redis does: 0-5460, or 7.
func (s Slots) String() string {
	if s.First == s.Last {
		return strconv.Itoa(s.First)
	}
	return fmt.Sprintf("%d-%d", s.First, s.Last)
}

// Masters returns the servers that together hold all counters, each server once. The error says
// that one of them does not answer, or that the slots of a cluster move or are not all served.
func (d *Deployment) Masters() (masters []*Node, err error) {
	slots := 0
	for _, n := range d.Nodes {
		if !n.Master && d.Mode != ModeSingle && d.Mode != ModeRing {
			continue
		}
		for _, s := range n.Slots {
			slots += s.Last - s.First + 1
		}
		if n.Err != nil && (d.Mode != ModeCluster || len(n.Slots) > 0) {
			return nil, n.Err
		}
		if d.Mode != ModeCluster || len(n.Slots) > 0 {
			masters = append(masters, n)
		}
	}
	switch {
	case len(masters) == 0:
		return nil, errors.New("no master answers; see penstock redis health")
	case len(d.moves) > 0:
		return nil, errors.New(d.moveText(&d.moves[0]))
	case d.Mode == ModeCluster && slots != slotsOfCluster:
		return nil, fmt.Errorf("the cluster serves %d of %d slots; see penstock redis health", slots, slotsOfCluster)
	}
	return masters, nil
}

// findCluster discovers the nodes of a cluster from one of them.
func (d *Deployment) findCluster(ctx context.Context, first *Node) error {
	text, err := first.send(ctx, "cluster", "nodes").Text()
	if redis.IsPermissionError(err) {
		return d.findBySlots(ctx, first)
	}
	if err != nil {
		d.Nodes = []*Node{first}
		return first.explain(err)
	}
	byID, masterIDs := map[string]*Node{}, map[*Node]string{}
	used := false
	for line := range strings.Lines(text) {
		words := strings.Fields(line) // each line is: id address flags master ping pong epoch link slots…
		if len(words) < 8 || strings.Contains(words[2], "noaddr") || strings.Contains(words[2], "handshake") {
			continue
		}
		var n *Node
		if strings.Contains(words[2], "myself") {
			n, used = first, true // its address might differ when seen from this process
		} else {
			n = d.newNode(d.at(parseAnnounced(words[1], first.Addr), d.base))
		}
		n.id, n.flags, n.Master = words[0], words[2], strings.Contains(words[2], "master")
		n.Slots = slotsIn(words[8:])
		byID[n.id], masterIDs[n] = n, words[3]
		d.Nodes = append(d.Nodes, n)
	}
	if !used {
		_ = first.close()
		return fmt.Errorf("%s says nothing of itself in CLUSTER NODES: %.100q", first.Addr, text)
	}
	for n, id := range masterIDs {
		if master := byID[id]; master != nil {
			n.Of = master.Addr
		}
	}
	d.sort()
	askAll(ctx, d.Nodes)
	d.findMoves(ctx)
	return nil
}

// findBySlots discovers a cluster by CLUSTER SLOTS, which needs no rights beyond those of the
// store. It does not list nodes that are down.
func (d *Deployment) findBySlots(ctx context.Context, first *Node) error {
	ranges, err := first.send(ctx, "cluster", "slots").Slice()
	if err != nil {
		d.Nodes = []*Node{first}
		return first.explain(err)
	}
	known := map[string]*Node{}
	for _, entry := range ranges {
		words, _ := entry.([]any) // each entry is: first last master replica…, where each server is: host port id
		if len(words) < 3 {
			return fmt.Errorf("%s answers CLUSTER SLOTS with %.100q", first.Addr, fmt.Sprint(ranges))
		}
		from, _ := words[0].(int64)
		to, _ := words[1].(int64)
		of := ""
		for i, one := range words[2:] {
			id, addr, ok := d.memberAt(one, first.Addr)
			if !ok {
				continue
			}
			n := known[id]
			if n == nil {
				n = d.newNode(d.at(addr, d.base))
				n.id, n.Master, n.Of = id, i == 0, of
				known[id], d.Nodes = n, append(d.Nodes, n)
			}
			if i == 0 {
				n.Slots, of = append(n.Slots, Slots{int(from), int(to)}), n.Addr
			}
		}
	}
	if len(d.Nodes) == 0 { // no node has slots, so only the answering node is known
		first.Master = first.info["role"] != "slave"
		d.Nodes = []*Node{first}
		return nil
	}
	_ = first.close() // the user has no right to query which of the nodes answered
	d.sort()
	askAll(ctx, d.Nodes)
	return nil
}

// memberAt parses a node in the reply to CLUSTER SLOTS. A node without a host is the server that
// replied. A node with port 0 is not reachable: its address is lost (noaddr), and its slots are not
// served.
func (d *Deployment) memberAt(entry any, asked string) (id, addr string, ok bool) {
	words, _ := entry.([]any)
	if len(words) < 3 {
		return "", asked, true
	}
	if port, isPort := words[1].(int64); isPort && port == 0 {
		return "", "", false
	}
	host, _ := words[0].(string)
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return fmt.Sprint(words[2]), net.JoinHostPort(host, fmt.Sprint(words[1])), true
}

// parseAnnounced returns the host:port of a text in the format HOST:PORT@BUS,NAME. IPv6 addresses
// have no brackets in that format. A node without a host is the server that replied.
func parseAnnounced(text, asked string) string {
	text, _, _ = strings.Cut(text, "@")
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return text
	}
	host := text[:at]
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, text[at+1:])
}

// slotsIn parses ranges of slots. slotsIn skips [SLOT->-NODE], a moving slot, because that slot is
// also in a range while this server still serves it.
func slotsIn(words []string) (all []Slots) {
	for _, word := range words {
		from, to, two := strings.Cut(word, "-")
		if !two {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err == nil && err2 == nil {
			all = append(all, Slots{first, last})
		}
	}
	return all
}

// Deployment.sort orders masters by their first slot, masters without slots last, and puts replicas
// after their master.
func (d *Deployment) sort() {
	first := map[string]int{}
	for _, n := range d.Nodes {
		if n.Master {
			first[n.Addr] = slotsOfCluster
			if len(n.Slots) > 0 {
				first[n.Addr] = n.Slots[0].First
			}
		}
	}
	group := func(n *Node) (int, string) {
		of := n.Of
		if n.Master {
			of = n.Addr
		}
		return first[of], of
	}
	slices.SortStableFunc(d.Nodes, func(a, b *Node) int {
		slotA, ofA := group(a)
		slotB, ofB := group(b)
		masterFirst := func(n *Node) int {
			if n.Master {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(slotA, slotB), cmp.Compare(ofA, ofB), cmp.Compare(masterFirst(a), masterFirst(b)), cmp.Compare(a.Addr, b.Addr))
	})
}
