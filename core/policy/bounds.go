// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// Bounds of a policy. The bounds keep a generated or malicious policy from exhausting the proxy's
// memory.
const (
	RulesMax     = 100_000 // rules of a policy; that many rules compile within seconds
	NameBytesMax = 64      // bytes of a name, which is part of every key, metric and header field
	// dimensions of a rule; with ValueBytesMax, this bounds the length of a key
	DimensionsMax = 8
	IdentifyMax   = 16 // ways to identify a client; a request can try them all
	CostsMax      = 64 // entries of a rule's cost list; a request can try them all
)

// HiddenByDefault reports whether response headers omit the rule's limits unless the rule sets
// Expose.
func HiddenByDefault(source *Rule) bool { return source.PerNone || source.Action == ActionLogOnly }

// RuleAt returns the path of the i-th rule in a [Problem].
func RuleAt(i int) string { return "rules[" + strconv.Itoa(i) + "]" }

// Bounds of a throttle.
const (
	DelayMax   = counter.Minute // a waiting request holds a connection, and clients give up
	WaitingMax = 100_000        // waiting requests of one counter: each holds memory
)

// isName reports whether the name is valid for a rule.
func isName(name string) bool {
	return name != "" && len(name) <= NameBytesMax && !strings.ContainsFunc(name, NotNameRune)
}

// NotNameRune reports whether the character is not allowed in the name of a rule.
func NotNameRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
}

// Bounds of a response to a denied request.
const (
	RetryAfterMax  = 366 * counter.Day // a quota may span a year
	RetryJitterMax = counter.Day       // a longer time would have the effect of another limit
)

// Bounds of the parts of a request.
const (
	// the greatest length of joined header lines, and of an Authorization field that is read
	CarrierBytesMax = 64 << 10
)

// PathBytesMax is the greatest length of a path that rules are matched against.
const PathBytesMax = 8 << 10
