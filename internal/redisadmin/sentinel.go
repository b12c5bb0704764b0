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
)

// This file is about sentinels. Their user needs no more than the store does, which is SENTINEL MASTER: what they do not tell is
// made up for by what was named and by what the master says, and it is said what that leaves open.

// findBySentinel asks a sentinel for a master, its replicas and the other sentinels.
func (d *Deployment) findBySentinel(ctx context.Context, first *Node) error {
	first.sentinel = true
	d.Sentinels = []*Node{first}
	master, err := d.watched(ctx, first)
	if err != nil {
		return err
	}
	d.Name = master["name"]
	others, _ := strconv.Atoi(master["num-other-sentinels"])
	d.watchers = 1 + others
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

// watched returns what a sentinel says of the master.
func (d *Deployment) watched(ctx context.Context, first *Node) (map[string]string, error) {
	masters, err := records(first.said(ctx, "sentinel", "masters").Slice())
	switch {
	case redis.IsPermissionError(err) && d.options.Master != "":
		one, err := first.said(ctx, "sentinel", "master", d.options.Master).Slice()
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

// findReplicas finds a master's replicas by the sentinel, or, where it may not be asked for them, by the master. That one does
// not tell of those that are gone.
func (d *Deployment) findReplicas(ctx context.Context, first, master *Node) error {
	replicas, err := records(first.said(ctx, "sentinel", "replicas", d.Name).Slice())
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

// findSentinels finds the others by one of them, or takes those that were named where it may not be asked.
func (d *Deployment) findSentinels(ctx context.Context, first *Node) error {
	others, err := records(first.said(ctx, "sentinel", "sentinels", d.Name).Slice())
	var found []*redis.Options
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
		found = append(found, d.at(net.JoinHostPort(s["ip"], s["port"]), first.options))
	}
	for i, o := range found {
		other := d.newNode(o)
		other.sentinel = true
		if i < len(others) {
			other.flags = others[i]["flags"]
		}
		d.Sentinels = append(d.Sentinels, other)
	}
	d.watchers = max(d.watchers, len(d.Sentinels))
	return nil
}

// untold says what the sentinels know and do not tell their user, and what is wrong by what they do tell.
func (d *Deployment) untold() (notes, wrong []string) {
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
	if len(d.Sentinels) < d.watchers {
		notes = append(notes, fmt.Sprintf("the sentinel %s knows of %d others, and does not tell the user %q which: those that were not named were "+
			"not looked at; name all by --redis-addrs, or let it: %s", first.Addr, d.watchers-1, first.user(), right("+sentinel|sentinels")))
	}
	return notes, wrong
}

// examineSentinels looks at whether the sentinels would agree on another master.
func (d *Deployment) examineSentinels(ctx context.Context, say func(level Level, subject, text string, do ...string)) {
	for _, s := range d.Sentinels {
		switch err := s.said(ctx, "sentinel", "ckquorum", d.Name).Err(); {
		case s.Err != nil:
			say(LevelWrong, "sentinel", s.Err.Error())
		case redis.IsPermissionError(err):
			say(LevelNote, "sentinel", fmt.Sprintf("whether enough sentinels would agree on another master, %s does not tell the user %q; let it",
				s.Addr, s.user()), s.cli("ACL", "SETUSER", s.user(), "+sentinel|ckquorum"))
		case err != nil:
			say(LevelWrong, "sentinel", s.Addr+" says that nobody would take the master's place: "+err.Error(), s.cli("SENTINEL", "MASTER", d.Name))
		}
	}
	if d.watchers < 3 {
		say(LevelWrong, "sentinel", plural(d.watchers, "sentinel")+" cannot outvote one that is cut off: have three, on three machines",
			"redis-server sentinel.conf --sentinel")
	}
	notes, _ := d.untold() // what is wrong is told with what is together
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

// records reads a reply that is a list of lists of names and values.
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
