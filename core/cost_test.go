// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"math/big"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, text := range texts {
		ps = append(ps, netip.MustParsePrefix(text))
	}
	return ps
}

// TestCostOfAHeader: only a trusted peer can set a cost, and only whole numbers within bounds are
// accepted.
func TestCostOfAHeader(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1000/1m"), Cost: []policy.Cost{
		{Header: "x-cost", Trusted: prefixes("10.0.0.0/8", "2001:db8::/32", "::ffff:192.168.0.0/112"), Max: 100, N: 3}}}}})
	for _, c := range []struct {
		remote, value string
		want          int64
	}{
		{"10.1.2.3", "7", 7},
		{"::ffff:10.1.2.3", "7", 7},
		{"2001:db8::9", "100", 100},
		{"192.168.3.4", "007", 7},
		// Not from a trusted peer.
		{"11.1.2.3", "7", 3},
		{"", "7", 3},
		// Not a cost: below 1, above max, or ambiguous.
		{"10.1.2.3", "0", 3},
		{"10.1.2.3", "101", 3},
		{"10.1.2.3", "99999999999999999999999999", 3},
		{"10.1.2.3", "-7", 3},
		{"10.1.2.3", "+7", 3},
		{"10.1.2.3", "7.0", 3},
		{"10.1.2.3", "7, 8", 3},
		{"10.1.2.3", " 7", 3},
		{"10.1.2.3", "٧", 3},
		{"10.1.2.3", "", 3},
	} {
		a := get("192.0.2.1", "/")
		a.header = map[string]string{"X-Cost": c.value}
		if c.remote != "" {
			a.remote = netip.MustParseAddr(c.remote)
		}
		var plan Plan
		plan.Add(rs, a)
		if got := plan.Checks()[0].Cost; got != c.want {
			t.Errorf("%q from %s: cost %d, want %d", c.value, c.remote, got, c.want)
		}
		unreadable := 0
		if c.want == 3 && c.remote == "10.1.2.3" {
			unreadable = 1
		}
		if got := plan.UnreadableCosts(); got != unreadable {
			t.Errorf("%q from %s: %d unreadable costs, want %d", c.value, c.remote, got, unreadable)
		}
		if plan.Reset(); plan.UnreadableCosts() != 0 {
			t.Errorf("%q from %s: unreadable costs after Reset", c.value, c.remote)
		}
	}
}

// TestForwardedAddressesAreNoTrust: the client's address can come from a forwarded field, but
// whether a cost header is trusted depends on the peer of the connection.
func TestForwardedAddressesAreNoTrust(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"),
		Cost: []policy.Cost{{Header: "X-Cost", Trusted: prefixes("10.0.0.0/8"), N: 5}}}}})
	a := &client{peer: netip.MustParseAddr("10.0.0.1"), remote: netip.MustParseAddr("192.0.2.1"),
		header: map[string]string{"X-Cost": "1"}}
	var plan Plan
	plan.Add(rs, a)
	if got := plan.Checks()[0].Cost; got != 5 {
		t.Errorf("cost %d, want 5", got)
	}
}

// TestCostThatNeverPasses: a request whose cost exceeds the limit is denied without a time to
// retry.
func TestCostThatNeverPasses(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "10/1m fw"),
		Cost: []policy.Cost{{Header: "X-Cost", Trusted: prefixes("0.0.0.0/0"), N: 1}}}}})
	a := get("192.0.2.1", "/")
	a.header, a.remote = map[string]string{"X-Cost": "11"}, a.peer
	store := newCounters()
	plan, d := store.ask(t, a, rs)
	fields := HeadersOf(plan, &d)
	if d.Status != 429 || d.RetryAfter != counter.Never || fields.RetryAfter != "" || fields.Cost != "11" || d.Cost != 11 {
		t.Errorf("%+v %+v", d, fields)
	}
	if detail := DetailOf(&d); !strings.Contains(detail, "never pass") {
		t.Errorf("the detail is %q", detail)
	}
}

// TestCostIsReported: the cost is reported only if a rule defines costs.
func TestCostIsReported(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "plain", Limits: limittest.All(t, "50/1m fw"), Match: policy.Match{Path: []string{"/plain"}}},
		{Name: "dear", Limits: limittest.All(t, "50/1m fw"), Match: policy.Match{Path: []string{"/dear"}}, Cost: []policy.Cost{{N: 5}}},
		{Name: "later", Limits: limittest.All(t, "50/1m fw"), Match: policy.Match{Path: []string{"/later"}},
			CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 9}},
	}})
	for path, want := range map[string]string{"/plain": "", "/dear": "5", "/later": "9"} {
		plan, d := newCounters().ask(t, get("192.0.2.1", path), rs)
		if got := HeadersOf(plan, &d).Cost; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestCostNumber compares costNumber with exact arithmetic on fractions.
func TestCostNumber(t *testing.T) {
	rng := seed.Random(t)
	const alphabet = "0123456789012345.eE+-"
	for range 200_000 {
		b := make([]byte, rng.IntN(12))
		for i := range b {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
		text, most := string(b), int64(1)<<rng.IntN(41)
		want, wantOK := slowCost(text, most)
		if got, ok := costNumber(text, most); ok != wantOK || ok && got != want {
			t.Fatalf("%q up to %d: %d, %v, want %d, %v", text, most, got, ok, want, wantOK)
		}
	}
	for text, want := range map[string]int64{"0": 0, "12": 12, "12.0": 12, "12.000000000000000000000000000001": 13, "1e3": 1000,
		"1.5E+1": 15, "0.001": 1, "1e-99": 1, "0e999": 0, "000001": 1, "1099511627776": counter.CountMax} {
		if got, ok := costNumber(text, counter.CountMax); !ok || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-1", "-0", "+1", "NaN", "Infinity", "0x10", "1_000", "1e", "1e+", "1.", ".5", "1 ", "1e1000",
		"1e999", "1099511627777", strings.Repeat("9", 400), "null", `"1"`} {
		if got, ok := costNumber(text, counter.CountMax); ok {
			t.Errorf("%q: %d, want none", text, got)
		}
	}
}

// slowCost is costNumber for texts of up to 12 characters, computed with exact fractions.
func slowCost(text string, most int64) (int64, bool) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if mantissa == "" || mantissa[0] < '0' || mantissa[0] > '9' || strings.HasSuffix(mantissa, ".") {
		return 0, false
	}
	if len(strings.TrimLeft(exponent, "+-")) > 3 && strings.TrimLeft(exponent, "+-0") != "" &&
		len(strings.TrimLeft(exponent, "+-0")) > 3 {
		return 0, false // no cost has such an exponent
	}
	value, ok := new(big.Rat).SetString(text)
	if !ok || value.Sign() < 0 {
		return 0, false
	}
	whole, rest := new(big.Int).QuoRem(value.Num(), value.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole.Int64(), whole.IsInt64() && whole.Int64() <= most
}
