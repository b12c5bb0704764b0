// SPDX-License-Identifier: Apache-2.0

package core

import "testing"

func TestLeasable(t *testing.T) {
	for text, want := range map[string]bool{
		"10/1m": true, "10/1s": true, "10/999ms": false, "10/1m fixed_window": true, "10/500ms fixed_window": false,
		"10/1s burst 20": true, "10/100ms burst 20": false, "10/1m sliding_log": false, "10/day": true, "10/month": true,
	} {
		l := mustLimit(t, text)
		if got := l.Leasable(); got != want {
			t.Errorf("%s can be leased: %v, want %v", text, got, want)
		}
	}
	if new(Limit).Leasable() {
		t.Error("the zero limit can be leased")
	}
}

func TestVerifyRefusesUnknownLeases(t *testing.T) {
	p := Policy{Lease: LeaseAuto + 1, Rules: []Rule{{Name: "a", Limits: limits(t, "1/1m"), Lease: LeaseAuto + 1},
		{Name: "b", Action: ActionBlock, Lease: LeaseOff}}}
	_, err := Compile(p)
	problems, _ := err.(Problems)
	var paths []string
	for _, problem := range problems {
		paths = append(paths, problem.Path)
	}
	if want := []string{"lease", "rules[0].lease", "rules[1].lease"}; len(paths) != 3 || paths[0] != want[0] ||
		paths[1] != want[1] || paths[2] != want[2] {
		t.Errorf("problems at %q, want %q", paths, want)
	}
}
