// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bytes"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

// earlierEvent is a row of files that were written before events had a region.
type earlierEvent struct {
	Time     time.Time `parquet:"time,timestamp(microsecond)"`
	Event    int64     `parquet:"event"`
	Kind     string    `parquet:"kind,dict"`
	Policy   string    `parquet:"policy,dict"`
	Version  string    `parquet:"version,dict"`
	Rule     string    `parquet:"rule,dict"`
	Limit    string    `parquet:"limit,dict"`
	Decision string    `parquet:"decision,dict"`
	Status   int32     `parquet:"status"`
	Client   string    `parquet:"client,dict"`
	Tier     string    `parquet:"tier,dict"`
	IP       string    `parquet:"ip,optional,dict"`
	Method   string    `parquet:"method,dict"`
	Path     string    `parquet:"path,dict"`
	State    string    `parquet:"state,dict"`
	Reason   string    `parquet:"reason,dict"`
	Node     string    `parquet:"node,dict"`
	Seconds  float64   `parquet:"seconds"`
	Share    float32   `parquet:"share"`
	Count    int64     `parquet:"count"`
}

func (e *earlierEvent) targets() []any {
	return []any{&e.Time, &e.Event, &e.Kind, &e.Policy, &e.Version, &e.Rule, &e.Limit, &e.Decision, &e.Status, &e.Client, &e.Tier, &e.IP,
		&e.Method, &e.Path, &e.State, &e.Reason, &e.Node, &e.Seconds, &e.Share, &e.Count}
}

// TestFilesOfEarlierReleasesAreRead: a file without regions and waits has the digest that its
// release wrote, and its events have neither a region nor a wait.
func TestFilesOfEarlierReleasesAreRead(t *testing.T) {
	var file bytes.Buffer
	w, written := parquet.NewGenericWriter[earlierEvent](&file), newSummary()
	for i := range 3 {
		e := earlierEvent{Time: time.UnixMicro(1_700_000_000_000_000).UTC(), Event: int64(i), Kind: "denied", Node: "n1", Seconds: 2, Share: 1, Count: int64(1 + i)}
		written.addRow(e.targets(), []int64{e.Count})
		if _, err := w.Write([]earlierEvent{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	of := &object{Bytes: int64(file.Len()), Digest: written.digest.Sum(nil), Totals: written.totals}
	var rows [][]any
	read, err := filesOf[event]{}.read(bytes.NewReader(file.Bytes()), int64(file.Len()), func(values []any) error {
		rows = append(rows, values)
		return nil
	})
	if err == nil {
		err = of.compare(read)
	}
	if err != nil || len(rows) != 3 || rows[2][16] != "n1" || rows[2][17] != "" || rows[2][18] != 2.0 ||
		rows[2][21] != (*int64)(nil) || rows[2][22] != (*int64)(nil) {
		t.Errorf("%v, %v", err, rows)
	}
	retry, latency, other := laterRetry(0), laterLatency(0), laterRetry(1)
	digests := map[string]int{}
	for i, e := range []event{{}, {Region: "eu"}, {RetryAfterMS: &retry}, {RetryAfterMS: &other}, {LatencyUS: &latency}, {RetryAfterMS: &retry, LatencyUS: &latency}} {
		s := newSummary()
		s.addRow(e.targets(), nil)
		digest := string(s.digest.Sum(nil))
		if before, ok := digests[digest]; ok {
			t.Errorf("the events %d and %d have the same digest", before, i)
		}
		digests[digest] = i
	}
}
