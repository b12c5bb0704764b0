// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/seed"
)

// meterNow is the time at which the clock of each meter test starts.
const meterNow = counter.Micros(1_700_000_000) * counter.Second

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)}) }

// countSpent sends tokens from an address until the meter rejects one. Verifying each token takes
// the given cost. It returns how many tokens the meter admitted.
func (m *meter) countSpent(addr netip.Addr, now, cost counter.Micros) (tokens int) {
	for ; tokens < 1_000_000; tokens++ {
		if ok, _ := m.admits(addr, now); !ok {
			break
		}
		m.charge(addr, now, cost, false)
	}
	return tokens
}

func TestAnAddressHasABudget(t *testing.T) {
	const ms = counter.Millisecond
	m := newMeter(64) // there are so many processors that the total does not matter
	one := client(1)
	if got := m.countSpent(one, meterNow, ms+freeOfCharge); got != 10 {
		t.Errorf("%d tokens of a millisecond, want 10", got)
	}
	if got := m.countSpent(one, meterNow+counter.Second, ms+freeOfCharge); got != 10 {
		t.Errorf("a second later %d, want 10", got)
	}
	if got := m.countSpent(one, meterNow+counter.Second+100*ms, ms+freeOfCharge); got != 1 {
		t.Errorf("100 ms later %d, want 1", got)
	}
	if got := m.countSpent(client(2), meterNow+counter.Second, ms+freeOfCharge); got != 10 {
		t.Errorf("another address: %d, want 10", got)
	}
	const later = meterNow + 10*counter.Second
	if got := m.countSpent(client(3), later, costMax); got != 3 {
		t.Errorf("%d of the dearest tokens, want 3", got)
	}
	if ok, _ := m.admits(client(3), later+owedMax*counter.Second+1); !ok {
		t.Error("an address is not listened to for longer than that it cannot owe more")
	}
	if got := m.countSpent(client(4), later, freeOfCharge); got != 1_000_000 {
		t.Errorf("tokens that cost next to nothing: %d", got)
	}
}

func TestAddressesThatCountAsOne(t *testing.T) {
	m := newMeter(64)
	m.countSpent(netip.MustParseAddr("2001:db8::1"), meterNow, counter.Millisecond)
	for addr, want := range map[string]bool{"2001:db8::ffff:1": false, "2001:db8:0:1::1": true, "0.0.0.1": true} {
		if ok, _ := m.admits(netip.MustParseAddr(addr), meterNow); ok != want {
			t.Errorf("%s: %t, want %t", addr, ok, want)
		}
	}
}

// TestANetworkOfManyClientsHasABudget: a client with a /48 has 65,536 networks of 64 bits. From all
// of them together, it can use up neither the time nor the buckets of other clients.
func TestANetworkOfManyClientsHasABudget(t *testing.T) {
	random := seed.Random(t)
	for _, cost := range []counter.Micros{100, 700, 1500} {
		const perSecond, seconds = 2000, 30
		m, now := newMeter(2), meterNow
		spent, others, rejected := counter.Micros(0), 0, 0
		for i := range perSecond * seconds {
			now += counter.Second / perSecond
			n, other := random.IntN(1<<16), random.Uint32()
			attacker := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 1, byte(n >> 8), byte(n), 1})
			if ok, _ := m.admits(attacker, now); ok {
				m.charge(attacker, now, cost, false)
				spent += cost
			}
			if i%20 == 0 {
				others++
				if ok, _ := m.admits(netip.AddrFrom16([16]byte{0x20, 2, byte(other >> 24), byte(other >> 16), byte(other >> 8), byte(other)}), now); !ok {
					rejected++
				}
			}
		}
		if part := float64(spent) / float64(seconds*counter.Second); part > 0.2 || rejected > others/1000 { // a few, because the hash is random
			t.Errorf("tokens of %d us use %.2f of a processor, and %d of %d other clients are rejected", cost, part, rejected, others)
		}
	}
	m := newMeter(64)
	for n := range 9 { // nine misbehaving devices
		m.countSpent(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 1, 0, byte(n)}), meterNow, counter.Millisecond)
	}
	if ok, _ := m.admits(netip.MustParseAddr("2001:db8:1:ff::1"), meterNow); !ok {
		t.Error("another client of a network is rejected although only nine of it send garbage")
	}
}

