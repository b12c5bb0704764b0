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

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/seed"
)

// allAttacks is set by "make attack".
var allAttacks = flag.Bool("attack", false, "run all attacks in all sizes on all fronts, and print what was seen")

// attack is one way to try to exceed a limit. Comments also call it a row, because it is a row of
// the tables in docs/explanation/what-an-attacker-may-try.md.
type attack struct {
	name string
	// path is the path that the attacker requests, and limit is the number of requests to it that
	// the policy admits.
	path  string
	limit int
	// run performs the attack. All requests that the upstream receives during the attack count as
	// the attacker's, except for those of the other client.
	run func(a *attackRun)
	// fronts lists the fronts to attack; nil means [limiters].
	fronts []string
	// long is set if "make test" leaves this attack out and only "make attack" runs it.
	long bool
	// strict is set if the attacked site has strictPolicy.
	strict bool
	// loses is set if the attacker may lose units of its own limit, because some requests are
	// charged but never reach the upstream. Otherwise exactly as many requests as the limit are
	// admitted in the end.
	loses bool
	// slack is the number of requests that may be admitted beyond the limit. A comment at the
	// attack says why.
	slack int
	// inFlight is how many requests or connections the attack has open at a time. If it is not
	// zero, [medianWaitMax] bounds the other client's waits only after the attack, because a proxy
	// that is so busy delays every client, even without a limiter.
	inFlight int
	// outage is set if the attack makes Redis fail, so that on_error decides the other client's
	// requests meanwhile.
	outage bool
	// admits reports whether a request that the upstream received counts against the limit. If it
	// is nil, every request counts.
	admits func(r *http.Request) bool
	// plain sends one ordinary request, to use up the rest of the limit. If it is nil, a GET of
	// path is sent.
	plain func(a *attackRun) int
}

// Bounds that are asserted after each attack.
const (
	// medianWaitMax bounds the other client's median wait after each attack, and during attacks
	// whose inFlight is zero. A single answer may take longer, because the attacker and the
	// upstream share the machine.
	medianWaitMax = 100 * time.Millisecond
	// waitMax bounds every single answer, even during large bursts. It serves to detect requests
	// that hang.
	waitMax = 20 * time.Second
	// growthMax bounds the memory growth of a process during one attack. The bound is greater by
	// growthPerRequest for each request in flight, because each of these has goroutines and the
	// buffers of a connection or a stream.
	growthMax        = 128 << 10 // KB
	growthPerRequest = 96        // KB
	// requestsAfter is the number of requests that the other client sends after each attack.
	requestsAfter = 15
	// slowDeniedMax is how many requests of the other client may get 503 during an outage. A Redis
	// that still answers PINGs counts as slow, and not as away, until it has answered no batch for
	// several seconds.
	slowDeniedMax = 2
	// exhaustMax bounds the number of plain requests that use up the rest of a limit.
	exhaustMax = 40
)

// attackRun is one run of an attack.
type attackRun struct {
	*testing.T
	attack *attack
	front  *front
	from   string // the attacker's address, on the loopback network
	host   string
	id     string // unique to this run, for counters that are not kept by address
	number int
	random *rand.Rand
	sent   int
	said   []string // the remarks for the table
}

// attackRun.site returns the address of the attacked site.
func (a *attackRun) site() string {
	if a.attack.strict {
		return a.front.strict
	}
	return a.front.address
}

// attackRun.note adds a remark to the row of the table.
func (a *attackRun) note(format string, args ...any) {
	a.said = append(a.said, fmt.Sprintf(format, args...))
}

// outcome is the result of one run of an attack.
type outcome struct {
	attack         *attack
	front          string
	sent           int
	admitted       int // the admitted requests of the attack itself
	total          int // all admitted requests, including those that used up the rest of the limit
	denied         bool
	during, after  experience
	growthKB       map[string]int // the maximum growth of memory by process
	ended          []string       // names of processes
	took           time.Duration
	said           []string
	targets        string // targets of the admitted requests
	panicked       bool
	exhaustedAfter int // the number of plain requests that were sent
	broken         int // the number of assertions that failed
}

