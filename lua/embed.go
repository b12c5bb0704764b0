// SPDX-License-Identifier: Apache-2.0

// Package lua holds the script that decides many limits at once inside Redis, in one atomic step.
//
// Its decisions and stored state equal those of package core/counter, to the unit and the
// microsecond. The package needs Redis 6.2 or newer (tested on 7.0). take.lua documents the keys,
// the argument and the reply; internal/store/redisstore calls it. Do not pass a fixed instant
// outside tests: only the clock of Redis may decide the requests for a counter.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua
var files embed.FS

// parts holds the files of the script. Each file comes before those that use its functions.
var parts = []string{"intmath.lua", "counter.lua", "refund.lua", "lease.lua", "fixed_window.lua",
	"sliding_window.lua", "token_bucket.lua", "sliding_log.lua", "calendar.lua", "penalty.lua", "take.lua"}

// Take is the script: the concatenation of its parts.
var Take = assemble(parts)

// IntMath is the text of the integer arithmetic, for other scripts.
var IntMath = textOf("intmath.lua")

// TakeSHA is the name of Take for EVALSHA.
var TakeSHA = shaOf(Take)

// Script is a script beside Take.
type Script struct {
	Text string
	SHA  string // its name for EVALSHA
}

// The scripts by which regions tell each other what they have counted.
var (
	GossipOwn  = newScript("counter.lua", "fixed_window.lua", "calendar.lua", "gossip.lua", "gossip_own.lua")
	GossipHear = newScript("counter.lua", "fixed_window.lua", "calendar.lua", "gossip.lua", "gossip_hear.lua")
	GossipMark = newScript("gossip_mark.lua")
	GossipPage = newScript("gossip_page.lua")
	// GossipEpoch returns a word that changes when Redis has lost its data.
	GossipEpoch = newScript("gossip_epoch.lua")
)

// Writeoffs replaces the state of the regions.
var Writeoffs = newScript("writeoff.lua")

func newScript(parts ...string) *Script {
	text := assemble(parts)
	return &Script{Text: text, SHA: shaOf(text)}
}

func shaOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}

func assemble(parts []string) string {
	var script strings.Builder
	for _, part := range parts {
		script.WriteString(textOf(part))
	}
	return script.String()
}

func textOf(part string) string {
	text, err := files.ReadFile(part)
	if err != nil {
		panic(err) // unreachable after the first test: there is no such file
	}
	return string(text)
}
