// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
)

// Story is one story of a vector file: a store that was empty is asked these steps in turn. The format is described in
// core/testdata/vectors/README.md.
type Story struct {
	Name  string
	Steps []Step
}

// Step is one call of a story.
type Step struct {
	Line    int    // in the file
	Text    string // as written
	At      core.Micros
	Checks  []core.Check
	Want    [][]Expectation // for each check, what is said about its answer; what is not said is not looked at
	Invalid bool            // the call is wrong, and there are no answers

	receipts map[int]string // by check: which answer's receipt it gives back
	names    []string       // by check: what its receipt is called from here on; "" if it is not used
}

// Expectation is a number that an answer must have: refused (0 or 1), granted, remaining; wait, reset, next in µs.
type Expectation struct {
	Field string
	Value int64
}

// storyTeller reads one file.
type storyTeller struct {
	stories  []Story
	limits   map[string]core.Limit
	receipts map[string]bool
	now      time.Time
}

// ParseStories reads a vector file. The error names the line.
func ParseStories(text string) ([]Story, error) {
	p := &storyTeller{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		var err error
		switch {
		case line == "":
		case word == "story":
			p.begin(rest)
		case len(p.stories) == 0:
			err = fmt.Errorf("%q stands before the first story", line)
		case word == "limit":
			err = p.limit(rest)
		case word == "at":
			err = p.at(rest)
		default:
			err = p.step(n, line)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return p.stories, lines.Err()
}

func (p *storyTeller) begin(name string) {
	p.stories = append(p.stories, Story{Name: name})
	p.limits = map[string]core.Limit{}
	p.receipts = map[string]bool{"none": true}
	p.now = time.UnixMicro(int64(start)).UTC()
}

// limit reads NAME LIMIT.
func (p *storyTeller) limit(text string) error {
	name, text, _ := strings.Cut(text, " ")
	l, err := core.ParseLimit(strings.TrimSpace(text))
	p.limits[name] = l
	return err
}

// at reads [YYYY-MM-DD] HH:MM:SS[.ffffff], or + or - and a span.
func (p *storyTeller) at(text string) error {
	if text == "" {
		return fmt.Errorf("at what time?")
	}
	if sign := text[0]; sign == '+' || sign == '-' {
		span, err := parseSpan(text[1:])
		if sign == '-' {
			span = -span
		}
		p.now = time.UnixMicro(p.now.UnixMicro() + int64(span)).UTC()
		return err
	}
	if !strings.Contains(text, " ") {
		text = p.now.Format(time.DateOnly) + " " + text
	}
	now, err := time.Parse(time.DateTime, text)
	if err != nil {
		return fmt.Errorf("the time %q: %w", text, err)
	}
	p.now = now
	return nil
}

// step reads CHECK [+ CHECK...] -> ANSWER [+ ANSWER...].
func (p *storyTeller) step(n int, line string) error {
	questions, answers, found := strings.Cut(line, "->")
	if !found {
		return fmt.Errorf("%q has no answer: write -> and what is expected", line)
	}
	s := Step{Line: n, Text: line, At: core.Micros(p.now.UnixMicro()), receipts: map[int]string{}}
	for i, question := range strings.Split(questions, " + ") {
		c, receipt, err := p.check(strings.Fields(question))
		if err != nil {
			return fmt.Errorf("%q: %w", question, err)
		}
		if receipt != "" {
			s.receipts[i] = receipt
		}
		s.Checks = append(s.Checks, c)
	}
	if s.Invalid = strings.TrimSpace(answers) == "invalid"; !s.Invalid {
		for _, answer := range strings.Split(answers, " + ") {
			want, name, err := p.answer(strings.Fields(answer))
			if err != nil {
				return fmt.Errorf("%q: %w", answer, err)
			}
			s.Want, s.names = append(s.Want, want), append(s.names, name)
		}
		if len(s.Want) != len(s.Checks) {
			return fmt.Errorf("%d answers to %d checks", len(s.Want), len(s.Checks))
		}
	}
	story := &p.stories[len(p.stories)-1]
	story.Steps = append(story.Steps, s)
	return nil
}

// operations are the words for them; numbers is how many numbers follow the name of the limit in each operation.
var operations = map[string]struct {
	op      core.Op
	numbers int
}{"take": {core.OpTake, 1}, "shadow": {core.OpTake, 1}, "look": {core.OpLook, 1}, "upto": {core.OpUpTo, 4},
	"back": {core.OpGiveBack, 1}, "force": {core.OpForce, 1}}

// check reads OPERATION NAME NUMBER... [RECEIPT].
func (p *storyTeller) check(words []string) (c core.Check, receipt string, err error) {
	if len(words) < 3 {
		return c, "", fmt.Errorf("want an operation, the name of a limit and a number")
	}
	operation, known := operations[words[0]]
	l, limited := p.limits[words[1]]
	if !known || !limited {
		return c, "", fmt.Errorf("an unknown operation or limit")
	}
	if words[0] == "back" {
		receipt = words[len(words)-1]
		words = words[:len(words)-1]
		if !p.receipts[receipt] {
			return c, "", fmt.Errorf("no answer was named %q", receipt)
		}
	}
	if len(words) != 2+operation.numbers {
		return c, "", fmt.Errorf("%s takes %d numbers", words[0], operation.numbers)
	}
	var numbers [4]int64
	for i, word := range words[2:] {
		if numbers[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return c, "", err
		}
	}
	c = check(operation.op, words[1], l, numbers[0])
	c.Shadow = words[0] == "shadow"
	if operation.op == core.OpUpTo {
		c.Min, c.Cost, c.Max, c.ShareMille = numbers[0], numbers[1], numbers[2], numbers[3]
	}
	return c, receipt, nil
}

// answer reads (granted N | refused | passes) [remaining N] [wait SPAN] [reset SPAN] [next SPAN] [as NAME].
func (p *storyTeller) answer(words []string) (want []Expectation, name string, err error) {
	for len(words) > 0 {
		field := words[0]
		words = words[1:]
		switch field {
		case "refused":
			want = append(want, Expectation{"refused", 1}, Expectation{"granted", 0})
			continue
		case "passes":
			want = append(want, Expectation{"refused", 0}, Expectation{"granted", 0})
			continue
		}
		if len(words) == 0 {
			return nil, "", fmt.Errorf("%s what?", field)
		}
		var value int64
		switch {
		case field == "as":
			name = words[0]
			p.receipts[name] = true
		case field == "granted" || field == "remaining":
			value, err = strconv.ParseInt(words[0], 10, 64)
		case slices.Contains([]string{"wait", "reset", "next"}, field):
			var span core.Micros
			span, err = parseSpan(words[0])
			value = int64(span)
		default:
			err = fmt.Errorf("unknown word %q", field)
		}
		if err != nil {
			return nil, "", err
		}
		if field == "granted" {
			want = append(want, Expectation{"refused", 0})
		}
		if field != "as" {
			want = append(want, Expectation{field, value})
		}
		words = words[1:]
	}
	if len(want) == 0 {
		return nil, "", fmt.Errorf("an answer must say something")
	}
	return want, name, nil
}

var spanUnits = map[string]core.Micros{"us": 1, "ms": core.Millisecond, "s": core.Second, "m": core.Minute,
	"h": core.Hour, "d": core.Day}

// parseSpan reads "never", "0", or whole numbers with units: "59s", "1m30s", "2d999us".
func parseSpan(text string) (span core.Micros, err error) {
	switch text {
	case "never":
		return core.Never, nil
	case "0":
		return 0, nil
	case "":
		return 0, fmt.Errorf("a span is missing")
	}
	for rest := text; rest != ""; {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		rest = rest[len(digits):]
		letters := rest[:len(rest)-len(strings.TrimLeft(rest, "usmhd"))]
		rest = rest[len(letters):]
		n, err := strconv.ParseInt(digits, 10, 64)
		unit, ok := spanUnits[letters]
		if err != nil || !ok {
			return 0, fmt.Errorf("span %q: write whole numbers with us, ms, s, m, h or d", text)
		}
		span += core.Micros(n) * unit
	}
	return span, nil
}
