// SPDX-License-Identifier: Apache-2.0

// Package usage reads the cost of a request from its response, such as the number of tokens that a
// language model used. The package finds numbers at given paths in JSON while the body passes
// through.
//
// # Promise
//
// The caller writes every chunk of the body that it forwards to a [Tap] as well. The Tap never
// waits and never fails. The Tap reads JSON documents (application/json and types that end in
// +json) and event streams (text/event-stream); of a stream, the last event that has the number
// counts. How the body is cut into chunks makes no difference. With an [Inflater] the body may be
// compressed: package inflate reads gzip and zstd.
//
// A body that the Tap cannot read has no number: a document of more than 1 MiB or one that is cut
// short, a body compressed in another way or to more than 1 MiB, JSON nested deeper than 512
// levels, or a number of more than 64 characters. An event with any of these faults is skipped, and
// so is one that is not JSON, such as "[DONE]". If an event stream is cut short, its complete
// events still count.
//
// # Price
//
// A plain body is scanned as it passes, at several hundred megabytes per second, and is not kept.
// Up to 1 MiB of a compressed body is kept, and decompressed when the body ends. The bytes that all
// taps together keep are bounded, and so are those of one source: see [Tap.CountFor]. A Tap reads
// one body, and must not be used concurrently.
//
// # When not to use it
//
// Use a JSON decoder to read anything but a few numbers.
package usage
