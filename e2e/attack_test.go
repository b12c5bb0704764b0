// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/storetest"
)

// allAttacks is what make attack sets.
var allAttacks = flag.Bool("attack", false, "run all attacks in all sizes on all fronts, and print what was seen")

// attack is one way to try to get past a limit. It is a row of docs/what-an-attacker-may-try.md.
type attack struct {
	name string
	// path is what the attacker asks, and limit how many of its requests the policy of the suite admits there.
	path  string
	limit int
	// run attacks. Every request that the upstream receives meanwhile is the attacker's, but for those of the neighbour.
	run func(a *assault)
	// fronts are those that it is tried on; nil is all of [limiters].
	fronts []string
	// long says that only make attack runs it.
	long bool
	// strict says that it is tried where the policy is strictPolicy.
	strict bool
	// loses says that the attacker may lose units of its own limit, by requests that were charged and never reached
	// the upstream. Without it exactly the limit is admitted in the end.
	loses bool
	// slack is how many more may be admitted, for a reason that the row states.
	slack int
	// crowd is how many requests or connections it has open at a time. A proxy with that much to do makes everybody
	// wait, with a limiter or without: the neighbour is held to [besideWithin] once the attack is over.
	crowd int
	// outage says that the row makes Redis fail: on_error decides about the neighbour meanwhile.
	outage bool
	// admits says which requests the upstream would serve as the limited resource; nil is all.
	admits func(r *http.Request) bool
	// plain is the request that uses up the rest of the limit; nil is a GET of the path.
	plain func(a *assault) int
}

// Bounds of what is asserted after each attack.
const (
	// besideWithin is how soon the neighbour is answered, by the median, while a row that is no crowd runs and after each
	// row. A single answer may take longer, for the machine is shared with the attacker and the upstream.
	besideWithin = 100 * time.Millisecond
	// besideSlowest is for each single answer, during a crowd too. It is only there to see what never ends.
	besideSlowest = 20 * time.Second
	// growthMost is by how much a process may grow in one row, at any time, and growthEach how much more for each that is in flight:
	// goroutines and buffers of a connection or a stream.
	growthMost = 128 << 10 // KB
	growthEach = 96        // KB
	// afterAsks is how often the neighbour asks after each row.
	afterAsks = 15
	// restWithin bounds the requests that use up what an attack has left of a limit.
	restWithin = 40
)

// assault is an attack while it runs.
type assault struct {
	*testing.T
	attack *attack
	front  *front
	from   string // the address of the attacker, on the loopback network
	host   string
	id     string // that nobody else has, for keys of other kinds than addresses
	number int
	random *rand.Rand
	sent   int
	said   []string // of what was seen, for the table
}

// site returns the address that is attacked.
func (a *assault) site() string {
	if a.attack.strict {
		return a.front.strict
	}
	return a.front.address
}

// note adds something to what the table says of the row.
func (a *assault) note(format string, args ...any) {
	a.said = append(a.said, fmt.Sprintf(format, args...))
}

// outcome is what was seen of an attack on a front.
type outcome struct {
	attack         *attack
	front          string
	sent           int
	admitted       int // of the attack itself
	total          int // with the requests that used up the rest
	denied         bool
	beside, after  calm
	growthKB       map[string]int // by process, at the most
	ended          []string       // processes
	took           time.Duration
	said           []string
	targets        string // of the requests that were counted
	panicked       bool
	exhaustedAfter int // how many plain requests were sent
	broken         int // promises
}

// TestAttacks attacks every front, a row at a time. Whatever a row does, the upstream sees no more of its requests than the
// limit, the attacker is denied afterwards, a neighbour is served and counted, no process ends and none grows beyond a bound.
func TestAttacks(t *testing.T) {
	seed := storetest.Seed(t)
	up := startCountingUpstream(t)
	fronts := startFronts(t, up)
	var table []outcome
	for _, f := range fronts {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			for i := range attacks {
				row := &attacks[i]
				if !row.on(f) {
					continue
				}
				t.Run(strings.ReplaceAll(row.name, " ", "-"), func(t *testing.T) {
					o := row.try(t, f, up, seed)
					o.holds(t)
					table = append(table, o)
				})
			}
		})
	}
	if *allAttacks {
		t.Log("\n" + attackTable(table))
	}
}

// on reports whether the row is tried on a front in this run.
func (row *attack) on(f *front) bool {
	if row.long && !*allAttacks || row.strict && f.strict == "" {
		return false
	}
	if f.bare {
		return *allAttacks && row.crowd > 0 && row.fronts == nil
	}
	if row.fronts == nil {
		return slices.Contains(limiters, f.name)
	}
	return slices.Contains(row.fronts, f.name)
}