// TestAllTogetherHaveABudget: when many addresses send garbage tokens, these addresses are rejected
// and clean ones are not.
func TestAllTogetherHaveABudget(t *testing.T) {
	m, now := newMeter(2), meterNow
	spent, shared := counter.Micros(0), 0
	for n := range 200 { // the addresses are so few that they share hardly any buckets
		if ok, _ := m.admits(client(n), now); !ok {
			shared++
			continue
		}
		m.charge(client(n), now, counter.Millisecond+freeOfCharge, false)
		if ok, _ := m.admits(client(n), now); ok {
			spent += counter.Millisecond
		}
	}
	if shared > 3 {
		t.Errorf("the first tokens of %d clients were not looked at", shared)
	}
	if spent != 49*counter.Millisecond { // without the fiftieth token
		t.Errorf("%v of processor time were spent before anybody was refused, want 50 ms", spent)
	}
	if ok, clean := m.admits(client(5000), now); !ok || !clean {
		t.Error("a clean address is not listened to")
	}
	if ok, _ := m.admits(netip.Addr{}, now); ok {
		t.Error("nobody's address is listened to")
	}
	now += 201 * counter.Millisecond
	if ok, clean := m.admits(client(1), now); !ok || clean {
		t.Error("a part is paid off, and client 1 is not listened to, or taken for clean")
	}
	if now += 10 * counter.Second; !func() bool { _, clean := m.admits(client(1), now); return clean }() {
		t.Error("client 1 is not clean again")
	}
}

// TestAClientWithManySignedTokens: a client with many signed tokens is never rejected, but waits
// with the clients that send garbage.
func TestAClientWithManySignedTokens(t *testing.T) {
	m, now := newMeter(2), meterNow
	m.total.pay(now, totalOwed, owedMax*totalOwed) // others send garbage
	clean := 0
	for range 1000 {
		ok, yes := m.admits(client(1), now)
		if !ok {
			t.Fatal("a signed token is refused")
		}
		if yes {
			clean++
		}
		m.charge(client(1), now, counter.Millisecond+freeOfCharge, true)
	}
	if clean != 20 {
		t.Errorf("%d tokens were those of a clean address, want 20", clean)
	}
	if _, yes := m.admits(client(1), now+owedMax*signedOwed); !yes {
		t.Error("the address is not clean again")
	}
}

// TestAMeterAfterTheClockWasSetBack: after the clock was set back, addresses without a known debt
// are admitted.
func TestAMeterAfterTheClockWasSetBack(t *testing.T) {
	m := newMeter(2)
	m.countSpent(client(1), meterNow, counter.Millisecond)
	if ok, clean := m.admits(client(1), meterNow-counter.Hour); !ok || clean {
		t.Error("an hour earlier: ", ok, clean)
	}
	if got := m.countSpent(client(1), meterNow-counter.Hour, counter.Millisecond+freeOfCharge); got != 10 {
		t.Errorf("an hour earlier %d tokens, want 10", got)
	}
}

// TestALateChargeKeepsTheDebt: tokens that are verified at the same time are charged in any order,
// at slightly different instants. No charge clears a debt that is at its maximum. Otherwise an
// address that keeps all processors busy would be clean again.
func TestALateChargeKeepsTheDebt(t *testing.T) {
	const late = 50 * counter.Millisecond
	m := newMeter(2)
	for range 100 {
		m.charge(client(1), meterNow, costMax, true)
		m.charge(client(2), meterNow, costMax, false)
	}
	check := func(when string) {
		if _, clean := m.admits(client(1), meterNow-late); clean {
			t.Errorf("%s, the address with many signed tokens is clean", when)
		}
		if ok, _ := m.admits(client(2), meterNow-late); ok {
			t.Errorf("%s, a token of the address with garbage tokens may be verified", when)
		}
	}
	check("for a request that was read earlier")
	m.charge(client(1), meterNow-late, costMax, true)
	m.charge(client(2), meterNow-late, costMax, false)
	check("after a late charge")
	if owed := m.total.owed(meterNow, owedMax*totalOwed); owed != owedMax*totalOwed {
		t.Errorf("all addresses together owe %d µs", owed)
	}
}