// attacks lists all rows.
var attacks = slices.Concat(bursts, floods, targetAttacks, addressAttacks, tokenAttacks, bodyAttacks, abortAttacks, frameAttacks, http3Attacks, redisAttacks)

// TestAttacks runs the attacks against the fronts, one at a time. After each attack, the upstream
// must have received no more of the attacker's requests than the limit allows, and the attacker
// must be denied. During and after the attack, another client must be served and counted. No
// process may end, or grow beyond its bound.
func TestAttacks(t *testing.T) {
	seed := seed.First(t)
	up := startCountingUpstream(t)
	fronts := startFronts(t, up)
	var table []outcome
	for _, f := range fronts {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			for i := range attacks {
				row := &attacks[i]
				if !row.includes(f) || !isTurnOf(f, i) {
					continue
				}
				t.Run(strings.ReplaceAll(row.name, " ", "-"), func(t *testing.T) {
					o := row.runOn(t, f, up, seed)
					o.assert(t)
					table = append(table, o)
				})
			}
		})
	}
	if *allAttacks {
		t.Log("\n" + attackTable(table))
		judgeWaits(t, table)
	}
}

// judgeWaits compares the median waits of the other client during large bursts with those at the
// same proxy without a limiter. The median of the differences over all attacks must not exceed
// [laterMax].
func judgeWaits(t *testing.T, table []outcome) {
	t.Helper()
	bare := map[string]*outcome{}
	for i := range table {
		bare[table[i].front+table[i].attack.name] = &table[i]
	}
	for front, without := range map[string]string{caddyMemory: bareCaddy, caddyRedis: bareCaddy, envoyFilter: bareEnvoy, envoyModule: bareEnvoy,
		envoyRLS: bareEnvoy} {
		var later []time.Duration
		for i := range table {
			o := &table[i]
			if same := bare[without+o.attack.name]; o.front == front && o.attack.inFlight > 0 && same != nil {
				later = append(later, o.during.median()-same.during.median())
			}
		}
		if len(later) == 0 {
			continue // these attacks are not part of this run
		}
		slices.Sort(later)
		by := later[len(later)/2]
		t.Logf("%s: beside large bursts another client waits %v longer than without a limiter, by the median of %v", front, by, later)
		if by > laterMax {
			t.Errorf("%s: that may be %v", front, laterMax)
		}
	}
}

// attack.includes reports whether this run of the tests includes the attack on the front f.
func (row *attack) includes(f *front) bool {
	if row.long && !*allAttacks || row.strict && f.strict == "" {
		return false
	}
	if f.bare {
		return *allAttacks && row.inFlight > 0 && row.fronts == nil
	}
	if row.fronts == nil {
		return slices.Contains(limiters, f.name)
	}
	return slices.Contains(row.fronts, f.name)
}

// isTurnOf reports whether a front is attacked by the row with the given number. In "make test",
// each row attacks only one of the two Caddys, because they differ only in the store. Only every
// second row attacks the bridge by JSON, because rows that attack the filter also reach a bridge.
func isTurnOf(f *front, row int) bool {
	if *allAttacks || examOr(true, false) {
		return true
	}
	switch f.name {
	case caddyMemory, bridgeJSON:
		return row%2 == 0
	case caddyRedis:
		return row%2 == 1
	}
	return true
}

