// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// move is a set of slots that move from one master to another. Each of the two masters reports its
// own side. An aborted move can remain on only one of them.
type move struct {
	from, to string // ids
	// giving: whether the source reports the move; taking: whether the target reports the move
	giving, taking bool
	slots          []Slots
}

// move.single reports whether the move has exactly one slot.
func (m *move) single() bool { return len(m.slots) == 1 && m.slots[0].First == m.slots[0].Last }

// step is the part of a move that concerns one slot.
type step struct {
	slot     int
	from, to string
}

// stepsIn parses the moves that the answering server reports about itself in CLUSTER NODES:
// [SLOT->-ID] moves to another server, [SLOT-<-ID] comes from one. The reply does not contain the
// moves of other servers.
func stepsIn(text string) (giving, taking []step) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 8 || !slices.Contains(strings.Split(words[2], ","), "myself") {
			continue
		}
		for _, word := range words[8:] {
			inner, ok := strings.CutPrefix(word, "[")
			inner, ok2 := strings.CutSuffix(inner, "]")
			if !ok || !ok2 {
				continue
			}
			number, to, gives := strings.Cut(inner, "->-")
			if gives {
				if slot, err := strconv.Atoi(number); err == nil {
					giving = append(giving, step{slot, words[0], to})
				}
				continue
			}
			number, from, takes := strings.Cut(inner, "-<-")
			if slot, err := strconv.Atoi(number); err == nil && takes {
				taking = append(taking, step{slot, from, words[0]})
			}
		}
	}
	return giving, taking
}

// findMoves queries each master for its moving slots. A master that does not answer, or whose user
// lacks the right, counts as having no moving slots.
func (d *Deployment) findMoves(ctx context.Context) {
	var asking sync.WaitGroup
	answers := make([]string, len(d.Nodes))
	for i, n := range d.Nodes {
		if n.Master && n.info != nil {
			asking.Go(func() { answers[i], _ = n.send(ctx, "cluster", "nodes").Text() })
		}
	}
	asking.Wait()
	giving, taking := map[step]bool{}, map[step]bool{}
	for _, text := range answers {
		gives, takes := stepsIn(text)
		for _, s := range gives {
			giving[s] = true
		}
		for _, s := range takes {
			taking[s] = true
		}
	}
	d.moves = movesOf(giving, taking)
}

// movesOf groups steps with the same source, target and state.
func movesOf(giving, taking map[step]bool) (moves []move) {
	all := maps.Clone(giving)
	maps.Copy(all, taking)
	steps := slices.SortedFunc(maps.Keys(all), func(a, b step) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	for _, s := range steps {
		at := slices.IndexFunc(moves, func(m move) bool {
			return m.from == s.from && m.to == s.to && m.giving == giving[s] && m.taking == taking[s]
		})
		if at < 0 {
			at = len(moves)
			moves = append(moves, move{from: s.from, to: s.to, giving: giving[s], taking: taking[s]})
		}
		m := &moves[at]
		if last := len(m.slots) - 1; last >= 0 && m.slots[last].Last == s.slot-1 {
			m.slots[last].Last = s.slot
		} else {
			m.slots = append(m.slots, Slots{s.slot, s.slot})
		}
	}
	return moves
}

// Deployment.nodeByID returns the node with an id, or nil if it is unknown, and its name for
// messages.
func (d *Deployment) nodeByID(id string) (*Node, string) {
	for _, n := range d.Nodes {
		if n.id == id {
			return n, n.Addr
		}
	}
	return nil, fmt.Sprintf("the unknown node %q", id)
}

// moveText describes the effect of a move on requests, and how to end it if it was aborted.
func (d *Deployment) moveText(m *move) string {
	_, from := d.nodeByID(m.from)
	_, to := d.nodeByID(m.to)
	which, effect := "", ""
	switch {
	case m.giving && m.taking:
		which = fmt.Sprintf("moving from %s to %s", from, to)
		effect = "a check with two keys (a sliding log, a penalty) that are not both at the first has no answer until that ends, and on_error decides"
	case m.giving:
		which = fmt.Sprintf("migrating from %s to %s, which does not import them", from, to)
		effect = "a counter that is not at the first yet has no answer, and on_error decides"
	default:
		which = fmt.Sprintf("importing from %s to %s, and the first does not migrate them", from, to)
		effect = "units counted at the second are ignored"
	}
	slots := "slots " + slotsText(m.slots) + " are"
	if m.single() {
		slots = "slot " + slotsText(m.slots) + " is"
	}
	return fmt.Sprintf("%s %s: %s. If no tool is moving them now, the move was aborted: %s completes it; %s keeps what is served "+
		"where it is, and forgets what is at the other", slots, which, effect, d.fixMoves(), d.stableCLI(m))
}

// fixMoves returns the command that ends all moves.
func (d *Deployment) fixMoves() string { return d.answers().clusterCLI("fix", d.answers().Addr) }

// stableCLI returns the commands that make both servers forget the first slot of a move. Each slot
// needs its own command.
func (d *Deployment) stableCLI(m *move) string {
	var commands []string
	for _, id := range []string{m.from, m.to} {
		if n, _ := d.nodeByID(id); n != nil {
			commands = append(commands, n.cli("CLUSTER", "SETSLOT", strconv.Itoa(m.slots[0].First), "STABLE"))
		}
	}
	text := strings.Join(commands, " and ")
	if !m.single() {
		text += " (and so on, for each slot)"
	}
	return text
}

// Deployment.moving returns the move that contains a slot, or nil.
func (d *Deployment) moving(slot int) *move {
	for i := range d.moves {
		if slices.ContainsFunc(d.moves[i].slots, func(s Slots) bool { return s.First <= slot && slot <= s.Last }) {
			return &d.moves[i]
		}
	}
	return nil
}
