// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/store/redisadmin"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

// BenchmarkHalfAMillion writes a backup of 500,000 counters, and restores it into an empty Redis
// and into one that has the counters already:
//
//	go test -run '^$' -bench HalfAMillion -benchtime 1x ./internal/store/redisbackup
func BenchmarkHalfAMillion(b *testing.B) {
	const counters = 500_000
	s := redistest.StartTCP(b)
	client := s.Client()
	at := time.Now().Truncate(time.Hour).UnixMicro()
	for begin := 0; begin < counters; begin += 1000 {
		pipe := client.Pipeline()
		for i := range 1000 {
			pipe.Set(b.Context(), fmt.Sprintf("rl1:shop:api:{user:u_%d}:3600s:sw", begin+i), fmt.Sprintf("%d %d 7", at, i), 2*time.Hour)
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	servers, err := redisadmin.Connect(b.Context(), redisadmin.Options{Redis: redisstore.Options{URL: s.URL()}})
	if err != nil {
		b.Fatal(err)
	}
	defer servers.Close() //nolint:errcheck // nothing was written
	file, err := os.Create(b.TempDir() + "/counters.txt")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // the file was only read
	measure := func(name string, do func() (fmt.Stringer, error)) {
		begin := time.Now()
		result, err := do()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(begin).Seconds(), name+"-s")
		b.Logf("%s: %v", name, result)
	}
	for range b.N {
		if err := file.Truncate(0); err != nil {
			b.Fatal(err)
		}
		measure("backup", func() (fmt.Stringer, error) { return Write(b.Context(), servers, file) })
		measure("merge", func() (fmt.Stringer, error) { return Restore(b.Context(), servers, file, false) })
		if err := client.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		measure("restore", func() (fmt.Stringer, error) { return Restore(b.Context(), servers, file, false) })
		if _, err := file.Seek(0, 0); err != nil {
			b.Fatal(err)
		}
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	size, err := file.Stat()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(memory.HeapSys)/1e6, "heap-MB")
	b.ReportMetric(float64(size.Size())/counters, "file-B/counter")
	b.ReportMetric(0, "ns/op")
}
