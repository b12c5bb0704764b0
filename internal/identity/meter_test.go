// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core"
)

// meterNow is when the tests of meters begin.
const meterNow = core.Micros(1_700_000_000) * core.Second

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)}) }

// spends has an address send tokens of a cost until it is not listened to, and returns how many were.
func (m *meter) spends(addr netip.Addr, now, cost core.Micros) (tokens int) {
	for ; tokens < 1_000_000; tokens++ {
		if ok, _ := m.admits(addr, now); !ok {
			break
		}
		m.charge(addr, now, cost)
	}
	return tokens
}

func TestAnAddressHasABudget(t *testing.T) {
	const ms = core.Millisecond
	m := newMeter(64) // so that the total does not matter
	one := client(1)
	if got := m.spends(one, meterNow, ms+freeOfCharge); got != 10 {
		t.Errorf("%d tokens of a millisecond, want 10", got)
	}
	if got := m.spends(one, meterNow+core.Second, ms+freeOfCharge); got != 10 {
		t.Errorf("a second later %d, want 10", got)
	}
	if got := m.spends(one, meterNow+core.Second+100*ms, ms+freeOfCharge); got != 1 {
		t.Errorf("100 ms later %d, want 1", got)
	}
	if got := m.spends(client(2), meterNow+core.Second, ms+freeOfCharge); got != 10 {
		t.Errorf("another address: %d, want 10", got)
	}
	if got := m.spends(client(3), meterNow, core.Hour); got != 3 {
		t.Errorf("%d tokens that were interrupted, want 3", got)
	}
	if ok, _ := m.admits(client(3), meterNow+owedMax*core.Second+1); !ok {
		t.Error("an address is not listened to for longer than that it cannot owe more")
	}
	if got := m.spends(client(4), meterNow, freeOfCharge); got != 1_000_000 {
		t.Errorf("tokens that cost next to nothing: %d", got)
	}
}

func TestAddressesThatCountAsOne(t *testing.T) {
	m := newMeter(64)
	m.spends(netip.MustParseAddr("2001:db8::1"), meterNow, core.Millisecond)
	for addr, want := range map[string]bool{"2001:db8::ffff:1": false, "2001:db8:0:1::1": true, "0.0.0.1": true} {
		if ok, _ := m.admits(netip.MustParseAddr(addr), meterNow); ok != want {
			t.Errorf("%s: %t, want %t", addr, ok, want)
		}
	}
}

// TestAllTogetherHaveABudget: when many addresses send such tokens, those that did are not listened to, and those that did not are.
func TestAllTogetherHaveABudget(t *testing.T) {
	m, now := newMeter(2), meterNow
	spent, shared := core.Micros(0), 0
	for n := range 200 { // few enough to share hardly any buckets
		if ok, _ := m.admits(client(n), now); !ok {
			shared++
			continue
		}
		m.charge(client(n), now, core.Millisecond+freeOfCharge)
		if ok, _ := m.admits(client(n), now); ok {
			spent += core.Millisecond
		}
	}
	if shared > 3 {
		t.Errorf("the first tokens of %d clients were not looked at", shared)
	}
	if spent != 49*core.Millisecond { // the fiftieth makes it 50 ms
		t.Errorf("%v of processor time were spent before anybody was refused, want 50 ms", spent)
	}
	if ok, clean := m.admits(client(5000), now); !ok || !clean {
		t.Error("a clean address is not listened to")
	}
	if ok, _ := m.admits(netip.Addr{}, now); ok {
		t.Error("nobody's address is listened to")
	}
	now += 201 * core.Millisecond
	if ok, clean := m.admits(client(1), now); !ok || clean {
		t.Error("a part is paid off, and client 1 is not listened to, or taken for clean")
	}
	if now += 10 * core.Second; !func() bool { _, clean := m.admits(client(1), now); return clean }() {
		t.Error("client 1 is not clean again")
	}
}

