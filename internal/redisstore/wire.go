// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// This file speaks the script's language; lua/take.lua states it.

// takeCmd is one call of the script. It owns copies of all its bytes: a caller may leave at its deadline while the
// command is still being written.
type takeCmd struct {
	*redis.StringCmd

	// Room for the keys and arguments of a few checks, so that a call costs few allocations.
	keysRoom [4]string
	argsRoom [8]any
}

// What ends the key that goes with a key: of the sum of a sliding log, and of a penalty's end. No key of the schema ends
// so: they end in an algorithm, or, those of penalties, in a brace.
const (
	sumSuffix   = ":n"
	untilSuffix = ":until"
)

// besides returns what ends the second key of a check, "" if it has one only.
func besides(c *core.Check) string {
	switch {
	case c.Penalty != nil:
		return untilSuffix
	case c.Limit.Algorithm() == core.SlidingLog:
		return sumSuffix
	default:
		return ""
	}
}

// What is added to the operation of a check: that its refusal refuses nothing, that it may be a violation, that it is one of
// a lease, and that what it charges may come back.
const (
	shadowOp     = 8
	guardedOp    = 16
	leasedOp     = 32
	refundableOp = 64
)

// What the script calls algorithms that are none of core's.
const (
	calendarWindow byte = iota + byte(core.TokenBucket) + 1
	penalty
	elsewhere
)

// newTake returns the command that asks checks, which must have passed [core.ValidateChecks]. pinned is the instant to
// decide at; 0 is Redis' own clock. It allocates three times for up to three keys.
func newTake(ctx context.Context, pinned core.Micros, checks []core.Check) *takeCmd {
	c := &takeCmd{}
	var room [512]byte
	text, keys := room[:0], 0
	for i := range checks {
		text = append(text, checks[i].Key...)
		keys++
		if second := besides(&checks[i]); second != "" {
			text = append(text, second...)
			keys++
		}
	}
	plan := len(text)
	text = appendNumber(text, int64(pinned))
	for i := range checks {
		text = appendCheck(text, &checks[i])
	}
	c.StringCmd = redis.NewStringCmd(ctx, c.args(string(text), plan, keys, checks)...)
	return c
}

// refusal is one that another server gave, and that is a violation.
type refusal struct {
	wait      core.Micros
	violation int64
}

// newViolations returns the command that records refusals by other servers with the check of a penalty, as if all had been
// one call.
func newViolations(ctx context.Context, pinned core.Micros, check *core.Check, refusals []refusal) *takeCmd {
	c := &takeCmd{}
	text := append(append([]byte(nil), check.Key...), untilSuffix...)
	plan := len(text)
	text = appendCheck(appendNumber(text, int64(pinned)), check)
	for _, r := range refusals {
		text = append(text, elsewhere, byte(core.OpTake)+guardedOp)
		for _, n := range []int64{0, int64(r.wait), 0, 0, 1, r.violation} {
			text = appendNumber(text, n)
		}
	}
	c.StringCmd = redis.NewStringCmd(ctx, c.args(string(text), plan, 2, []core.Check{*check})...)
	return c
}

// args returns the command's arguments: parts of text, which holds the keys and from plan on the plan. They are pointers
// to strings, which fit an interface without another allocation.
func (c *takeCmd) args(text string, plan, keys int, checks []core.Check) []any {
	names, args := c.keysRoom[:0], c.argsRoom[:0]
	if keys+1 > len(c.keysRoom) {
		names, args = make([]string, 0, keys+1), make([]any, 0, keys+4)
	}
	at := 0
	for i := range checks {
		end := at + len(checks[i].Key)
		names = append(names, text[at:end])
		if second := besides(&checks[i]); second != "" {
			names = append(names, text[at:end+len(second)])
			end += len(second)
		}
		at = end
	}
	names = append(names, text[plan:])
	args = append(args, "evalsha", &lua.TakeSHA, keys)
	for i := range names {
		args = append(args, &names[i])
	}
	return args
}

