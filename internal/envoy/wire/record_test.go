// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestRecordsAreReadAlike: records are read as they were written, in their order.
func TestRecordsAreReadAlike(t *testing.T) {
	own, err := policy.NewOverrides(map[string]policy.LimitSet{"api": {Limits: limittest.All(t, "5/1m")}, "*": {Unlimited: true}})
	if err != nil {
		t.Fatal(err)
	}
	want := []*policy.ClientRecord{nil, {}, {Tier: "gold", Tenant: "t\x00é", Overrides: own}, {Blocked: true}, {Exempt: true}, {Blocked: true, Exempt: true}}
	var all []byte
	for _, r := range want {
		all = AppendRecord(all, r)
	}
	rest := string(all)
	for i, r := range want {
		text, others, ok := CutRecord(rest)
		got, err := ReadRecord(text)
		if rest = others; !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		if diff := cmp.Diff(r, got, cmpopts.IgnoreFields(policy.ClientRecord{}, "Overrides")); diff != "" {
			t.Errorf("record %d: %s", i, diff)
		}
		if r == nil || r.Overrides == nil {
			continue
		}
		if limits, ok := got.Overrides.Of("api"); !ok || len(limits.Limits) != 1 || limits.Limits[0].Window() != counter.Minute {
			t.Errorf("record %d has the limits %v", i, limits)
		}
	}
	if _, _, ok := CutRecord(rest); ok || rest != "" {
		t.Errorf("%q is left", rest)
	}
}

// FuzzReadRecord: any text of records is read or rejected, without a panic.
func FuzzReadRecord(f *testing.F) {
	f.Add(string(AppendRecord(AppendRecord(nil, nil), &policy.ClientRecord{Tier: "gold", Blocked: true})))
	f.Fuzz(func(t *testing.T, records string) {
		for ok := true; ok && records != ""; {
			var text string
			before := len(records)
			if text, records, ok = CutRecord(records); ok && len(records) >= before {
				t.Fatal("nothing is cut")
			}
			if r, err := ReadRecord(text); err == nil && r != nil {
				_ = AppendRecord(nil, r)
			}
		}
	})
}
