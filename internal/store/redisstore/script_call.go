// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/lua"
)

// This file encodes calls to the script and decodes its replies. lua/take.lua defines both formats.

// takeCmd is one call of the script. A takeCmd copies all its bytes, because a caller can leave at
// its deadline while the command is still being written.
type takeCmd struct {
	*redis.StringCmd

	encoded bool // whether a connection has requested the arguments, in order to write them, since the batch began

	// Space for the keys and arguments of a few checks, so that a call allocates little.
	keysRoom [4]string
	argsRoom [8]any
}

// Args returns the arguments. The library go-redis requests them when it writes the command, so
// before that the server has certainly not received it.
func (c *takeCmd) Args() []any {
	c.encoded = true
	return c.StringCmd.Args()
}

// Suffixes of a check's second key: the sum of a sliding log, and the end of a penalty. A first key
// never ends in these suffixes: that of a counter ends in an algorithm, and that of a penalty in a
// brace.
const (
	sumSuffix   = ":n"
	untilSuffix = ":until"
)

// secondKeySuffix returns the suffix of a check's second key, or "" if it has only one key.
func secondKeySuffix(c *counter.Check) string {
	switch {
	case c.Penalty != nil:
		return untilSuffix
	case c.Limit.Algorithm() == counter.SlidingLog:
		return sumSuffix
	default:
		return ""
	}
}

// Flags that are added to the operation of a check. Shadow: its denial does not deny the call.
// Guarded: its denial may be a violation. Leased: its units belong to a lease. Refundable: its
// charge may be refunded.
const (
	shadowOp     = 8
	guardedOp    = 16
	leasedOp     = 32
	refundableOp = 64
)

// Algorithm codes of the script beyond those of core.
const (
	calendarWindow byte = iota + byte(counter.TokenBucket) + 1
	penalty
	denialElsewhere
)