// TestAGate: the gate admits as many callers as it has slots. Further callers wait in order, each
// for at most the time that its call of enter states.
func TestAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &newMeter(2).gates[1]
		if !g.enter(0) || g.enter(0) {
			t.Fatal("not one is in")
		}
		start := time.Now()
		if g.enter(8*counter.Millisecond) || time.Since(start) != 8*time.Millisecond {
			t.Fatalf("a second one was in, or gave up after %v", time.Since(start))
		}
		var mu sync.Mutex
		var order []int
		for i := range 3 {
			go func() {
				if !g.enter(counter.Second) {
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
		if g.enter(0); g.enter(counter.Second) {
			t.Error("one more waits than may")
		}
	})
}

// TestTokensThatArriveTogetherDelayNobody: many new tokens arrive at once from an address that was
// clean until then. When the cost of the first tokens is known, the remaining ones lose their
// places to the token of a clean address.
func TestTokensThatArriveTogetherDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, begin := newMeter(2), time.Now()
		verify := func(n int) (checked bool) {
			left := 100 * counter.Millisecond
			q := &inquiry{asker: &policy.Asker{Addr: client(n), Left: &left}, meter: m,
				elapsed: func() counter.Micros { return counter.Micros(time.Since(begin).Microseconds()) }}
			if !q.begin(meterNow, 800) || !q.enter(meterNow) {
				return false
			}
			time.Sleep(time.Millisecond)
			q.leave()
			q.end(meterNow+q.elapsed(), true)
			return true
		}
		var others sync.WaitGroup
		defer others.Wait()
		for range 400 {
			others.Go(func() { verify(1) })
		}
		synctest.Wait()
		if !verify(2) || time.Since(begin) > 15*time.Millisecond { // 10 ms at two processors use up signedOwed
			t.Errorf("a token of another address has waited %v", time.Since(begin))
		}
	})
}

// newMetered returns a JWT with its own meter and a clock that advances by 250 µs at each reading.
func newMetered(t *testing.T, processors int) *JWT {
	t.Helper()
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	j.meter = newMeter(processors)
	var looks counter.Micros
	j.elapsed = func() counter.Micros {
		looks++
		return looks * 250
	}
	return j
}

// newForged returns a new token that no key has signed.
func newForged(t *testing.T, n int) string {
	return theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, fmt.Sprintf(`{"sub":"u","exp":1700000600,"n":%d}`, n), "other")
}

// TestGarbageIsNotVerifiedWithoutEnd: after some tokens that no key has signed, a client's tokens
// are rejected, except for remembered ones. Other clients are not affected.
func TestGarbageIsNotVerifiedWithoutEnd(t *testing.T) {
	j := newMetered(t, 64)
	asker := &policy.Asker{Addr: client(1)}
	known, first := theIssuer.goodToken(t, "known"), newForged(t, 0)
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
		if id, state := j.VerifyFor(asker, newForged(t, n)); id != nil || state != policy.CredentialInvalid {
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
		want      policy.CredentialState
		unchecked bool
	}{
		"known":              {client(1), known, policy.CredentialValid, false},
		"known to be bad":    {client(1), first, policy.CredentialInvalid, false},
		"a key":              {client(1), keyText, policy.CredentialMalformed, false},
		"fresh":              {client(1), theIssuer.goodToken(t, "fresh"), policy.CredentialInvalid, true},
		"from another place": {client(2), theIssuer.goodToken(t, "other"), policy.CredentialValid, false},
		"the same again":     {client(1), newForged(t, 999), policy.CredentialInvalid, true},
	} {
		a := &policy.Asker{Addr: c.addr}
		if _, state := j.VerifyFor(a, c.token); state != c.want || a.Unchecked != c.unchecked {
			t.Errorf("%s: %s, unchecked %t", name, state, a.Unchecked)
		}
	}
	fresh := theIssuer.goodToken(t, "fresh")
	if j.VerifyFor(&policy.Asker{Addr: client(1)}, fresh); !stateIs(j, fresh, policy.CredentialValid)() {
		t.Error("what was not verified is remembered as invalid")
	}
}

const keyText = "pk_0123456789-abcdefghijklmnopqrstuvwxyz"

