// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// windowBytesMax is how far back a zstd stream may refer: what browsers take.
const windowBytesMax = 8 << 20

// Decoders are large and are used again. A zstd decoder of concurrency 1 has no goroutines, so it may be forgotten.
var (
	gzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstds = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytesMax),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return (*zstd.Decoder)(nil) // the options are constant, so this is not reached
		}
		return d
	}}
)

// inflate reads the body that was kept. What is broken is read up to there, as a body that was cut short is.
func (t *Tap) inflate() {
	compressed := bytes.NewReader(t.kept)
	switch t.coding {
	case codingGzip:
		d := gzips.Get().(*gzip.Reader)
		if d.Reset(compressed) == nil {
			t.pour(d)
		}
		gzips.Put(d)
	case codingZstd:
		d := zstds.Get().(*zstd.Decoder)
		if d == nil {
			return
		}
		if d.Reset(compressed) == nil {
			t.pour(d)
		}
		if d.Reset(nil) == nil { // it forgets the body
			zstds.Put(d)
		}
	}
}

// pour reads the decompressed body, as much of it as is read.
func (t *Tap) pour(body io.Reader) {
	buffer := make([]byte, 16<<10)
	for total := 0; t.coding != codingUnreadable; {
		n, err := body.Read(buffer)
		if total += n; total > inflatedBytesMax {
			t.coding = codingUnreadable
			t.results = nil // the last report is not among what was read
			return
		}
		t.plain(buffer[:n])
		if err != nil {
			return
		}
	}
}
