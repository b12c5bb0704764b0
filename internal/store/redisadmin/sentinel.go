// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// This file inspects sentinels. Their user needs only SENTINEL MASTER, as for the store. If that
// user may not list the other servers, Penstock uses the named servers and the master's own INFO.
// The output then states what is unknown.

// findBySentinel discovers a master, its replicas and the other sentinels from one sentinel.
func (d *Deployment) findBySentinel(ctx context.Context, first *Node) error {
	first.sentinel = true
	d.Sentinels = []*Node{first}
	master, err := d.masterFields(ctx, first)
	if err != nil {
		return err
	}
	d.Name = master["name"]
	others, _ := strconv.Atoi(master["num-other-sentinels"])
	d.sentinelCount = 1 + others
	d.replicas, _ = strconv.Atoi(master["num-slaves"])
	addr := net.JoinHostPort(master["ip"], master["port"])
	node := d.newNode(d.at(addr, d.base))
	node.Master, node.flags = true, master["flags"]
	d.Nodes = []*Node{node}
	if err := d.findReplicas(ctx, first, node); err != nil {
		return err
	}
	if err := d.findSentinels(ctx, first); err != nil {
		return err
	}
	askAll(ctx, slices.Concat(d.Nodes, d.Sentinels))
	return nil
}

// masterFields returns the fields that a sentinel reports about the master.
func (d *Deployment) masterFields(ctx context.Context, first *Node) (map[string]string, error) {
	masters, err := records(first.send(ctx, "sentinel", "masters").Slice())
	switch {
	case redis.IsPermissionError(err) && d.options.Master != "":
		one, err := first.send(ctx, "sentinel", "master", d.options.Master).Slice()
		if redis.HasErrorPrefix(err, "No such master") {
			return nil, fmt.Errorf("the sentinel %s watches no master %q; see which it does: %s", first.Addr, d.options.Master,
				first.cli("SENTINEL", "MASTERS"))
		}
		if masters, err = records([]any{one}, err); err != nil {
			return nil, first.explain(err)
		}
		return masters[0], nil
	case redis.IsPermissionError(err):
		return nil, fmt.Errorf("%w; or say which master by --redis-master NAME", first.explain(err))
	case err != nil:
		return nil, first.explain(err)
	}
	return d.chooseMaster(first, masters)
}

// findReplicas discovers a master's replicas from the sentinel, or from the master if the user has
// no right to query the sentinel. The master does not list replicas that are disconnected.
func (d *Deployment) findReplicas(ctx context.Context, first, master *Node) error {
	replicas, err := records(first.send(ctx, "sentinel", "replicas", d.Name).Slice())
	if redis.IsPermissionError(err) {
		askAll(ctx, []*Node{master})
		replicas, err = master.linked(), nil
	}
	if err != nil {
		return first.explain(err)
	}
	for _, r := range replicas {
		replica := d.newNode(d.at(net.JoinHostPort(r["ip"], r["port"]), d.base))
		replica.Of, replica.flags = master.Addr, r["flags"]
		d.Nodes = append(d.Nodes, replica)
	}
	return nil
}

// findSentinels discovers the other sentinels from one of them. If the user has no right to query
// it, findSentinels uses the named sentinels.
func (d *Deployment) findSentinels(ctx context.Context, first *Node) error {
	others, err := records(first.send(ctx, "sentinel", "sentinels", d.Name).Slice())
	var found []*redisstore.ToolServer
	switch {
	case redis.IsPermissionError(err):
		for _, o := range d.given {
			if o.Addr != first.Addr {
				found = append(found, o)
			}
		}
	case err != nil:
		return first.explain(err)
	}
	for _, s := range others {
		found = append(found, d.at(net.JoinHostPort(s["ip"], s["port"]), first.server))
	}
	for i, o := range found {
		other := d.newNode(o)
		other.sentinel = true
		if i < len(others) {
			other.flags = others[i]["flags"]
		}
		d.Sentinels = append(d.Sentinels, other)
	}
	d.sentinelCount = max(d.sentinelCount, len(d.Sentinels))
	return nil
}