// TestAMeterWhoseClockGoesBack listens to everybody who is not known to owe anything.
func TestAMeterWhoseClockGoesBack(t *testing.T) {
	m := newMeter(2)
	m.spends(client(1), meterNow, core.Millisecond)
	if ok, clean := m.admits(client(1), meterNow-core.Hour); !ok || clean {
		t.Error("an hour earlier: ", ok, clean)
	}
	if got := m.spends(client(1), meterNow-core.Hour, core.Millisecond+freeOfCharge); got != 10 {
		t.Errorf("an hour earlier %d tokens, want 10", got)
	}
}

// TestAGate: as many are in as it has slots; others wait their turn, no longer than they want to.
func TestAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &newMeter(2).gates[1]
		if !g.enter(0) || g.enter(0) {
			t.Fatal("not one is in")
		}
		start := time.Now()
		if g.enter(8*core.Millisecond) || time.Since(start) != 8*time.Millisecond {
			t.Fatalf("a second one was in, or gave up after %v", time.Since(start))
		}
		var mu sync.Mutex
		var order []int
		for i := range 3 {
			go func() {
				if !g.enter(core.Second) {
					t.Errorf("%d was not let in", i)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				g.leave()
			}()
			synctest.Wait()
		}
		g.leave()
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2}) || g.waiting.Load() != 0 {
			t.Error(order, g.waiting.Load())
		}
		g.waiting.Store(waitersMax)
		if g.enter(0); g.enter(core.Second) {
			t.Error("one more waits than may")
		}
	})
}

// metered is a JWT with a meter and a stopwatch of its own, by which each look takes 250 µs.
func metered(t *testing.T, processors int) *JWT {
	t.Helper()
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	j.meter = newMeter(processors)
	var looks core.Micros
	j.elapsed = func() core.Micros {
		looks++
		return looks * 250
	}
	return j
}

// forged is a token that no key has signed, like no other.
func forged(t *testing.T, n int) string {
	return theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, fmt.Sprintf(`{"sub":"u","exp":1700000600,"n":%d}`, n), "other")
}

