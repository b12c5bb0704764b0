// SPDX-License-Identifier: Apache-2.0

package main

// main does nothing: Envoy calls the functions that package abi exports. On other machines than
// WebAssembly's, the program is empty.
func main() {}
