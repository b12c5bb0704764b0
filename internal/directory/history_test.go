// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestALongHistoryIsRead tests that a history of long records can be read, although the whole of it
// exceeds the bound of one reply. People read the history, and processes read it to find changes
// that they have missed.
func TestALongHistoryIsRead(t *testing.T) {
	source := inRedis(t, redistest.Start(t).URL())
	start, err := source.Changes(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	n := max(50, racescale.Fewer(700))
	long := strings.Repeat("x", directory.RecordBytesMax)
	for i := range n {
		name := policy.ClientName{Kind: "user", ID: fmt.Sprint(i)}
		if err := source.Announce(t.Context(), name, directory.Entry{Name: name.String(), Actor: "tester", Action: "a test", Before: long, After: long}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := source.History(t.Context(), policy.ClientName{}, 20)
	if err != nil || len(all) != 20 || all[0].Name != fmt.Sprint("user:", n-1) {
		t.Errorf("%d changes, %v", len(all), err)
	}
	one, err := source.History(t.Context(), policy.ClientName{Kind: "user", ID: "0"}, 20)
	if err != nil || len(one) != 1 {
		t.Errorf("%d changes of the first client, %v", len(one), err)
	}
	changes, err := source.Changes(t.Context(), start.Position)
	if err != nil || !changes.Whole || len(changes.Names) != n || changes.Names[n-1].ID != fmt.Sprint(n-1) {
		t.Fatalf("%d missed changes, %v", len(changes.Names), err)
	}
	if again, err := source.Changes(t.Context(), changes.Position); err != nil || !again.Whole || len(again.Names) != 0 {
		t.Errorf("%d changes since then, %v", len(again.Names), err)
	}
}
