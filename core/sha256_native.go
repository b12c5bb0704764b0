// SPDX-License-Identifier: Apache-2.0

//go:build !wasm

package core

import "crypto/sha256"

// sum256 returns the SHA-256 of data.
func sum256(data []byte) [32]byte { return sha256.Sum256(data) }