// Deployment.restricted returns notes about the data that the sentinels' user may not read, and the
// problems that appear although these data are missing.
func (d *Deployment) restricted() (notes, wrong []string) {
	if d.Mode != ModeSentinel {
		return nil, nil
	}
	first, master := d.Sentinels[0], d.Nodes[0]
	right := func(word string) string { return first.cli("ACL", "SETUSER", first.user(), word) }
	known := len(d.Nodes) - 1
	switch {
	case known >= d.replicas:
	case master.info == nil:
		notes = append(notes, fmt.Sprintf("the sentinel %s knows of %s, and does not tell the user %q which, and the master cannot be asked; "+
			"let it: %s", first.Addr, plural(d.replicas, "replica"), first.user(), right("+sentinel|replicas")))
	default:
		wrong = append(wrong, fmt.Sprintf("the sentinel %s knows of %s, and %d follow the master: the others are down or cut off; it does not "+
			"tell the user %q which; let it: %s", first.Addr, plural(d.replicas, "replica"), known, first.user(), right("+sentinel|replicas")))
	}
	if len(d.Sentinels) < d.sentinelCount {
		notes = append(notes, fmt.Sprintf("the sentinel %s knows of %d others, and does not tell the user %q which: those that were not named were "+
			"not looked at; name all by --redis-addrs, or let it: %s", first.Addr, d.sentinelCount-1, first.user(), right("+sentinel|sentinels")))
	}
	return notes, wrong
}

// examineSentinels examines whether the sentinels could agree on a new master.
func (d *Deployment) examineSentinels(ctx context.Context, say func(level Level, subject, text string, do ...string)) {
	for _, s := range d.Sentinels {
		switch err := s.send(ctx, "sentinel", "ckquorum", d.Name).Err(); {
		case s.Err != nil:
			say(LevelWrong, "sentinel", s.Err.Error())
		case redis.IsPermissionError(err):
			say(LevelNote, "sentinel", fmt.Sprintf("whether enough sentinels would agree on another master, %s does not tell the user %q; let it",
				s.Addr, s.user()), s.cli("ACL", "SETUSER", s.user(), "+sentinel|ckquorum"))
		case err != nil:
			say(LevelWrong, "sentinel", s.Addr+" reports that no server could replace the master: "+err.Error(), s.cli("SENTINEL", "MASTER", d.Name))
		}
	}
	if d.sentinelCount < 3 {
		say(LevelWrong, "sentinel", plural(d.sentinelCount, "sentinel")+" cannot outvote one that is cut off: have three, on three machines",
			"redis-server sentinel.conf --sentinel")
	}
	notes, _ := d.restricted() // topologyProblems reports the problem
	for _, note := range notes {
		say(LevelNote, "sentinel", note)
	}
}

func (d *Deployment) chooseMaster(first *Node, masters []map[string]string) (map[string]string, error) {
	var names []string
	for _, m := range masters {
		if m["name"] == d.options.Master {
			return m, nil
		}
		names = append(names, m["name"])
	}
	switch {
	case len(masters) == 0:
		return nil, fmt.Errorf("the sentinel %s watches no master; let it: %s", first.Addr,
			first.cli("SENTINEL", "MONITOR", "NAME", "HOST", "PORT", "2"))
	case d.options.Master != "":
		return nil, fmt.Errorf("the sentinel %s watches no master %q; there are: %q", first.Addr, d.options.Master, names)
	case len(masters) > 1:
		return nil, fmt.Errorf("the sentinel %s watches %d masters; say which by --master: %q", first.Addr, len(masters), names)
	}
	return masters[0], nil
}

// records parses a reply that is a list of lists of names and values.
func records(reply []any, err error) (all []map[string]string, _ error) {
	if err != nil {
		return nil, err
	}
	for _, one := range reply {
		pairs, ok := one.([]any)
		if !ok {
			return nil, errors.New("the reply is no list of names and values")
		}
		known := map[string]string{}
		for i := 0; i+1 < len(pairs); i += 2 {
			known[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
		}
		all = append(all, known)
	}
	return all, nil
}
