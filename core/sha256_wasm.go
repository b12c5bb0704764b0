// SPDX-License-Identifier: Apache-2.0

//go:build wasm

package core

// sum256 returns the SHA-256 of data.
func sum256(data []byte) [32]byte { return sha256Pure(data) }
