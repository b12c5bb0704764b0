// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
)

// Story is one story of a vector file. Its steps are sent in this order to an empty store.
// core/testdata/vectors/README.md describes the format.
type Story struct {
	Name  string
	Steps []Step
}

// Step is one call of a story.
type Step struct {
	Line    int    // the line in the file
	Text    string // as written
	At      corecounter.Micros
	Checks  []corecounter.Check
	Want    [][]Expectation // for each check, the expected numbers of its answer
	Invalid bool            // the call is invalid, and there are no answers
	// Stale means that the store's clock is outside the caller's boundaries, and there are no
	// answers.
	Stale bool

	receipts map[int]string // by check: the name of the receipt that the check refunds
	names    []string       // by check: the name that the story gives to its receipt; "" for none
}

// Expectation is a number that an answer must have. Field is refused (0 or 1), granted, remaining,
// violations, or a time in µs: wait, reset, next, leased.
type Expectation struct {
	Field string
	Value int64
}

// storyReader reads one file.
type storyReader struct {
	stories  []Story
	things   map[string]storyObject
	receipts map[string]bool
	now      time.Time
	zone     *time.Location     // the zone of the calendar limits that follow in the story
	caller   corecounter.Micros // how far the caller's clock is ahead of the store's clock
}

// line is a line of a vector file, without comments.
type line struct {
	number int
	text   string
}

// repeatMax is the largest number of times that a block of lines may be repeated.
const repeatMax = 10_000

// unrollLines returns the lines of a file without comments. It repeats the lines between the words
// repeat and end.
func unrollLines(text string) (out []line, err error) {
	var block []line
	times := 0
	scanner := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		said, _, _ := strings.Cut(scanner.Text(), "#")
		said = strings.TrimSpace(said)
		count, repeats := strings.CutPrefix(said, "repeat ")
		switch {
		case said == "":
		case repeats:
			if times, err = strconv.Atoi(count); err != nil || times < 1 || times > repeatMax || block != nil {
				return nil, fmt.Errorf("line %d: %q: write repeat and 1 to %d, and not within another", n, said, repeatMax)
			}
			block = []line{}
		case said == "end":
			for range times {
				out = append(out, block...)
			}
			block, times = nil, 0
		case block != nil:
			block = append(block, line{n, said})
		default:
			out = append(out, line{n, said})
		}
	}
	if block != nil {
		return nil, fmt.Errorf("a repeat has no end")
	}
	return out, scanner.Err()
}

// ParseStories reads a vector file. The error names the line.
func ParseStories(text string) ([]Story, error) {
	p := &storyReader{}
	lines, err := unrollLines(text)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		if err := p.readLine(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", line.number, err)
		}
	}
	return p.stories, nil
}

// readLine reads one line.
func (p *storyReader) readLine(l line) error {
	word, rest, _ := strings.Cut(l.text, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case word == "story":
		p.begin(rest)
		return nil
	case len(p.stories) == 0:
		return fmt.Errorf("%q stands before the first story", l.text)
	case word == "limit":
		return p.limit(rest)
	case word == "penalty":
		return p.penalty(rest)
	case word == "at":
		return p.at(rest)
	case word == "zone":
		zone, err := time.LoadLocation(rest)
		p.zone = zone
		return err
	case word == "caller":
		ahead, err := parseShift(rest)
		p.caller = ahead
		return err
	default:
		return p.step(l.number, l.text)
	}
}

func (p *storyReader) begin(name string) {
	p.stories = append(p.stories, Story{Name: name})
	p.things, p.zone, p.caller = map[string]storyObject{}, time.UTC, 0
	p.receipts = map[string]bool{"none": true}
	p.now = time.UnixMicro(int64(start)).UTC()
}

// storyReader.at reads an instant: [YYYY-MM-DD] HH:MM:SS[.ffffff], or the sign + or - followed by a
// span.
func (p *storyReader) at(text string) error {
	if text == "" {
		return fmt.Errorf("at what time?")
	}
	if sign := text[0]; sign == '+' || sign == '-' {
		span, err := parseShift(text)
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

// storyReader.step reads CHECK [+ CHECK...] -> ANSWER [+ ANSWER...].
func (p *storyReader) step(n int, line string) error {
	questions, answers, found := strings.Cut(line, "->")
	if !found {
		return fmt.Errorf("%q has no answer: write -> and what is expected", line)
	}
	s := Step{Line: n, Text: line, At: corecounter.Micros(p.now.UnixMicro()), receipts: map[int]string{}}
	if err := p.questions(&s, questions); err != nil {
		return err
	}
	answers = strings.TrimSpace(answers)
	s.Invalid, s.Stale = answers == "invalid", answers == "stale"
	if !s.Invalid && !s.Stale {
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
