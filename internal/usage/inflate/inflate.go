// SPDX-License-Identifier: Apache-2.0

// Package inflate decompresses gzip and zstd bodies for package usage. Programs whose binary size
// matters use package usage without it. A [Queue] decompresses bodies in the background.
//
// # Promise
//
// A body is decompressed piece by piece, so only the decoder's window of the expanded body is kept
// in memory. A broken body is decompressed up to the error. The package is safe for concurrent use.
//
// # Price
//
// Decoders are large and are reused. A decoder takes a few hundred KB, and for zstd also the window
// that the body declares, up to 8 MiB. A body that expands to 16 MiB takes tens of milliseconds. A
// Queue bounds how many bodies are decompressed at the same time. The decoders add a megabyte to
// the binary.
//
// # When not to use it
//
// Do not use it in the filter for Envoy, where each megabyte delays the start by a second.
package inflate

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// windowBytesMax is the largest window of a zstd stream; browsers accept the same size.
const windowBytesMax = 8 << 20

// Pools of decoders, which are large. A zstd decoder with concurrency 1 has no goroutines, so it
// can be garbage-collected.
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

// Inflate passes the decompressed body to the function named pour, piece by piece. Inflate stops
// when the body ends or is broken, or when the function returns false. A piece is valid until the
// function returns.
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
	if d.Reset(nil) == nil { // release the body
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
