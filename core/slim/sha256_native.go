// SPDX-License-Identifier: Apache-2.0

//go:build !wasm

package slim

import "crypto/sha256"

// SHA256 returns the SHA-256 of data.
func SHA256(data []byte) [32]byte { return sha256.Sum256(data) }
