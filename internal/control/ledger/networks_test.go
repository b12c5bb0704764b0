// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/directory"
)

// TestNetworksThatCannotBePublishedAreNotWritten tests that the records of networks do not become
// longer than a directory can read. If the records were longer, no change of any client could be
// published.
func TestNetworksThatCannotBePublishedAreNotWritten(t *testing.T) {
	t.Parallel()
	l := open(t)
	reason := strings.Repeat("r", 400)
	if _, err := l.Pool.Exec(t.Context(), "INSERT INTO clients (kind, id, revision, updated_at) "+
		"SELECT 'ip', '10.0.' || n / 256 || '.' || n % 256, 1, now() FROM generate_series(0, 2399) n"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Pool.Exec(t.Context(), "INSERT INTO blocks (kind, id, reason) SELECT kind, id, $1 FROM clients", reason); err != nil {
		t.Fatal(err)
	}
	block := directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock, Reason: "a test"}
	if _, err := l.Edit(t.Context(), ops, block, If{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Pool.Exec(t.Context(), "UPDATE blocks SET reason = reason || $1 WHERE id LIKE '10.%'", strings.Repeat("r", 50)); err != nil {
		t.Fatal(err)
	}
	block.Client, block.Reason = "ip:198.51.100.0/24", "another"
	_, err := l.Edit(t.Context(), ops, block, If{})
	invalid := (*Invalid)(nil)
	if !errors.As(err, &invalid) || invalid.Place != "client" || !strings.Contains(invalid.Text, "forget some") {
		t.Errorf("one more: %v", err)
	}
	block.Client = "user:ann"
	if _, err := l.Edit(t.Context(), ops, block, If{}); err != nil {
		t.Errorf("a client that is no network: %v", err)
	}
	if _, err := l.Edit(t.Context(), ops, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionForget, Reason: "a test"}, If{}); err != nil {
		t.Errorf("one fewer: %v", err)
	}
}
