// SPDX-License-Identifier: Apache-2.0

package main

import "hash/maphash"

// random returns a number that differs in every worker: the seed of a hash is random, and crypto/rand is larger.
func random() uint64 { return maphash.String(maphash.MakeSeed(), "") }
