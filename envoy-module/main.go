// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command envoy-module is Penstock as a native module of Envoy, libpenstock.so. The module is built
// with -buildmode=c-shared; "make build" does so. Package abi has the functions that Envoy calls,
// and package front decides.
package main

import (
	_ "github.com/penstock/penstock/envoy-module/abi" // exports the functions that Envoy calls
)

func main() {}
