// SPDX-License-Identifier: Apache-2.0

// Command envoy-wasm is the WebAssembly filter for Envoy. The command adapts Envoy's callbacks to
// package filter, which does the work. The command is built with GOOS=wasip1 GOARCH=wasm
// -buildmode=c-shared -tags penstock_filter. The tag leaves out the parts of package core that need
// a store, a calendar or the text of a policy.
//
// # Promise
//
// Every callback of Envoy reaches the filter once. A panic in a callback affects only one request,
// which on_error of the configuration then decides.
//
// # Price
//
// Each megabyte of the compiled filter adds a second to Envoy's start.
//
// # When not to use it
//
// This program is useful only in Envoy.
package main
