// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// TestABridgeOutlivesTheReaderOfItsLog tests that a bridge goes on after the reader of its log and
// of its events has gone.
func TestABridgeOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	policy := newAlternatingFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	b := &attackedBridge{address: freeport.Address(t)}
	command := exec.Command("sh", "-c", `exec "$@" >&3 2>&3 3>&-`, "sh", penstockProgram(t), "bridge", "--listen", b.address, "--policy", policy.write("rules: [{name: api, limit: 100/1h}]"))
	command.ExtraFiles = []*os.File{write}
	b.server = startServer(t, command)
	_, _ = write.Close(), read.Close()
	eventually.Until(t, patience, "the bridge answers", func() bool {
		b.mustRun()
		status, _, err := b.post("application/json", []byte(`{"path":"/","ip":"192.0.2.7"}`))
		return err == nil && status < 500
	})
	_, version := b.checkJSON(t, "/")
	for limit := 101; limit < 105; limit++ {
		policy.write(fmt.Sprintf("rules: [{name: api, limit: %d/1h}]", limit))
		b.signal(syscall.SIGHUP)
		eventually.Until(t, patience, "the bridge reads its policy, and logs it", func() bool {
			b.mustRun()
			_, now := b.checkJSON(t, "/")
			changed := now != version
			version = now
			return changed
		})
	}
}
