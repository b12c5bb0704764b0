// SPDX-License-Identifier: Apache-2.0

//go:build !provoke

package main

import "github.com/penstock/penstock/envoy-wasm/filter"

// provoked returns the host as it is; built with the tag provoke, requests can make it panic, for tests.
func provoked(h filter.Host) filter.Host { return h }
