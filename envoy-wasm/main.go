// SPDX-License-Identifier: Apache-2.0

package main

// main does nothing: Envoy calls the functions that package abi exports. For targets
// other than WebAssembly, the program is empty.
func main() {}
