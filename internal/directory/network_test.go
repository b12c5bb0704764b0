// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestNetworksStayReadable tests that the records of networks never become too long to be read. If
// they did, a process that starts later would block none of them.
func TestNetworksStayReadable(t *testing.T) {
	source := inRedis(t, redistest.Start(t).URL())
	reason := strings.Repeat("r", 400)
	texts := map[string][]byte{}
	fill := func(n int) error {
		for i := len(texts); i < n; i++ {
			texts[fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)] = (&directory.Record{Block: &directory.Mark{Reason: reason}}).Text()
		}
		return source.FillNetworks(t.Context(), texts)
	}
	read := func(n int) {
		t.Helper()
		if all, err := source.Networks(t.Context()); err != nil || len(all) != n {
			t.Fatalf("%d networks are read, %v; want %d", len(all), err, n)
		}
	}
	const some = 2400
	if err := fill(some); err != nil {
		t.Fatal(err)
	}
	read(some)
	if err := fill(some + 200); !errors.Is(err, directory.ErrEdit) {
		t.Errorf("too many are written: %v", err)
	}
	read(some)
	editor := directory.Editor{Source: source}
	block := func(i int) error {
		_, err := editor.Apply(context.Background(), directory.Edit{Client: fmt.Sprintf("ip:192.0.%d.%d", i>>8, i&255), Action: directory.ActionBlock,
			Actor: "tester", Reason: reason})
		return err
	}
	added, err := 0, error(nil)
	for ; added < 100; added++ {
		if err = block(added); err != nil {
			break
		}
	}
	if !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), "forget some") {
		t.Errorf("after %d more blocks: %v", added, err)
	}
	read(some + added)
	if _, err := editor.Apply(t.Context(), directory.Edit{Client: "ip:192.0.0.0", Action: directory.ActionForget, Actor: "tester", Reason: "a test"}); err != nil {
		t.Error(err)
	}
	read(some + added - 1)
}
