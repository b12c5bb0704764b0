// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command envoy-module is Penstock's native module for Envoy, libpenstock.so. "make build" builds
// it with -buildmode=c-shared. Package abi has the functions that Envoy calls, and package front
// decides requests.
package main

import (
	_ "github.com/penstock/penstock/envoy-module/abi" // exports the functions that Envoy calls
)

func main() {}