// runOn runs the attack against the front f. The attacker and the other client have addresses that
// were not used before.
func (row *attack) runOn(t *testing.T, f *front, up *countingUpstream, seed uint64) outcome {
	attackers++
	a := &attackRun{T: t, attack: row, front: f, from: loopback(2*attackers + 1), host: "attacked.example",
		id: fmt.Sprint("id-", attackers), number: attackers,
		random: rand.New(rand.NewPCG(seed, uint64(attackers)))}
	by := newOtherClient(t, f, loopback(2*attackers+2))
	up.begin(row.admits)
	before, begun := f.resident(), time.Now()
	logged, memory := f.readLogs(), f.watchMemory()
	defer memory.stop()
	by.start()
	row.run(a)
	eventually.Until(t, patience, "the upstream has no request left", up.idle)
	o := outcome{attack: row, front: f.name, sent: a.sent, took: time.Since(begun), admitted: up.admitted()}
	o.during = by.stop()
	if !f.bare {
		a.exhaust(&o)
	}
	o.total, o.targets = up.admitted(), up.seen()
	o.after = by.askTimes(requestsAfter)
	o.growthKB = growth(before, memory.stop())
	o.ended, o.panicked = f.endedProcesses(), strings.Contains(f.readLogs()[len(logged):], "panic")
	o.said = a.said
	return o
}

// attackers counts the attackers so far. Each attacker and each other client has its own address,
// so that attacks share processes but not counters.
var attackers int

// loopback returns the n-th address of a part of 127.0.0.0/8 from which only this test connects.
func loopback(n int) string { return fmt.Sprintf("127.77.%d.%d", n/250, n%250+1) }

// attackRun.exhaust sends plain requests until the attacker is denied several times in a row.
func (a *attackRun) exhaust(o *outcome) {
	const inARow = 5
	ask := a.attack.plain
	if ask == nil {
		ask = (*attackRun).sendPlain
	}
	for denied := 0; o.exhaustedAfter < exhaustMax+a.attack.limit && !o.denied; o.exhaustedAfter++ {
		switch status := ask(a); status {
		case http.StatusTooManyRequests, http.StatusForbidden, http.StatusUnauthorized:
			denied++
		default:
			denied = 0
		}
		o.denied = denied == inARow
	}
}

// sendPlain sends one ordinary request as the attacker and returns the status of the answer.
func (a *attackRun) sendPlain() int {
	status, _ := a.exchange("GET " + a.attack.path + " HTTP/1.1\r\nHost: " + a.host + "\r\nConnection: close\r\n\r\n")
	return status
}

// outcome.assert checks the conditions that must hold after every attack.
func (o *outcome) assert(t *testing.T) {
	t.Helper()
	t.Log(o.summarize())
	report := func(format string, args ...any) {
		t.Helper()
		o.broken++
		t.Errorf(format, args...)
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
		o.during.uncounted, o.during.failed = 0, max(0, o.during.failed-slowDeniedMax)
	}
	o.during.assert(report, "during the attack", o.attack.inFlight == 0 && !o.attack.outage)
	o.after.assert(report, "after the attack", true)
	for name, kb := range o.growthKB {
		if most := growthMax + growthPerRequest*o.attack.inFlight; kb > most {
			report("%s has grown by %d KB, and may by %d", name, kb, most)
		}
	}
}

// summarize returns a summary of the outcome in one line.
func (o *outcome) summarize() string {
	var grown []string
	for name, kb := range o.growthKB {
		grown = append(grown, fmt.Sprintf("%s %+d MB", name, kb>>10))
	}
	slices.Sort(grown)
	return fmt.Sprintf("sent %d, admitted %d (%d in all) of %d; during: %v; after: %v; %s; %v; %s", o.sent, o.admitted, o.total,
		o.attack.limit, o.during, o.after, strings.Join(grown, ", "), o.took.Round(time.Millisecond), strings.Join(o.said, "; "))
}

// attackTable returns the table that "make attack" prints.
func attackTable(table []outcome) string {
	var text strings.Builder
	text.WriteString("| attack | front | sent | admitted of limit | other client: p50 / max during (asked; denied, uncounted, failed) | p50 after | growth | |\n" +
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
		}
		_, _ = fmt.Fprintf(&text, "| %s | %s | %d | %d of %d | %v | %v | %d MB | %s %s |\n", o.attack.name, o.front, o.sent, o.total,
			o.attack.limit, o.during, o.after.median().Round(time.Millisecond/10), worst>>10, state, strings.Join(o.said, "; "))
	}
	return text.String()
}

// discard reads a body to its end and closes it.
func discard(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, body)
	_ = body.Close()
}
