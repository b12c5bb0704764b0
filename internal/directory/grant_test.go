// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// TestGrants tests that a grant is kept with its instant, that the next edit after the end of its
// window drops it, and that an edit removes the grants of a rule.
func TestGrants(t *testing.T) {
	now := time.Date(2026, 2, 10, 10, 20, 0, 0, time.UTC)
	apply := func(before *directory.Record, e directory.Edit) *directory.Record {
		t.Helper()
		e.Client, e.Actor, e.Reason = "user:ann", "x", "y"
		after, err := e.After(before, now)
		if err != nil {
			t.Fatal(err)
		}
		again, err := directory.ParseRecord(after.Text())
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	r := apply(nil, directory.Edit{Action: directory.ActionGrant, Rule: "api", Units: 5, Window: "1h"})
	r = apply(r, directory.Edit{Action: directory.ActionGrant, Rule: "api", Units: 6, Window: "month"})
	r = apply(r, directory.Edit{Action: directory.ActionGrant, Rule: "other", Units: 7})
	if len(r.Grants) != 3 || !r.Grants[0].At.Equal(now) || r.Grants[0].Units != 5 {
		t.Fatalf("%+v", r.Grants)
	}
	for _, c := range []struct {
		at   string
		left int
	}{{"2026-02-10T10:59:59Z", 3}, {"2026-02-10T11:00:00Z", 2}, {"2026-03-12T00:00:00Z", 2}, {"2026-03-16T00:00:00Z", 1}, {"2027-02-12T00:00:00Z", 1}, {"2027-02-14T00:00:00Z", 0}} {
		now, _ = time.Parse(time.RFC3339, c.at)
		if after := apply(r, directory.Edit{Action: directory.ActionNote, Note: "x"}); len(after.Grants) != c.left {
			t.Errorf("at %s %d grants are left, want %d", c.at, len(after.Grants), c.left)
		}
	}
	if len(r.Grants) != 3 {
		t.Error("an edit changed the record before it")
	}
	now = r.Grants[0].At
	if after := apply(r, directory.Edit{Action: directory.ActionUngrant, Rule: "api"}); len(after.Grants) != 1 || after.Grants[0].Rule != "other" {
		t.Errorf("without the grants of api: %+v", after.Grants)
	}
}

// TestBadGrants tests that invalid grants, and grants beyond the bound, are rejected.
func TestBadGrants(t *testing.T) {
	full := new(directory.Record)
	for range policy.GrantsMax {
		full.Grants = append(full.Grants, directory.Grant{Rule: "api", Units: 1, At: time.Now()})
	}
	for want, e := range map[string]directory.Edit{
		"17 grants are too many":    {Action: directory.ActionGrant, Rule: "api", Units: 1},
		"-1 units are out of":       {Action: directory.ActionGrant, Rule: "api", Units: -1},
		"units is missing":          {Action: directory.ActionGrant, Rule: "api"},
		"rule is missing":           {Action: directory.ActionGrant, Units: 1},
		"is not the name of a rule": {Action: directory.ActionGrant, Rule: "*", Units: 1},
		"window of a grant":         {Action: directory.ActionGrant, Rule: "api", Units: 1, Window: "fortnight"},
		"window does not go with":   {Action: directory.ActionUngrant, Window: "1h"},
		"has no grant for rule":     {Action: directory.ActionUngrant, Rule: "other"},
		"no grant whose window may": {Action: directory.ActionUngrant},
	} {
		e.Client, e.Actor, e.Reason = "user:ann", "x", "y"
		before := full
		if !strings.HasPrefix(want, "17") && (e.Action == directory.ActionGrant || e.Rule == "") {
			before = nil
		}
		if _, err := e.After(before, time.Now()); !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", e, err, want)
		}
	}
}
