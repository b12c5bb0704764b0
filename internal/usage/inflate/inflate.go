// SPDX-License-Identifier: Apache-2.0

// Package inflate decompresses bodies in gzip and zstd for package usage. Programs whose binary
// size matters use package usage without it.
//
// # Promise
//
// A body is decompressed piece by piece, so only the decoder's window of the expanded body is kept
// in memory. A broken body is decompressed as far as it goes. Safe for concurrent use.
//
// # Price
//
// Decoders are large and are reused: some hundred KB for each body that is decompressed at the same
// time, and a megabyte of binary.
//
// # When not to use it
//
// In the filter for Envoy: each megabyte delays its start by a second.
package inflate

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// windowBytesMax is how far back a zstd stream may refer; browsers accept the same.
const windowBytesMax = 8 << 20

// Pools of decoders, which are large. A zstd decoder of concurrency 1 has no goroutines, so the
// garbage collector may take it.
var (
	gzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstds = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytesMax),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return (*zstd.Decoder)(nil) // unreachable: the options are constant
		}
		return d
	}}
)

// Bodies decompresses gzip and zstd.
type Bodies struct{}

// Inflates reports whether the content coding, in lower case, can be decompressed.
func (Bodies) Inflates(coding string) bool {
	return coding == "gzip" || coding == "x-gzip" || coding == "zstd"
}

// Inflate passes the decompressed body to pour, piece by piece. It stops when the body ends or is
// broken, or when pour returns false. A piece is valid until pour returns.
func (Bodies) Inflate(coding string, body []byte, pour func(piece []byte) (more bool)) {
	compressed := bytes.NewReader(body)
	if coding != "zstd" {
		d := gzips.Get().(*gzip.Reader)
		if d.Reset(compressed) == nil {
			copyPieces(d, pour)
		}
		gzips.Put(d)
		return
	}
	d := zstds.Get().(*zstd.Decoder)
	if d == nil {
		return
	}
	if d.Reset(compressed) == nil {
		copyPieces(d, pour)
	}
	if d.Reset(nil) == nil { // releases the body
		zstds.Put(d)
	}
}

func copyPieces(body io.Reader, pour func([]byte) bool) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := body.Read(buffer)
		if !pour(buffer[:n]) || err != nil {
			return
		}
	}
}
