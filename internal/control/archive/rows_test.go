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

// TestFilesOfEarlierReleasesAreRead: a file without regions has the digest that its release wrote,
// and its events have no region.
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
	if err != nil || len(rows) != 3 || rows[2][16] != "n1" || rows[2][17] != "" || rows[2][18] != 2.0 {
		t.Errorf("%v, %v", err, rows)
	}
	one, other := newSummary(), newSummary()
	with := event{Region: "eu"}
	one.addRow(with.targets(), nil)
	other.addRow(new(event).targets(), nil)
	if bytes.Equal(one.digest.Sum(nil), other.digest.Sum(nil)) {
		t.Error("the digest does not depend on the region")
	}
}