// TestGarbageIsNotVerifiedWithoutEnd: who sends tokens that nobody has signed is not listened to any more, but for tokens that are
// known; others are.
func TestGarbageIsNotVerifiedWithoutEnd(t *testing.T) {
	j := metered(t, 64)
	asker := &core.Asker{Addr: client(1)}
	known, first := theIssuer.good(t, "known"), forged(t, 0)
	for name, token := range map[string]string{"good": known, "expired": theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`,
		`{"sub":"u","exp":1600000000}`, "rsa"), "not a token": strings.Repeat("x", 40)} {
		if j.VerifyFor(asker, token); asker.Unchecked {
			t.Errorf("%s: not looked at", name)
		}
	}
	if _, clean := j.meter.admits(asker.Addr, meterNow); !clean {
		t.Error("a client is charged for tokens that were signed, or are none")
	}
	verified := 0
	for n := range 1000 {
		asker.Unchecked = false
		if id, state := j.VerifyFor(asker, forged(t, n)); id != nil || state != core.CredentialInvalid {
			t.Fatal(id, state)
		}
		if !asker.Unchecked {
			verified++
		}
	}
	if want := 21; verified != want { // 480 µs each
		t.Errorf("%d were verified, want %d", verified, want)
	}
	for name, c := range map[string]struct {
		addr      netip.Addr
		token     string
		want      core.CredentialState
		unchecked bool
	}{
		"known":              {client(1), known, core.CredentialValid, false},
		"known to be bad":    {client(1), first, core.CredentialInvalid, false},
		"a key":              {client(1), keyText, core.CredentialMalformed, false},
		"fresh":              {client(1), theIssuer.good(t, "fresh"), core.CredentialInvalid, true},
		"from another place": {client(2), theIssuer.good(t, "other"), core.CredentialValid, false},
		"the same again":     {client(1), forged(t, 999), core.CredentialInvalid, true},
	} {
		a := &core.Asker{Addr: c.addr}
		if _, state := j.VerifyFor(a, c.token); state != c.want || a.Unchecked != c.unchecked {
			t.Errorf("%s: %s, unchecked %t", name, state, a.Unchecked)
		}
	}
	fresh := theIssuer.good(t, "fresh")
	if j.VerifyFor(&core.Asker{Addr: client(1)}, fresh); !stateIs(j, fresh, core.CredentialValid)() {
		t.Error("what was not verified is remembered as invalid")
	}
}

const keyText = "pk_0123456789-abcdefghijklmnopqrstuvwxyz"

// TestTimeThatRequestsShare: tokens are verified until it is used up, and addresses that have sent garbage leave a part of it.
func TestTimeThatRequestsShare(t *testing.T) {
	j := metered(t, 64)
	left := keptForClean + core.Micros(1600)
	verified := func(from, n int) (tokens int) {
		for range n {
			serial++
			a := &core.Asker{Addr: client(from), Left: &left}
			if j.VerifyFor(a, forged(t, serial)); !a.Unchecked {
				tokens++
			}
		}
		return tokens
	}
	if got := verified(1, 10); got != 3 { // the first is of a clean address, and each takes 750 µs with its wait
		t.Errorf("%d tokens of one address were verified, want 3", got)
	}
	if left <= 0 || left > keptForClean {
		t.Errorf("%d µs are left", left)
	}
	clean := 0
	for n := range 100 {
		clean += verified(100+n, 1)
	}
	if want := 5; clean != want || left > 0 {
		t.Errorf("%d tokens of clean addresses were verified, want %d; %d µs are left", clean, want, left)
	}
}

var serial = 1000

// TestMeteredTokensAllAtOnce: whatever comes together, no more is verified than there is time for, and the slots are given back.
func TestMeteredTokensAllAtOnce(t *testing.T) {
	j := metered(t, 4)
	j.elapsed = func() core.Micros { return core.Micros(time.Since(time.Time{}.Add(time.Hour)).Microseconds()) }
	tokens := make([]string, 64)
	for i := range tokens {
		tokens[i] = forged(t, 5000+i)
	}
	good := theIssuer.good(t, "u")
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for n := range tokens {
				a := &core.Asker{Addr: client(i % 5)}
				if _, state := j.VerifyFor(a, tokens[(n+i)%len(tokens)]); state != core.CredentialInvalid {
					t.Error(state)
				}
				a = &core.Asker{Addr: client(100 + i)}
				if _, state := j.VerifyFor(a, good); state != core.CredentialValid && !a.Unchecked {
					t.Error(state)
				}
			}
		})
	}
	group.Wait()
	for i := range j.meter.gates {
		if g := &j.meter.gates[i]; len(g.slots) != 0 || g.waiting.Load() != 0 {
			t.Errorf("gate %d: %d slots are taken, %d wait", i, len(g.slots), g.waiting.Load())
		}
	}
}

// TestAskingForAClientCostsNoMemory: neither where the token is known, nor where there is no time for it.
func TestAskingForAClientCostsNoMemory(t *testing.T) {
	j := metered(t, 64)
	good, bad := theIssuer.good(t, "u"), forged(t, 1)
	asker := &core.Asker{Addr: client(1)}
	j.VerifyFor(asker, good)
	j.meter.spends(asker.Addr, meterNow, core.Millisecond)
	for name, token := range map[string]string{"known": good, "no time": bad} {
		if n := testing.AllocsPerRun(100, func() { j.VerifyFor(asker, token) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkNoTimeForAToken(b *testing.B) {
	j := openTest(b, JWTOptions{JWKSFile: write(b, "k.json", theIssuer.set)})
	j.meter = newMeter(64)
	token := theIssuer.token(b, `{"alg":"RS256","kid":"r1"}`, `{"sub":"u","exp":1700000600}`, "other")
	asker := &core.Asker{Addr: client(1)}
	j.meter.spends(asker.Addr, meterNow, core.Millisecond)
	for b.Loop() {
		j.VerifyFor(asker, token)
	}
	if !asker.Unchecked {
		b.Error("it was looked at")
	}
}
