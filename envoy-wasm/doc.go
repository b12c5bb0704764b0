// SPDX-License-Identifier: Apache-2.0

// Command envoy-wasm is the WebAssembly filter for Envoy. It adapts Envoy's callbacks to package
// filter, which does the work. It is built with GOOS=wasip1 GOARCH=wasm -buildmode=c-shared.
//
// # Promise
//
// Every callback of Envoy reaches the filter once. A panic in a callback ends the decision of one
// request and not the filter. on_error of the configuration then decides that request.
//
// # Price
//
// Each megabyte of the compiled filter adds a second to Envoy's start.
//
// # When not to use it
//
// Outside of Envoy.
package main
