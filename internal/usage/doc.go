// SPDX-License-Identifier: Apache-2.0

// Package usage reads from a response what it cost, such as the tokens that a language model used: numbers at paths in
// JSON, out of a body that streams by.
//
// # Promise
//
// A [Tap] is written every chunk of the body that is also sent on. It never waits, never fails and holds nothing back. It
// reads JSON documents (application/json and what ends in +json) and event streams (text/event-stream), where the last
// event counts that has the number. Into which chunks the body is cut makes no difference. With
// an [Inflater] the body may be compressed, as by package inflate in gzip or zstd.
//
// What it cannot read has no number: a document of more than 1 MiB or one that is cut short, a body compressed in another
// way or to more than 1 MiB, JSON nested deeper than 512 levels, a number of more than 64 characters. An event that is any
// of that, or no JSON at all as "[DONE]" is, is skipped. Of an event stream that is cut short what has arrived counts.
//
// # Price
//
// A plain body is scanned as it passes, at some hundred megabytes a second, and none of it is kept. Of a compressed body
// up to 1 MiB is kept, and it is decompressed when it is over. A Tap is used for one body and by one goroutine at a time.
//
// # When not to use it
//
// To read anything but a few numbers: this is no JSON decoder.
package usage
