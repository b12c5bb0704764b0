// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/s3test"
)

// controlPlane.run runs a command of penstock control. The command has the token and the database
// of the control plane, and the keys of the S3 server.
func (c *controlPlane) run(database string, args ...string) commandResult {
	c.t.Helper()
	var out, diagnostics bytes.Buffer
	command := exec.Command(penstockProgram(c.t), append([]string{"control"}, args...)...)
	command.Stdout, command.Stderr = &out, &diagnostics
	command.Env = append(append(os.Environ(), "PENSTOCK_DATABASE="+database, "PENSTOCK_TOKEN="+c.token), s3test.Environment()...)
	_ = command.Run() // the exit status shows how the command ended
	return commandResult{out.String(), diagnostics.String(), command.ProcessState.ExitCode()}
}

// TestAMonthIsBilledAndArchived runs the processes of an installation for a month of billing. A
// client uses a part of its quota, and the receiver of notices is called. Later a month is
// archived, verified and restored.
func TestAMonthIsBilledAndArchived(t *testing.T) {
	t.Parallel()
	database, redis, s3 := pgtest.Database(t), redistest.Start(t), s3test.Start(t)
	var told atomic.Pointer[string]
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct {
			Data struct {
				Client        string
				Percent, Used int
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		text := fmt.Sprint(m.Data, strings.HasPrefix(r.Header.Get("Webhook-Signature"), "v1,"))
		told.Store(&text)
	}))
	t.Cleanup(receiver.Close)
	secret := filepath.Join(t.TempDir(), "secret")
	penstock(t, "control", "threshold", "secret", secret).mustSucceed(t)
	control := startControl(t, database, redis.URL(), "", "--webhook-secret", secret, "--webhook-allow", "127.0.0.0/8")
	at := "--control=http://" + control.address
	control.run("", "threshold", "put", "quota", at, "--policy=shop", "--rule=api", "--units=1000", "--percents=80", "--url="+receiver.URL, "--reason=billing").mustSucceed(t)
	node, err := os.ReadFile(control.nodeToken())
	if err != nil {
		t.Fatal(err)
	}
	admin := control.token
	control.token = strings.TrimSpace(string(node))
	line := `{"time":"` + time.Now().UTC().Format(time.RFC3339) + `","kind":"usage","policy":"shop","rule":"api","client":"user:ann","admitted":1,"units":850}`
	if status, text := control.send("PUT", "/v1/batches/"+strings.Repeat("a", 32)+"/1", line); status != http.StatusOK {
		t.Fatal(status, text)
	}
	control.token = admin
	eventually.Until(t, controlPatience, "the receiver is told", func() bool { return told.Load() != nil })
	if got := *told.Load(); got != "{user:ann 80 850} true" {
		t.Errorf("the receiver was told %s", got)
	}
	eventually.Until(t, controlPatience, "the notice is delivered", func() bool {
		return strings.Contains(control.run("", "threshold", "notices", "quota", at).mustSucceed(t), "delivered")
	})
	archiveAMonth(t, control, database, s3)
}

// archiveAMonth archives a month of events, verifies and restores it, and finally damages the
// archive.
func archiveAMonth(t *testing.T, control *controlPlane, database string, s3 *s3test.Server) {
	t.Helper()
	const month = "rate_limit_events_2025_01"
	c, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := c.Exec(t.Context(), "SET search_path = penstock; CREATE TABLE "+month+" PARTITION OF rate_limit_events FOR VALUES FROM ('2025-01-01') TO ('2025-02-01');"+
		"INSERT INTO "+month+" SELECT '2025-01-05'::timestamptz + n * interval '1 s', n, 'denied', 'shop', '', 'api', '9/1m', 'denied', 429, 'user:ann', '', NULL, 'GET', "+
		"'/', '', '', 'n', 0, 1, 2 FROM generate_series(1, 3000) n"); err != nil {
		t.Fatal(err)
	}
	place := []string{"--archive=s3://" + s3test.Bucket + "/shop", "--archive-endpoint=" + s3.URL(), "--archive-region=us-east-1"}
	archive := func(args ...string) commandResult {
		t.Helper()
		return control.run(database, append(append([]string{"archive"}, args...), place...)...)
	}
	if r := archive("run"); r.status != 0 || !strings.Contains(r.out, month+" is in the archive") {
		t.Fatalf("%+v", r)
	}
	if out := control.run(database, "archive", "list").mustSucceed(t); !strings.Contains(out, "dropped") || !strings.Contains(out, "3000") {
		t.Errorf("the list is %s", out)
	}
	if out := archive("verify").mustSucceed(t); !strings.Contains(out, month+" is as it was written: 3000 rows") {
		t.Errorf("the check prints %s", out)
	}
	archive("restore", month, "--for=2d").mustSucceed(t)
	var rows, events int
	if err := c.QueryRow(t.Context(), "SELECT count(*), sum(events) FROM rate_limit_events WHERE at < '2025-02-01'").Scan(&rows, &events); err != nil || rows != 3000 || events != 6000 {
		t.Errorf("%d rows with %d events are restored, %v", rows, events, err)
	}
	objects, err := filepath.Glob(filepath.Join(s3.Folder, "shop", "2025", "01", "events-*.parquet"))
	if err != nil || len(objects) != 1 {
		t.Fatalf("the objects are %q, %v", objects, err)
	}
	if err := os.Truncate(objects[0], 100); err != nil {
		t.Fatal(err)
	}
	archive("verify", month).mustFail(t, month, "100 bytes")
}
