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

// move is slots on their way from one master to another. Each of the two says so for itself, and who stopped halfway may have left
// it at one of them.
type move struct {
	from, to       string // ids
	giving, taking bool   // the one says migrating, the other importing
	slots          []Slots
}

// single reports whether it is of one slot.
func (m *move) single() bool { return len(m.slots) == 1 && m.slots[0].First == m.slots[0].Last }

// step is one slot of a move.
type step struct {
	slot     int
	from, to string
}

// stepsIn reads of CLUSTER NODES what the server that answers says of itself: [SLOT->-ID] goes to another, [SLOT-<-ID] comes from
// one. Of the others it says nothing.
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

// findMoves asks each master which of its slots are on their way. One that does not answer, or whose user may not ask, says none.
func (d *Deployment) findMoves(ctx context.Context) {
	var asking sync.WaitGroup
	answers := make([]string, len(d.Nodes))
	for i, n := range d.Nodes {
		if n.Master && n.info != nil {
			asking.Go(func() { answers[i], _ = n.said(ctx, "cluster", "nodes").Text() })
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

// movesOf puts together what goes the same way.
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

// named returns a node by its id, nil if none that is known has it, and what it is called.
func (d *Deployment) named(id string) (*Node, string) {
	for _, n := range d.Nodes {
		if n.id == id {
			return n, n.Addr
		}
	}
	return nil, fmt.Sprintf("the node %q, which is not there", id)
}

// moveText says what a move does to requests, and how it ends if nobody is at it.
func (d *Deployment) moveText(m *move) string {
	_, from := d.named(m.from)
	_, to := d.named(m.to)
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
		effect = "what has gone there already is not counted"
	}
	slots := "slots " + slotsText(m.slots) + " are"
	if m.single() {
		slots = "slot " + slotsText(m.slots) + " is"
	}
	return fmt.Sprintf("%s %s: %s. If nobody is at it now, it was broken off: %s puts the keys together; %s leaves what is served "+
		"where it is, and forgets what is at the other", slots, which, effect, d.fixMoves(), d.stableCLI(m))
}

// fixMoves returns the command that ends all moves.
func (d *Deployment) fixMoves() string { return d.answers().clusterCLI("fix", d.answers().Addr) }

// stableCLI returns the commands by which both forget about the first slot of a move; there is one for each slot.
func (d *Deployment) stableCLI(m *move) string {
	var commands []string
	for _, id := range []string{m.from, m.to} {
		if n, _ := d.named(id); n != nil {
			commands = append(commands, n.cli("CLUSTER", "SETSLOT", strconv.Itoa(m.slots[0].First), "STABLE"))
		}
	}
	text := strings.Join(commands, " and ")
	if !m.single() {
		text += " (and so on, for each slot)"
	}
	return text
}

// moving returns the move that a slot is part of, nil if it is of none.
func (d *Deployment) moving(slot int) *move {
	for i := range d.moves {
		if slices.ContainsFunc(d.moves[i].slots, func(s Slots) bool { return s.First <= slot && slot <= s.Last }) {
			return &d.moves[i]
		}
	}
	return nil
}
