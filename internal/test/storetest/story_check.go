// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corecounter "github.com/penstock/penstock/core/counter"
)

// storyObject is a counter or penalty that a story names.
type storyObject struct {
	limit    corecounter.Limit
	calendar *calendar            // the calendar of a calendar limit; otherwise nil
	penalty  *corecounter.Penalty // nil unless the object is a penalty
	number   int64                // the position in the story, which is also the ID of the object's violations
}

// storyReader.name stores an object under its name. An object that replaces another one of the same
// name gets the number of that one.
func (p *storyReader) name(name string, t storyObject) {
	if was, known := p.things[name]; known {
		t.number = was.number
	} else {
		t.number = int64(len(p.things)) + 1
	}
	p.things[name] = t
}

// storyReader.limit reads NAME LIMIT.
func (p *storyReader) limit(text string) error {
	name, text, _ := strings.Cut(text, " ")
	l, err := corecounter.ParseLimit(strings.TrimSpace(text))
	t := storyObject{limit: l}
	if unit := unitOf(strings.TrimSpace(text)); unit != "" {
		t.calendar = &calendar{unit: unit, zone: p.zone}
	}
	p.name(name, t)
	return err
}

// storyReader.penalty reads NAME WINDOW from THRESHOLD times MULTIPLIER... [max SPAN].
func (p *storyReader) penalty(text string) error {
	words := strings.Fields(text)
	if len(words) < 6 || words[2] != "from" || words[4] != "times" {
		return fmt.Errorf("%q: write NAME WINDOW from THRESHOLD times MULTIPLIER... [max SPAN]", text)
	}
	penalty, err := &corecounter.Penalty{}, error(nil)
	if penalty.Window, err = parseSpan(words[1]); err != nil {
		return err
	}
	if penalty.Threshold, err = strconv.ParseInt(words[3], 10, 64); err != nil {
		return err
	}
	multipliers := words[5:]
	if i := slices.Index(words, "max"); i >= 0 {
		if i != len(words)-2 {
			return fmt.Errorf("%q: max what?", text)
		}
		if penalty.Max, err = parseSpan(words[i+1]); err != nil {
			return err
		}
		multipliers = words[5:i]
	}
	for _, word := range multipliers {
		m, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return err
		}
		penalty.Multipliers = append(penalty.Multipliers, m)
	}
	p.name(words[0], storyObject{penalty: penalty})
	return nil
}

// storyReader.questions reads CHECK [+ CHECK...] into the step.
func (p *storyReader) questions(s *Step, text string) error {
	guards := map[int]string{}
	for i, question := range strings.Split(text, " + ") {
		c, receipt, guard, err := p.check(strings.Fields(question))
		if err != nil {
			return fmt.Errorf("%q: %w", question, err)
		}
		if receipt != "" {
			s.receipts[i] = receipt
		}
		if guard != "" {
			guards[i] = guard
		}
		s.Checks = append(s.Checks, c)
	}
	for i, guard := range guards {
		which := slices.IndexFunc(s.Checks, func(c corecounter.Check) bool { return string(c.Key) == guard })
		if which < 0 {
			return fmt.Errorf("a check is for %q, which is not in the call", guard)
		}
		s.Checks[i].Guard, s.Checks[i].Violation = which+1, p.things[string(s.Checks[i].Key)].number
	}
	return nil
}

// operations holds the operations by the words of stories. The field numbers is how many numbers
// follow the name of a limit.
var operations = map[string]struct {
	op      corecounter.Op
	numbers int
}{"take": {corecounter.OpTake, 1}, "shadow": {corecounter.OpTake, 1}, "look": {corecounter.OpLook, 1}, "upto": {corecounter.OpUpTo, 4},
	"back": {corecounter.OpRefund, 1}, "force": {corecounter.OpForce, 1}, "reset": {corecounter.OpReset, 0}}

// storyReader.check reads OPERATION NAME NUMBER... [RECEIPT] [age SPAN] [refundable] [for PENALTY].
// No numbers follow the name of a penalty.
func (p *storyReader) check(words []string) (c corecounter.Check, receipt, guard string, err error) {
	if len(words) < 2 {
		return c, "", "", fmt.Errorf("want an operation and the name of a limit or a penalty")
	}
	operation, known := operations[words[0]]
	t, named := p.things[words[1]]
	if !known || !named {
		return c, "", "", fmt.Errorf("an unknown operation or limit")
	}
	if last := len(words) - 2; last >= 2 && words[last] == "for" {
		words, guard = words[:last], words[last+1]
	}
	refundable := words[len(words)-1] == "refundable"
	if refundable {
		words = words[:len(words)-1]
	}
	words, age, err := cutAge(words)
	if err != nil {
		return c, "", "", err
	}
	if words[0] == "back" {
		receipt = words[len(words)-1]
		words = words[:len(words)-1]
		if !p.receipts[receipt] {
			return c, "", "", fmt.Errorf("no answer was named %q", receipt)
		}
	}
	numbers := operation.numbers
	if t.penalty != nil {
		numbers = 0
	}
	values := make([]int64, 4)
	if len(words) != 2+numbers {
		return c, "", "", fmt.Errorf("%s takes %d numbers", words[0], numbers)
	}
	for i, word := range words[2:] {
		if values[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return c, "", "", err
		}
	}
	c = p.ask(operation.op, words[1], &t, values, words[0] == "shadow")
	c.Age, c.Refundable = age, refundable
	return c, receipt, guard, nil
}

// cutAge removes the words "age SPAN" from the end of a check.
func cutAge(words []string) (rest []string, age corecounter.Micros, err error) {
	last := len(words) - 2
	if last < 2 || words[last] != "age" {
		return words, 0, nil
	}
	age, err = parseSpan(words[last+1])
	return words[:last], age, err
}

// storyReader.ask returns the check of an object with the given operation and numbers.
func (p *storyReader) ask(op corecounter.Op, name string, t *storyObject, numbers []int64, shadow bool) corecounter.Check {
	if t.penalty != nil {
		return penaltyCheck(op, name, t.penalty)
	}
	c := check(op, name, t.limit, numbers[0])
	c.Shadow = shadow
	if op == corecounter.OpUpTo {
		c.Min, c.Cost, c.Max, c.ShareMille = numbers[0], numbers[1], numbers[2], numbers[3]
	}
	if t.calendar != nil {
		c = t.calendar.dated(c, corecounter.Micros(p.now.UnixMicro())+p.caller)
	}
	return c
}
