// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

const (
	keyPrefix   = "rl1:"
	penaltyRule = "~penalty"
	receiptRule = "~receipt"
	// numberMax is the greatest number in a counter.
	numberMax = 1 << 53
	// Every token of a bucket has fewer parts than unitEnd.
	unitEnd = 1 << 42
)

// kind is the kind of data that a key holds. The script has the same letters.
type kind byte

const (
	kindFixed      kind = 'f'
	kindSliding    kind = 's'
	kindCalendar   kind = 'c'
	kindBucket     kind = 'b'
	kindLog        kind = 'l'
	kindViolations kind = 'v'
	kindPenalty    kind = 'p' // the end of the penalty in force
)

// kind.set reports whether a key of this kind holds a sorted set.
func (k kind) set() bool { return k == kindLog || k == kindViolations }

// meaning is what the key of a counter or a penalty says about its value.
type meaning struct {
	kind   kind
	window counter.Micros // 0 for a penalty
}

// meaningOf returns the meaning of a key. The result ok is false if the key is not one of a counter
// or a penalty. It is also false for the key of a sliding log's sum, because the sum can be
// computed from the log.
func meaningOf(key string) (m meaning, ok bool) {
	rest, ours := strings.CutPrefix(key, keyPrefix)
	space, rest, ok1 := strings.Cut(rest, ":")
	rule, rest, ok2 := strings.Cut(rest, ":")
	inner, tail, ok3 := strings.Cut(rest, "}")
	if !ours || !ok1 || !ok2 || !ok3 || !strings.HasPrefix(inner, "{") || strings.HasPrefix(space, "~") || !isPrintable(key) {
		return m, false
	}
	switch {
	case rule == penaltyRule && tail == "":
		return meaning{kind: kindViolations}, true
	case rule == penaltyRule && tail == ":until":
		return meaning{kind: kindPenalty}, true
	case strings.HasPrefix(rule, "~") && rule != receiptRule:
		return m, false
	}
	words := strings.Split(tail, ":")
	if len(words) < 3 {
		return m, false
	}
	return meaningOfLimit(words[len(words)-2], words[len(words)-1])
}

// meaningOfLimit returns the meaning of a key that ends with a window and an algorithm, such as 60s
// and sw.
func meaningOfLimit(window, algorithm string) (m meaning, ok bool) {
	for a := counter.FixedWindow; a <= counter.TokenBucket; a++ {
		if a.Label() != algorithm {
			continue
		}
		limit, err := counter.ParseLimit("1/" + window + " " + a.String())
		if err != nil {
			return m, false
		}
		m.window = limit.Window()
		switch {
		case a == counter.SlidingWindow:
			m.kind = kindSliding
		case a == counter.SlidingLog:
			m.kind = kindLog
		case a == counter.TokenBucket:
			m.kind = kindBucket
		case limit.Calendar() != 0:
			m.kind = kindCalendar
		default:
			m.kind = kindFixed
		}
		return m, true
	}
	return m, false
}

// isPrintable reports whether a key has only characters that the keys of counters have.
func isPrintable(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}

// isValid reports whether a value is one that the limiter's script would read.
func (m meaning) isValid(value string) bool {
	switch m.kind {
	case kindLog:
		return eachMember(value, ":", 2)
	case kindViolations:
		return eachMember(value, "-", 3)
	}
	numbers, ok := decimals(value, " ")
	switch {
	case !ok:
		return false
	case m.kind == kindPenalty:
		return len(numbers) == 1
	case m.kind == kindBucket:
		dips := max(0, len(numbers)-4)
		return len(numbers) >= 3 && numbers[2] >= 1 && numbers[2] < unitEnd && dips%2 == 0 && dips <= 2*counter.DipsMax
	}
	return len(numbers) == 3 || len(numbers) == 4
}

// eachMember reports whether each member of a set has the wanted number of decimals, separated by
// the separator.
func eachMember(value, separator string, want int) bool {
	for member := range strings.SplitSeq(value, " ") {
		if numbers, ok := decimals(member, separator); !ok || len(numbers) != want || numbers[1] < 1 {
			return false
		}
	}
	return true
}

// decimals parses whole numbers up to numberMax.
func decimals(text, separator string) (numbers []uint64, ok bool) {
	for word := range strings.SplitSeq(text, separator) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil || n > numberMax {
			return nil, false
		}
		numbers = append(numbers, n)
	}
	return numbers, true
}

// record is one line of a backup: a key with its value. A set may have several records.
type record struct {
	meaning
	key     string
	expires int64  // milliseconds since 1970; 0 if never
	value   string // a string, or members of a set separated by spaces
}

// parseRecord parses a line, without the end of the line.
func parseRecord(line string) (r record, ok bool) {
	expires, rest, ok1 := strings.Cut(line, " ")
	key, value, ok2 := strings.Cut(rest, " ")
	at, err := strconv.ParseUint(expires, 10, 53)
	if !ok1 || !ok2 || err != nil {
		return r, false
	}
	r = record{key: key, expires: int64(at), value: value}
	r.meaning, ok = meaningOf(key)
	return r, ok && r.isValid(value)
}

// record.append appends the record as a line.
func (r *record) append(line []byte) []byte {
	line = append(strconv.AppendInt(line, r.expires, 10), ' ')
	line = append(append(line, r.key...), ' ')
	return append(append(line, r.value...), '\n')
}
