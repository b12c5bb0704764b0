// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/racescale"
)

// The environment variables of a process that publishes, and is killed at a step.
const (
	childDatabase = "PENSTOCK_TEST_DATABASE"
	childRedis    = "PENSTOCK_TEST_REDIS"
	childStep     = "PENSTOCK_TEST_STEP"
)

// child publishes until it kills its own process.
func child() int {
	url := os.Getenv(childDatabase)
	config, err := database.Config(url)
	if err != nil {
		panic(err)
	}
	pool, err := database.Open(context.Background(), url)
	if err != nil {
		panic(err)
	}
	store, err := redisstore.New(redisstore.Options{URL: os.Getenv(childRedis), Timeout: redisstore.TimeoutMax})
	if err != nil {
		panic(err)
	}
	p := &Publisher{Database: config.ConnConfig, Ledger: &ledger.Ledger{Pool: pool}, Source: redisdir.New(store), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	p.step = func(step string) {
		if step == os.Getenv(childStep) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.Run(ctx)
	return 1
}

// runKilled runs a process that publishes until it is killed at a step.
func (p *plane) runKilled(step string) {
	p.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDatabase+"="+p.url, childRedis+"="+p.redis.URL(), childStep+"="+step)
	out, err := cmd.CombinedOutput()
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() {
		p.t.Fatalf("the process was not killed at the step %q: %v\n%s", step, err, out)
	}
}

// TestKilledAtEachStep kills a process at each step, while it writes all records or publishes a
// change. The process must leave no generation in a Redis that lacks records, and the next process
// must bring Redis to the state of the rows. The rows change between the two processes.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.writeClients(3 * pageMax)
	p.editKey(newKey("ann"))
	_, end := p.start()
	p.awaitsRows("Redis is filled")
	end()
	steps := []string{"begin", "announce", "page", "names", "strange", "end", "record", "changes", "published"}
	for i, step := range steps[:racescale.Fewer(len(steps))] {
		if step != "changes" && step != "published" {
			p.flush()
		}
		client := fmt.Sprint("user:m_", i+1)
		p.block(fmt.Sprint("user:new_", i))
		p.runKilled(step)
		if have, all := p.records(), p.rows(); p.isComplete() && len(have) < len(all)-1 {
			t.Errorf("after a kill at the step %q, there is a generation, and %d of %d records", step, len(have), len(all))
		}
		p.edit(directory.Edit{Client: client, Action: directory.ActionForget})
		_, end := p.start()
		p.awaitsRows("the rows are in Redis after a kill at the step " + step)
		eventually.Until(t, patience, "the key is in Redis", func() bool { return strings.HasPrefix(p.keys("ann"), hashed("ann")[:8]) })
		end()
	}
}
