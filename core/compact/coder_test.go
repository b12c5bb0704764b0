// SPDX-License-Identifier: Apache-2.0

package compact

import (
	"bytes"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// fillPolicy sets every exported field of a policy, at every depth, to a nonzero value. Each value
// differs from the previous one.
func fillPolicy(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch value := v.Addr().Interface().(type) {
	case *counter.Limit:
		*value = limittest.Parse(t, []string{"5/day", "7/1m sliding_log", "9/1h burst 11", "10/1s", "3/2s fixed_window"}[*n%5])
		return
	case *netip.Prefix:
		*value = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(*n >> 8), byte(*n)}), 32)
		return
	case **time.Location, *policy.Verifier:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("x", *n%7+1) + "\x00é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) << 40 * int64(1-2*(*n%2)))
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(uint64(*n%255 + 1))
	case reflect.Array:
		for i := range v.Len() {
			fillPolicy(t, v.Index(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillPolicy(t, v.Index(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillPolicy(t, v.Elem(), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 3 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillPolicy(t, key, n)
			fillPolicy(t, value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fillPolicy(t, v.Field(i), n)
		}
	default:
		t.Fatalf("a policy has a %s: say how it is filled in", v.Type())
	}
}

// TestFiltersWithoutDirectories: a policy with a directory has a head that filters of earlier
// releases reject. Otherwise such filters would decide without the records of clients.
func TestFiltersWithoutDirectories(t *testing.T) {
	for _, directory := range []bool{false, true} {
		data := AppendPolicy(nil, &policy.Policy{Name: "n", Directory: directory}, "v1")
		got, _, err := ReadPolicy(data)
		if err != nil || got.Directory != directory || bytes.HasPrefix(data, []byte(compactHeadDirected)) != directory {
			t.Errorf("directory %t: %.20q, %t, %v", directory, data, got.Directory, err)
		}
	}
}

// TestOlderFilters: a policy that uses no new fields is written in the form that filters of the
// previous release can read. A policy with newer fields has a different head, so older filters
// reject it and keep the policy that they have.
func TestOlderFilters(t *testing.T) {
	p := policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", CostAfter: &policy.CostAfter{Header: "X-Cost", Default: 3, Max: 9}}}}
	for unread, head := range map[int64]string{0: compactHead, 7: compactHeadUnread} {
		p.Rules[0].CostAfter.Unread = unread
		data := AppendPolicy(nil, &p, "v1")
		got, _, err := ReadPolicy(data)
		if err != nil || !bytes.HasPrefix(data, []byte(head)) || got.Rules[0].CostAfter.Unread != unread {
			t.Errorf("unread %d: %.20q, %+v, %v", unread, data, got.Rules, err)
		}
	}
}

// TestCompactHoldsEveryField: the compact form omits no field that filters use. Otherwise only some
// proxies would enforce the field.
func TestCompactHoldsEveryField(t *testing.T) {
	var p policy.Policy
	n := 0
	fillPolicy(t, reflect.ValueOf(&p).Elem(), &n)
	data := AppendPolicy([]byte("before"), &p, "v1")
	got, version, err := ReadPolicy(data[len("before"):])
	if err != nil || version != "v1" || !bytes.HasPrefix(data, []byte("before")) {
		t.Fatal(version, err)
	}
	for _, list := range [][]policy.Listed{p.Exempt, p.Block} {
		for i := range list {
			list[i].Reason = "" // the compact form omits it
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		r.Quota = false // the compact form omits it: filters have no descriptors
		r.Region = nil  // filters have no regions either: the bridge divides the limits
	}
	if diff := cmp.Diff(p, got, cmp.AllowUnexported(counter.Limit{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if again := AppendPolicy(nil, &got, "v1"); !bytes.Equal(again, data[len("before"):]) {
		t.Error("written again it differs")
	}
}

// TestDamagedPolicyIsRejected: every changed, missing or inserted byte is detected.
func TestDamagedPolicyIsRejected(t *testing.T) {
	p := policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "api", Match: policy.Match{Path: []string{"/api/*"}}, Limits: limittest.All(t, "10/1m")}}}
	data := AppendPolicy(nil, &p, "abc")
	for i := range data {
		for _, damaged := range [][]byte{
			append(append(bytes.Clone(data[:i]), data[i]^0x20), data[i+1:]...),
			append(bytes.Clone(data[:i]), data[i+1:]...),
			append(append(bytes.Clone(data[:i]), 'x'), data[i:]...),
			data[:i],
		} {
			if _, _, err := ReadPolicy(damaged); err == nil {
				t.Fatalf("damage at byte %d goes unnoticed: %q", i, damaged)
			}
		}
	}
}

// FuzzReadCompact: any policy that can be read is written back identically. No input makes the
// reader panic or allocate without bound.
func FuzzReadCompact(f *testing.F) {
	p := policy.Policy{Name: "shop", Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1, 2}},
		Rules: []policy.Rule{{Name: "api", Tiers: map[string]policy.LimitSet{"gold": {Unlimited: true}}}}}
	body := func(p policy.Policy) []byte {
		data := AppendPolicy(nil, &p, "abc")
		return data[len(compactHead) : len(data)-checksumBytes]
	}
	f.Add(body(policy.Policy{}))
	f.Add(body(p))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append([]byte(compactHead), data...)
		data = append(data, checksum(data)...)
		p, version, err := ReadPolicy(data)
		if err != nil {
			return
		}
		written := AppendPolicy(nil, &p, version)
		again, _, err := ReadPolicy(written)
		if err != nil || !bytes.Equal(AppendPolicy(nil, &again, version), written) {
			t.Fatalf("%v\n%x\n%x", err, data, written)
		}
	})
}
