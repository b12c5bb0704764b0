// SPDX-License-Identifier: Apache-2.0

//go:build !provoke && wasm

package main

import "github.com/penstock/penstock/envoy-wasm/filter"

// withProvocation returns the host unchanged. If the filter is built with the tag
// provoke, for tests, requests can make the host panic.
func withProvocation(h *host) filter.Host { return h }
