// SPDX-License-Identifier: Apache-2.0

package compact_test

import (
	"reflect"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestCompactIdentity: every field survives a round trip, including the client's own limits.
func TestCompactIdentity(t *testing.T) {
	var id policy.Identity
	v := reflect.ValueOf(&id).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.String {
			v.Field(i).SetString(v.Type().Field(i).Name)
		}
	}
	var err error
	id.Overrides, err = policy.NewOverrides(map[string]policy.LimitSet{"*": {Limits: limittest.All(t, "5/1m", "9/day")}, "api": {Unlimited: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []policy.Identity{{}, {Kind: "ip", ID: "192.0.2.7"}, id} {
		data := compact.AppendIdentity(nil, &want)
		got, err := compact.ReadIdentity(data)
		if err != nil || got.Overrides.Rules() == nil != (want.Overrides == nil) {
			t.Fatal(got, err)
		}
		for _, rule := range want.Overrides.Rules() {
			a, _ := want.Overrides.Of(rule)
			b, ok := got.Overrides.Of(rule)
			if !ok || !reflect.DeepEqual(a, b) {
				t.Errorf("limits of %q: %v, want %v", rule, b, a)
			}
		}
		got.Overrides, want.Overrides = nil, nil
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		for i := range data {
			if _, err := compact.ReadIdentity(data[:i]); err == nil {
				t.Errorf("%x is read without its last %d bytes", data, len(data)-i)
			}
		}
	}
	if _, err := compact.ReadIdentity(compact.AppendIdentity([]byte("x"), &policy.Identity{Kind: "ip"})); err == nil {
		t.Error("something else is read")
	}
}