// try runs the row with a fresh attacker and a fresh neighbour.
func (row *attack) try(t *testing.T, f *front, up *countingUpstream, seed uint64) outcome {
	attackers++
	a := &assault{T: t, attack: row, front: f, from: loopback(2*attackers + 1), host: "attacked.example",
		id: fmt.Sprint("id-", attackers), number: attackers,
		random: rand.New(rand.NewPCG(seed, uint64(attackers)))}
	by := newNeighbour(t, f, loopback(2*attackers+2))
	up.begin(row.admits)
	before, begun := f.resident(), time.Now()
	logged, memory := f.logged(), f.guard()
	defer memory.stop()
	by.start()
	row.run(a)
	await.Until(t, patience, "the upstream has no request left", up.idle)
	o := outcome{attack: row, front: f.name, sent: a.sent, took: time.Since(begun), admitted: up.admitted()}
	o.beside = by.stop()
	if !f.bare {
		a.exhaust(&o)
	}
	o.total, o.targets = up.admitted(), up.seen()
	o.after = by.asks(afterAsks)
	o.growthKB = growth(before, memory.stop())
	o.ended, o.panicked = f.ended(), strings.Contains(f.logged()[len(logged):], "panic:")
	o.said = a.said
	return o
}

// attackers is how many rows were tried. Each attacker and each neighbour has an address of its own, so that rows share
// processes and no counters.
var attackers int

// loopback returns the n-th address of 127.0.0.0/8 that only this suite connects from.
func loopback(n int) string { return fmt.Sprintf("127.77.%d.%d", n/250, n%250+1) }

// exhaust asks plainly until the attacker is denied several times in a row.
func (a *assault) exhaust(o *outcome) {
	const inARow = 5
	ask := a.attack.plain
	if ask == nil {
		ask = (*assault).plain
	}
	for denied := 0; o.exhaustedAfter < restWithin+a.attack.limit && !o.denied; o.exhaustedAfter++ {
		switch status := ask(a); status {
		case http.StatusTooManyRequests, http.StatusForbidden, http.StatusUnauthorized:
			denied++
		default:
			denied = 0
		}
		o.denied = denied == inARow
	}
}

// plain sends one ordinary request of the attacker's and returns its status.
func (a *assault) plain() int {
	status, _ := a.exchange("GET " + a.attack.path + " HTTP/1.1\r\nHost: " + a.host + "\r\nConnection: close\r\n\r\n")
	return status
}

// holds asserts what must be true after any attack.
func (o *outcome) holds(t *testing.T) {
	t.Helper()
	t.Log(o.text())
	report := func(format string, args ...any) {
		t.Helper()
		o.broken++
		if isOpen(o.attack.name, o.front) {
			t.Logf("OPEN: "+format, args...)
		} else {
			t.Errorf(format, args...)
		}
	}
	if len(o.ended) > 0 || o.panicked {
		o.broken++
		t.Errorf("ended: %v; a panic in the log: %v", o.ended, o.panicked)
	}
	if strings.HasPrefix(o.front, "bare") {
		return
	}
	most := o.attack.limit + o.attack.slack
	if o.total > most {
		report("%d of %d requests reached the upstream, and at most %d may; the first were %s", o.total, o.sent, most, o.targets[:min(len(o.targets), 400)])
	}
	if o.total < o.attack.limit && !o.attack.loses {
		report("only %d requests reached the upstream, of %d that the limit admits", o.total, o.attack.limit)
	}
	if !o.denied {
		report("the attacker is not denied after %d requests more", o.exhaustedAfter)
	}
	if o.attack.outage {
		o.beside.uncounted = 0
	}
	o.beside.holds(report, "during the attack", o.attack.crowd == 0 && !o.attack.outage)
	o.after.holds(report, "after the attack", true)
	for name, kb := range o.growthKB {
		if most := growthMost + growthEach*o.attack.crowd; kb > most {
			report("%s has grown by %d KB, and may by %d", name, kb, most)
		}
	}
}

// text is a line about what was seen.
func (o *outcome) text() string {
	var grown []string
	for name, kb := range o.growthKB {
		grown = append(grown, fmt.Sprintf("%s %+d MB", name, kb>>10))
	}
	slices.Sort(grown)
	return fmt.Sprintf("sent %d, admitted %d (%d in all) of %d; beside: %v; after: %v; %s; %v; %s", o.sent, o.admitted, o.total,
		o.attack.limit, o.beside, o.after, strings.Join(grown, ", "), o.took.Round(time.Millisecond), strings.Join(o.said, "; "))
}

// attackTable is what make attack prints.
func attackTable(table []outcome) string {
	var text strings.Builder
	text.WriteString("| attack | front | sent | admitted of limit | neighbour p50 / max during (asked; denied, uncounted, failed) | p50 after | growth | |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	for i := range table {
		o := &table[i]
		worst := 0
		for _, kb := range o.growthKB {
			worst = max(worst, kb)
		}
		state := "held"
		switch {
		case strings.HasPrefix(o.front, "bare"):
			state = "no limiter"
		case o.broken > 0:
			state = "NOT HELD"
		case isOpen(o.attack.name, o.front):
			state = "held this time"
		}
		_, _ = fmt.Fprintf(&text, "| %s | %s | %d | %d of %d | %v | %v | %d MB | %s %s |\n", o.attack.name, o.front, o.sent, o.total,
			o.attack.limit, o.beside, o.after.median().Round(time.Millisecond/10), worst>>10, state, strings.Join(o.said, "; "))
	}
	return text.String()
}

// discard reads a body to its end and closes it.
func discard(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, body)
	_ = body.Close()
}
