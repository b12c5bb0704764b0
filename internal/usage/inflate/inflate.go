// SPDX-License-Identifier: Apache-2.0

// Package inflate decompresses bodies in gzip and zstd for package usage, which does without where size matters more.
//
// # Promise
//
// A body is given on piece by piece, so nothing but the decoder's window is kept of what it expands to. What is broken is
// read up to there. Safe for concurrent use.
//
// # Price
//
// The decoders are large and are used again: some hundred KB for each body that is decompressed at the same time, and a
// megabyte of binary.
//
// # When not to use it
//
// In the filter for Envoy, whose start each megabyte delays by a second.
package inflate

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

// Bodies decompresses gzip and zstd.
type Bodies struct{}

// Inflates reports whether bodies of the content coding, in lower case, can be decompressed.
func (Bodies) Inflates(coding string) bool {
	return coding == "gzip" || coding == "x-gzip" || coding == "zstd"
}

// Inflate gives the decompressed body to pour, piece by piece, until it is over or broken or pour reports false. The piece
// is valid until pour returns.
func (Bodies) Inflate(coding string, body []byte, pour func(piece []byte) (more bool)) {
	compressed := bytes.NewReader(body)
	if coding != "zstd" {
		d := gzips.Get().(*gzip.Reader)
		if d.Reset(compressed) == nil {
			give(d, pour)
		}
		gzips.Put(d)
		return
	}
	d := zstds.Get().(*zstd.Decoder)
	if d == nil {
		return
	}
	if d.Reset(compressed) == nil {
		give(d, pour)
	}
	if d.Reset(nil) == nil { // it forgets the body
		zstds.Put(d)
	}
}

func give(body io.Reader, pour func([]byte) bool) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := body.Read(buffer)
		if !pour(buffer[:n]) || err != nil {
			return
		}
	}
}
