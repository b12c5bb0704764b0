// SPDX-License-Identifier: Apache-2.0

// Command envoy-wasm is the WebAssembly filter for Envoy: the adapter between Envoy's calls and package filter, which
// does the work. It is built with GOOS=wasip1 GOARCH=wasm -buildmode=c-shared.
//
// # Promise
//
// Every call of Envoy's is handed to the filter once, and a panic in there ends one request's decision and not the
// filter: the request then goes on, or is refused, as the configuration's on_error says.
//
// # Price
//
// What it imports costs Envoy a second of start-up for each megabyte.
//
// # When not to use it
//
// Outside of Envoy.
package main
