// SPDX-License-Identifier: Apache-2.0

//go:build wasm

package main

import "hash/maphash"

// random returns a number that differs in every worker. It uses the seed of a hash, because
// crypto/rand is larger.
func random() uint64 { return maphash.String(maphash.MakeSeed(), "") }
