// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestIdentifiersOfAnyBytes tests that different long identifiers, of any bytes, name different
// clients. A client that can be named has its own record, history and place in the list. A client
// whose identifier is not UTF-8 cannot be named, and does not get the record of any other client.
func TestIdentifiersOfAnyBytes(t *testing.T) {
	long := func(text string) string { return strings.Repeat(text, 255)[:255] }
	named := []string{long("é")[:254], long("\x00"), long("\r\n"), long("{~directory}"), long("*?[^]\\"), long(":"), long("\ufffd"), long("\x1b[2J"), long(" ")}
	var everyByte strings.Builder
	for b := range 255 {
		everyByte.WriteByte(byte(b + 1))
	}
	tierOf := func(id string) string { return fmt.Sprint("tier-", slices.Index(named, id)) } // an index, because a tier must not have control characters
	unnamed := []string{long("\xff"), long("\xc3"), everyByte.String(), long("\xed\xa0\x80")}
	sources(t, func(t *testing.T, source directory.Source) {
		d := open(t, directory.Options{Source: source})
		for _, id := range slices.Concat(named, unnamed) {
			if r := fetch(t, d, "header.x-user", id); r != nil {
				t.Errorf("%.20q has a record before any change", id)
			}
		}
		editor := &directory.Editor{Source: source}
		for _, id := range named {
			edit(t, source, directory.Edit{Client: "header.x-user:" + id, Action: directory.ActionSetTier, Tier: tierOf(id)})
		}
		for _, id := range named {
			eventually.Until(t, 20*time.Second, "the tier is in force", func() bool {
				r, ok := d.Find("header.x-user", id, now())
				return ok && r != nil && r.Tier == tierOf(id)
			})
			name, r, err := editor.Look(t.Context(), "header.x-user:"+id)
			if err != nil || r == nil || name.ID != id {
				t.Errorf("%.20q is shown as %q with %+v, %v", id, name, r, err)
			}
			if all, err := source.History(t.Context(), name, 10); err != nil || len(all) != 1 {
				t.Errorf("%.20q has the history %v, %v", id, all, err)
			}
		}
		for _, id := range unnamed {
			_, err := editor.Apply(t.Context(), directory.Edit{Client: "header.x-user:" + id, Action: directory.ActionBlock, Actor: "x", Reason: "y"})
			if !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), "is not UTF-8") {
				t.Errorf("%.20q can be named: %v", id, err)
			}
			if r, ok := d.Find("header.x-user", id, now()); !ok || r != nil {
				t.Errorf("%.20q has %+v, %v", id, r, ok)
			}
		}
		listed := map[string]bool{}
		for query := (directory.ListQuery{Kind: "header.x-user", Most: 5}); ; {
			page, err := editor.List(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range page.Clients {
				listed[one.Client] = one.Record != nil
			}
			if query.After = page.After; page.After == "" {
				break
			}
		}
		for _, id := range named {
			if !listed["header.x-user:"+id] {
				t.Errorf("%.20q is not in the list", id)
			}
		}
		if len(listed) != len(named) || d.Figures().Bad.Load() != 0 {
			t.Errorf("%d clients are in the list, want %d; %d records are bad", len(listed), len(named), d.Figures().Bad.Load())
		}
	})
}
