// SPDX-License-Identifier: Apache-2.0

// Package lua holds the script that takes many limits at once inside Redis, in one atomic step.
//
// It promises the decisions and the stored state of package core, to the unit and the microsecond, and needs Redis 6.2 or
// newer (tested on 7.0). take.lua states the keys, the argument and the reply; internal/redisstore speaks it. Do not call it with a
// pinned instant outside tests: counters must be decided by one clock, Redis' own.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua
var files embed.FS

// parts are the files of the script, each before those that use its functions.
var parts = []string{"exact.lua", "counter.lua", "refund.lua", "leased.lua", "fixed_window.lua",
	"sliding_window.lua", "token_bucket.lua", "sliding_log.lua", "calendar.lua", "penalty.lua", "take.lua"}

// Take is the script: the files of this folder in order.
var Take = assemble()

// TakeSHA is the name EVALSHA knows Take by.
var TakeSHA = func() string {
	sum := sha1.Sum([]byte(Take)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}()

func assemble() string {
	var script strings.Builder
	for _, part := range parts {
		text, err := files.ReadFile(part)
		if err != nil {
			panic(err) // a name in parts that is not in this folder: no build gets past its first test
		}
		script.Write(text)
	}
	return script.String()
}
