// SPDX-License-Identifier: Apache-2.0

// Package lua holds the script that takes many limits at once inside Redis, in one atomic step.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
)

//go:embed take.lua
var takeText string

// Take is the script.
var Take = takeText

// TakeSHA is the name EVALSHA knows the script by.
var TakeSHA = func() string {
	sum := sha1.Sum([]byte(Take)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}()