// newTake returns the command that runs checks, which must have passed [counter.ValidateChecks].
// The argument pinned is the instant at which to decide; 0 means Redis' own clock. newTake
// allocates three times for up to three keys.
func newTake(ctx context.Context, pinned counter.Micros, checks []counter.Check) *takeCmd {
	c := &takeCmd{}
	var room [512]byte
	text, keys := room[:0], 0
	for i := range checks {
		text = append(text, checks[i].Key...)
		keys++
		if second := secondKeySuffix(&checks[i]); second != "" {
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

// denial is a denial by another part of the call that counts as a violation.
type denial struct {
	wait      counter.Micros
	violation int64
}

// newViolations returns the command that records denials by other servers for the check of a
// penalty, as if all checks had been in one call.
func newViolations(ctx context.Context, pinned counter.Micros, check *counter.Check, denials []denial) *takeCmd {
	c := &takeCmd{}
	text := append(append([]byte(nil), check.Key...), untilSuffix...)
	plan := len(text)
	text = appendCheck(appendNumber(text, int64(pinned)), check)
	for _, r := range denials {
		text = append(text, denialElsewhere, byte(counter.OpTake)+guardedOp)
		for _, n := range []int64{0, int64(r.wait), 0, 0, 1, r.violation} {
			text = appendNumber(text, n)
		}
	}
	c.StringCmd = redis.NewStringCmd(ctx, c.args(string(text), plan, 2, []counter.Check{*check})...)
	return c
}

// takeCmd.args returns the command's arguments. The keys and the plan are substrings of text, in
// which the plan begins at the index named plan. The arguments are pointers to strings, which
// convert to an interface without another allocation.
func (c *takeCmd) args(text string, plan, keys int, checks []counter.Check) []any {
	names, args := c.keysRoom[:0], c.argsRoom[:0]
	if keys+1 > len(c.keysRoom) {
		names, args = make([]string, 0, keys+1), make([]any, 0, keys+4)
	}
	at := 0
	for i := range checks {
		end := at + len(checks[i].Key)
		names = append(names, text[at:end])
		if second := secondKeySuffix(&checks[i]); second != "" {
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

// appendCheck appends the plan's entry for a check.
func appendCheck(b []byte, c *counter.Check) []byte {
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
	if c.Refundable && l.Algorithm() == counter.TokenBucket {
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
	b = appendNumber(b, int64((l.TTL()+counter.Millisecond-1)/counter.Millisecond))
	if c.Guard > 0 {
		b = appendNumber(b, int64(c.Guard))
		b = appendNumber(b, c.Violation)
	}
	if c.Age > 0 {
		b = appendNumber(b, int64(c.Age))
	}
	switch {
	case l.Algorithm() == counter.TokenBucket:
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
	case counter.OpUpTo:
		b = appendNumber(b, c.Min)
		b = appendNumber(b, c.Max)
		b = appendNumber(b, c.ShareMille)
	case counter.OpRefund:
		b = appendNumber(b, int64(c.Receipt))
	}
	return b
}

// appendPenalty appends the plan's entry for a penalty, after its operation.
func appendPenalty(b []byte, p *counter.Penalty) []byte {
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

// appendNumber appends n in Lua's number format, a double.
func appendNumber(b []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
}

// noMemory begins the script's error if the memory is full. The indices of the keys of counters
// that do not exist follow it.
const noMemory = "OOM new counters "

// takeCmd.newKeys returns the keys that the script's error names as those of new counters.
func (c *takeCmd) newKeys(text string) (keys []string) {
	list, found := strings.CutPrefix(text, noMemory)
	if !found {
		return nil
	}
	args := c.StringCmd.Args()
	for index := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(index)
		if err != nil || n < 1 || n+3 >= len(args) || len(keys) == counter.ChecksMax { // the last argument is the plan
			return nil
		}
		if key, ok := args[n+2].(*string); ok {
			keys = append(keys, *key)
		}
	}
	return keys
}

// NoRetry prevents go-redis from sending the command a second time after an error that leaves open
// whether it was executed, because a charge must not be made twice.
func (c *takeCmd) NoRetry() bool { return true }

// Clone returns a copy that is also not retried. The copy shares the arguments, which are never
// modified.
func (c *takeCmd) Clone() redis.Cmder {
	return &takeCmd{StringCmd: c.StringCmd.Clone().(*redis.StringCmd)}
}

// takeCmd.results decodes the reply into results, which must be at least as long as checks. The
// error is the command's own, or reports a reply that does not match the checks.
func (c *takeCmd) results(checks []counter.Check, results []counter.Result) error {
	text, err := c.Result()
	if err != nil {
		return err
	}
	return decode(text, checks, results, false)
}

// firstKey returns the first key of the call, or nil.
func (c *takeCmd) firstKey() *string {
	args := c.StringCmd.Args() // see newTake: evalsha, the script, the number of keys, the keys
	if len(args) < 5 {
		return nil
	}
	key, _ := args[3].(*string)
	return key
}

// isPlausible reports whether the reply can be one of the script: every such reply has at least two
// numbers. Any other reply is no evidence that the server works.
func (c *takeCmd) isPlausible() bool { return strings.IndexByte(c.Val(), ' ') > 0 }

// decode decodes a reply into results. The argument named deniedElsewhere reports that another part
// of the call was denied; the results are then those of a denied call, whatever was charged.
func decode(text string, checks []counter.Check, results []counter.Result, deniedElsewhere bool) error {
	r := reply{rest: text}
	now, admitted := counter.Micros(r.number()), r.number()
	denied := false
	for i := range checks {
		check := &checks[i]
		switch {
		case check.Penalty != nil:
			r.penalty(now, &results[i])
		case check.Limit.Algorithm() == counter.SlidingLog:
			r.log(now, check, &results[i])
			if deniedElsewhere {
				discardCharge(check, &results[i])
			}
		default:
			if slot := r.slot(check.Limit); !r.bad {
				counter.Replay(now, admitted == 1 && !deniedElsewhere, check, &slot, &results[i])
			}
		}
		denied = denied || results[i].Denied && !check.Shadow && (check.Op == counter.OpTake || check.Op == counter.OpUpTo)
	}
	switch {
	case r.bad || r.rest != "" || now < 1 || admitted > 1:
		return fmt.Errorf("reply %.100q does not answer %d checks", text, len(checks))
	case denied == (admitted == 1):
		return fmt.Errorf("reply %.100q: the script and this process decide differently; are the versions mixed?", text)
	}
	return nil
}

// discardCharge changes the result of a sliding log to that of a denied call.
func discardCharge(c *counter.Check, r *counter.Result) {
	if !chargesIfAllowed(c) || r.Granted == 0 {
		return
	}
	r.Remaining += r.Granted
	r.Granted, r.Receipt = 0, 0
	if r.Remaining == c.Limit.Count() {
		r.Reset, r.Next = 0, 0
	}
}

// reply reads the decimal numbers of a reply. The numbers are separated by single spaces; a comma
// precedes the leased amount of a counter and each number of its dips.
type reply struct {
	rest string
	bad  bool // whether a number was missing, malformed or above 2^53
}

// numberMax is the greatest integer that Lua represents exactly.
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

// reply.slot reads the state of a counter before the call.
func (r *reply) slot(l *counter.Limit) counter.Slot {
	s := counter.State{At: counter.Micros(r.number()), Used: r.number(), Aux: r.number()}
	if l.Algorithm() == counter.TokenBucket && s.At != 0 && s.Aux < 1 {
		r.bad = true // Aux is the number of parts in a token, by which core divides
	}
	if strings.HasPrefix(r.rest, ",") {
		r.rest = r.rest[1:]
		s.Leased = counter.Micros(r.number())
	}
	for n := 0; strings.HasPrefix(r.rest, ","); n++ {
		if n == counter.DipsMax {
			r.bad = true
			break
		}
		r.rest = r.rest[1:]
		s.Dips[n].At = counter.Micros(r.number())
		if !strings.HasPrefix(r.rest, ",") {
			r.bad = true
			break
		}
		r.rest = r.rest[1:]
		s.Dips[n].Missing = r.number()
	}
	return counter.Slot{State: s}
}

// reply.log reads the result of a sliding log. The entries stay in Redis; the script decides as
// [counter.Decide] does.
func (r *reply) log(now counter.Micros, c *counter.Check, result *counter.Result) {
	instant, granted := counter.Micros(r.number()), r.number()
	units, oldest, passesAt := r.number(), counter.Micros(r.number()), counter.Micros(r.number())
	l := c.Limit
	*result = counter.Result{At: now, Granted: granted, Remaining: max(0, l.Count()-units)}
	if oldest != 0 {
		result.Reset = max(0, oldest+l.Window()-now)
		result.Next = result.Reset
	}
	need := max(1, c.Cost)
	switch c.Op {
	case counter.OpRefund, counter.OpReset:
		return
	case counter.OpForce:
		need = 0
	case counter.OpUpTo:
		need = c.Min
	}
	if granted > 0 {
		result.Receipt = instant
	}
	switch {
	case need > l.Count():
		result.Wait = counter.Never
	case passesAt != 0:
		result.Wait = max(0, passesAt-now)
	}
	result.Denied = result.Wait != 0 && (c.Cost > 0 || c.Op == counter.OpUpTo)
}

// reply.penalty reads the result of a penalty. The violations stay in Redis.
func (r *reply) penalty(now counter.Micros, result *counter.Result) {
	until, violations, forgotten := counter.Micros(r.number()), r.number(), r.number()
	*result = counter.Result{At: now, Granted: forgotten, Violations: violations, Wait: max(0, until-now)}
	result.Denied = result.Wait > 0
}