// appendCheck appends what the plan says of a check.
func appendCheck(b []byte, c *core.Check) []byte {
	op := byte(c.Op)
	if c.Shadow {
		op += shadowOp
	}
	if c.Penalty != nil {
		return appendPenalty(append(b, penalty, op), c.Penalty)
	}
	if c.Guard > 0 {
		op += guardedOp
	}
	if c.Age > 0 {
		op += leasedOp
	}
	l := c.Limit
	if c.Refundable && l.Algorithm() == core.TokenBucket {
		op += refundableOp
	}
	algorithm := byte(l.Algorithm())
	if c.Bounds != nil {
		algorithm = calendarWindow
	}
	b = append(b, algorithm, op)
	b = appendNumber(b, c.Cost)
	b = appendNumber(b, l.Count())
	b = appendNumber(b, int64(l.Window()))
	b = appendNumber(b, int64((l.TTL()+core.Millisecond-1)/core.Millisecond))
	if c.Guard > 0 {
		b = appendNumber(b, int64(c.Guard))
		b = appendNumber(b, c.Violation)
	}
	if c.Age > 0 {
		b = appendNumber(b, int64(c.Age))
	}
	switch {
	case l.Algorithm() == core.TokenBucket:
		unit, refill, tick := l.Arithmetic()
		b = appendNumber(b, l.Capacity())
		b = appendNumber(b, unit)
		b = appendNumber(b, refill)
		b = appendNumber(b, int64(tick))
	case c.Bounds != nil:
		for _, at := range c.Bounds {
			b = appendNumber(b, int64(at))
		}
	}
	switch c.Op {
	case core.OpUpTo:
		b = appendNumber(b, c.Min)
		b = appendNumber(b, c.Max)
		b = appendNumber(b, c.ShareMille)
	case core.OpGiveBack:
		b = appendNumber(b, int64(c.Receipt))
	}
	return b
}

// appendPenalty appends what the plan says of a penalty, after its operation.
func appendPenalty(b []byte, p *core.Penalty) []byte {
	b = appendNumber(b, 0)
	b = appendNumber(b, p.Threshold)
	b = appendNumber(b, int64(p.Window))
	b = appendNumber(b, int64(p.Longest()))
	b = appendNumber(b, int64(len(p.Multipliers)))
	for _, m := range p.Multipliers {
		b = appendNumber(b, m)
	}
	return b
}

// appendNumber appends n as Lua has it: a double.
func appendNumber(b []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
}

// NoRetry keeps go-redis from sending the command a second time after an error that leaves open whether it was
// executed: a charge must not be made twice.
func (c *takeCmd) NoRetry() bool { return true }

// Clone returns a copy that is not retried either. The copy shares the arguments, which nobody changes.
func (c *takeCmd) Clone() redis.Cmder {
	return &takeCmd{StringCmd: c.StringCmd.Clone().(*redis.StringCmd)}
}

// results decodes the reply into results, which are as many as the checks of newTake or more. The error is the
// command's own, or says that the reply is not one to these checks.
func (c *takeCmd) results(checks []core.Check, results []core.Result) error {
	text, err := c.Result()
	if err != nil {
		return err
	}
	return decode(text, checks, results, false)
}

// decode reads a reply into results. withdrawn says that the checks are a part of a call that was refused elsewhere: the
// results are then those of a refused call, whatever was charged.
func decode(text string, checks []core.Check, results []core.Result, withdrawn bool) error {
	r := reply{rest: text}
	now, admitted := core.Micros(r.number()), r.number()
	refused := false
	for i := range checks {
		check := &checks[i]
		switch {
		case check.Penalty != nil:
			r.penalty(now, &results[i])
		case check.Limit.Algorithm() == core.SlidingLog:
			r.log(now, check, &results[i])
			if withdrawn {
				uncharge(check, &results[i])
			}
		default:
			if slot := r.slot(check.Limit); !r.bad {
				core.Replay(now, admitted == 1 && !withdrawn, check, &slot, &results[i])
			}
		}
		refused = refused || results[i].Refused && !check.Shadow && (check.Op == core.OpTake || check.Op == core.OpUpTo)
	}
	switch {
	case r.bad || r.rest != "" || now < 1 || admitted > 1:
		return fmt.Errorf("reply %.100q does not answer %d checks", text, len(checks))
	case refused == (admitted == 1):
		return fmt.Errorf("reply %.100q: the script and this process decide differently; are the versions mixed?", text)
	}
	return nil
}