// TestTokensThatAreOnlyRead: a token that is only read is charged by its length, however long the
// machine takes.
func TestTokensThatAreOnlyRead(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		free   bool
	}{
		"an unknown key":       {`{"alg":"ES384","kid":"nobody"}`, true},
		"an unknown algorithm": {`{"alg":"ES512","kid":"e1"}`, true},
		"a long header":        {`{"alg":"ES384","kid":"nobody","x5c":"` + strings.Repeat("x", 5000) + `"}`, false},
	} {
		j := newMetered(t, 64)
		for range 1000 {
			serial++
			j.VerifyFor(&policy.Asker{Addr: client(1)}, theIssuer.token(t, c.header, fmt.Sprintf(`{"n":%d}`, serial), "none"))
		}
		if ok, clean := j.meter.admits(client(1), meterNow); ok != c.free || clean != c.free {
			t.Errorf("%s: listened to %t, clean %t, want %t", name, ok, clean, c.free)
		}
	}
}

// TestTimeThatRequestsShare: tokens are verified until the shared time is used up. A part of that
// time is reserved for clean addresses.
func TestTimeThatRequestsShare(t *testing.T) {
	j := newMetered(t, 64)
	left := keptForClean + counter.Micros(1600)
	verified := func(from, n int) (tokens int) {
		for range n {
			serial++
			a := &policy.Asker{Addr: client(from), Left: &left}
			if j.VerifyFor(a, newForged(t, serial)); !a.Unchecked {
				tokens++
			}
		}
		return tokens
	}
	// The first token is from a clean address, and each takes 750 µs including its wait.
	if got := verified(1, 10); got != 3 {
		t.Errorf("%d tokens of one address were verified, want 3", got)
	}
	if left <= 0 || left > keptForClean {
		t.Errorf("%d µs are left", left)
	}
	clean := 0
	for n := range 100 {
		clean += verified(100+n, 1)
	}
	if want := 9; clean != want || left > 0 {
		t.Errorf("%d tokens of clean addresses were verified, want %d; %d µs are left", clean, want, left)
	}
	// However much time a call has for clean addresses, all others have only hurriedMax.
	left = 100 * counter.Millisecond
	q := inquiry{asker: &policy.Asker{Left: &left}, meter: j.meter, gate: &j.meter.gates[1]}
	if got := q.left(); got != hurriedMax {
		t.Errorf("an address that is not clean has %d µs of %d, want %d", got, left, hurriedMax)
	}
}

var serial = 1000

// TestMeteredTokensAllAtOnce: of many concurrent tokens, no more are verified than there is time
// for, and all slots are released.
func TestMeteredTokensAllAtOnce(t *testing.T) {
	j := newMetered(t, 4)
	j.elapsed = func() counter.Micros { return counter.Micros(time.Since(time.Time{}.Add(time.Hour)).Microseconds()) }
	tokens := make([]string, 64)
	for i := range tokens {
		tokens[i] = newForged(t, 5000+i)
	}
	good := theIssuer.goodToken(t, "u")
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for n := range tokens {
				a := &policy.Asker{Addr: client(i % 5)}
				if _, state := j.VerifyFor(a, tokens[(n+i)%len(tokens)]); state != policy.CredentialInvalid {
					t.Error(state)
				}
				a = &policy.Asker{Addr: client(100 + i)}
				if _, state := j.VerifyFor(a, good); state != policy.CredentialValid && !a.Unchecked {
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

// TestAskingForAClientCostsNoMemory: neither a remembered token nor a rejected one allocates.
func TestAskingForAClientCostsNoMemory(t *testing.T) {
	j := newMetered(t, 64)
	good, bad := theIssuer.goodToken(t, "u"), newForged(t, 1)
	asker := &policy.Asker{Addr: client(1)}
	j.VerifyFor(asker, good)
	j.meter.countSpent(asker.Addr, meterNow, counter.Millisecond)
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
	asker := &policy.Asker{Addr: client(1)}
	j.meter.countSpent(asker.Addr, meterNow, counter.Millisecond)
	for b.Loop() {
		j.VerifyFor(asker, token)
	}
	if !asker.Unchecked {
		b.Error("it was looked at")
	}
}
