// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// filled fills in every exported field of a policy, at every depth, with a value that is not zero and not the last one's.
func filled(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch value := v.Addr().Interface().(type) {
	case *Limit:
		*value = mustLimit(t, []string{"5/day", "7/1m sliding_log", "9/1h burst 11", "10/1s", "3/2s fixed_window"}[*n%5])
		return
	case *netip.Prefix:
		*value = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(*n >> 8), byte(*n)}), 32)
		return
	case **time.Location, *Verifier:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("x", *n%7+1) + "\x00é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) << 40 * int64(1-2*(*n%2)))
	case reflect.Uint8:
		v.SetUint(uint64(*n%255 + 1))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			filled(t, v.Index(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(t, v.Elem(), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 3 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			filled(t, key, n)
			filled(t, value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			filled(t, v.Field(i), n)
		}
	default:
		t.Fatalf("a policy has a %s: say how it is filled in", v.Type())
	}
}

// TestCompactHoldsEveryField: a field that the compact form forgets would be a limit that one proxy knows and another not.
// TestOlderFilters: a policy without the newer fields is written in the form that filters of the release before read, and
// one with them under another head, which they refuse and keep the policy that they have.
func TestOlderFilters(t *testing.T) {
	p := Policy{Name: "n", Rules: []Rule{{Name: "r", CostAfter: &CostAfter{Header: "X-Cost", Default: 3, Max: 9}}}}
	for unread, head := range map[int64]string{0: compactHead, 7: compactHeadUnread} {
		p.Rules[0].CostAfter.Unread = unread
		data := p.AppendCompact(nil, "v1")
		got, _, err := ReadCompact(data)
		if err != nil || !bytes.HasPrefix(data, []byte(head)) || got.Rules[0].CostAfter.Unread != unread {
			t.Errorf("unread %d: %.20q, %+v, %v", unread, data, got.Rules, err)
		}
	}
}

func TestCompactHoldsEveryField(t *testing.T) {
	var p Policy
	n := 0
	filled(t, reflect.ValueOf(&p).Elem(), &n)
	data := p.AppendCompact([]byte("before"), "v1")
	got, version, err := ReadCompact(data[len("before"):])
	if err != nil || version != "v1" || !bytes.HasPrefix(data, []byte("before")) {
		t.Fatal(version, err)
	}
	for _, list := range [][]Listed{p.Exempt, p.Block} {
		for i := range list {
			list[i].Reason = "" // nobody who reads the form needs it
		}
	}
	for i := range p.Rules {
		p.Rules[i].Quota = false // it is for descriptors, which readers of the form have none of
	}
	if diff := cmp.Diff(p, got, cmp.AllowUnexported(Limit{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if again := got.AppendCompact(nil, "v1"); !bytes.Equal(again, data[len("before"):]) {
		t.Error("written again it differs")
	}
}

// TestCompactRefusesDamage: every single byte that is changed, left out or put in is noticed.
func TestCompactRefusesDamage(t *testing.T) {
	p := Policy{Name: "shop", Rules: []Rule{{Name: "api", Match: Match{Path: []string{"/api/*"}}, Limits: limits(t, "10/1m")}}}
	data := p.AppendCompact(nil, "abc")
	for i := range data {
		for _, damaged := range [][]byte{
			append(append(bytes.Clone(data[:i]), data[i]^0x20), data[i+1:]...),
			append(bytes.Clone(data[:i]), data[i+1:]...),
			append(append(bytes.Clone(data[:i]), 'x'), data[i:]...),
			data[:i],
		} {
			if _, _, err := ReadCompact(damaged); err == nil {
				t.Fatalf("damage at byte %d goes unnoticed: %q", i, damaged)
			}
		}
	}
}

// FuzzReadCompact: what is read is written alike, whatever it was, and nothing makes the reader panic or take memory.
func FuzzReadCompact(f *testing.F) {
	p := Policy{Name: "shop", Penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1, 2}},
		Rules: []Rule{{Name: "api", Tiers: map[string]LimitSet{"gold": {Unlimited: true}}}}}
	body := func(p Policy) []byte {
		data := p.AppendCompact(nil, "abc")
		return data[len(compactHead) : len(data)-checksumBytes]
	}
	f.Add(body(Policy{}))
	f.Add(body(p))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append([]byte(compactHead), data...)
		data = append(data, checksum(data)...)
		p, version, err := ReadCompact(data)
		if err != nil {
			return
		}
		written := p.AppendCompact(nil, version)
		again, _, err := ReadCompact(written)
		if err != nil || !bytes.Equal(again.AppendCompact(nil, version), written) {
			t.Fatalf("%v\n%x\n%x", err, data, written)
		}
	})
}