// uncharge makes the answer of a sliding log that of a refused call.
func uncharge(c *core.Check, r *core.Result) {
	if !charges(c) || r.Granted == 0 {
		return
	}
	r.Remaining += r.Granted
	r.Granted, r.Receipt = 0, 0
	if r.Remaining == c.Limit.Count() {
		r.Reset, r.Next = 0, 0
	}
}

// reply reads the decimals of a reply, separated by one space each, but for a comma before what is leased of a counter and
// before each number of its dips.
type reply struct {
	rest string
	bad  bool // something was missing, or no decimal up to 2^53
}

// numberMax is the greatest number that a Lua script can mean exactly.
const numberMax = 1 << 53

func (r *reply) number() int64 {
	n, i := int64(0), 0
	for i < len(r.rest) && r.rest[i] != ' ' && r.rest[i] != ',' {
		digit := r.rest[i] - '0'
		if digit > 9 || n > numberMax {
			r.bad = true
			return 0
		}
		n = n*10 + int64(digit)
		i++
	}
	if i == 0 || n > numberMax {
		r.bad = true
		return 0
	}
	if i < len(r.rest) && r.rest[i] == ' ' {
		i++
		if i == len(r.rest) {
			r.bad = true
		}
	}
	r.rest = r.rest[i:]
	return n
}

// slot reads a counter as it was before the call.
func (r *reply) slot(l *core.Limit) core.Slot {
	s := core.State{At: core.Micros(r.number()), Used: r.number(), Aux: r.number()}
	if l.Algorithm() == core.TokenBucket && s.At != 0 && s.Aux < 1 {
		r.bad = true // what is missing is counted in parts of a token, and core divides by them
	}
	if strings.HasPrefix(r.rest, ",") {
		r.rest = r.rest[1:]
		s.Leased = core.Micros(r.number())
	}
	for n := 0; strings.HasPrefix(r.rest, ","); n++ {
		if n == core.DipsMax {
			r.bad = true
			break
		}
		r.rest = r.rest[1:]
		s.Dips[n].At = core.Micros(r.number())
		if !strings.HasPrefix(r.rest, ",") {
			r.bad = true
			break
		}
		r.rest = r.rest[1:]
		s.Dips[n].Missing = r.number()
	}
	return core.Slot{State: s}
}

// log reads the answer of a sliding log, whose marks stay with Redis: the script does what [core.Decide] does.
func (r *reply) log(now core.Micros, c *core.Check, result *core.Result) {
	instant, granted := core.Micros(r.number()), r.number()
	units, oldest, passesAt := r.number(), core.Micros(r.number()), core.Micros(r.number())
	l := c.Limit
	*result = core.Result{At: now, Granted: granted, Remaining: max(0, l.Count()-units)}
	if oldest != 0 {
		result.Reset = max(0, oldest+l.Window()-now)
		result.Next = result.Reset
	}
	need := max(1, c.Cost)
	switch c.Op {
	case core.OpGiveBack, core.OpReset:
		return
	case core.OpForce:
		need = 0
	case core.OpUpTo:
		need = c.Min
	}
	if granted > 0 {
		result.Receipt = instant
	}
	switch {
	case need > l.Count():
		result.Wait = core.Never
	case passesAt != 0:
		result.Wait = max(0, passesAt-now)
	}
	result.Refused = result.Wait != 0 && (c.Cost > 0 || c.Op == core.OpUpTo)
}

// penalty reads the answer of a penalty, whose violations stay with Redis.
func (r *reply) penalty(now core.Micros, result *core.Result) {
	until, violations, forgotten := core.Micros(r.number()), r.number(), r.number()
	*result = core.Result{At: now, Granted: forgotten, Violations: violations, Wait: max(0, until-now)}
	result.Refused = result.Wait > 0
}
