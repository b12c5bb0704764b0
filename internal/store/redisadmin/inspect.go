// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Counter describes a counter, or a client's penalty, as text.
type Counter struct {
	Lines [][2]string // name and description
	Wrong bool        // whether the counter cannot be read, so that it neither allows nor denies requests
}

func (c *Counter) addLine(what, format string, args ...any) {
	c.Lines = append(c.Lines, [2]string{what, fmt.Sprintf(format, args...)})
}

// Print writes the description.
func (c *Counter) Print(out io.Writer) error {
	var text strings.Builder
	for _, line := range c.Lines {
		fmt.Fprintf(&text, "%-10s %s\n", line[0], line[1])
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// Inspect describes the counter of a key. Inspect changes nothing. If check is not nil, Inspect
// also evaluates check, which is the limiter's check of that key.
func (d *Deployment) Inspect(ctx context.Context, key string, check *counter.Check) (*Counter, error) {
	named, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	slot := redisstore.Slot(named.key)
	n, err := d.Serving(named.key)
	if err != nil {
		return nil, err
	}
	c := &Counter{}
	c.addLine("key", "%s", named.key)
	c.addLine("policy", "%s", cmp.Or(named.namespace, "(no name)"))
	if named.rule == penaltyRule {
		c.addLine("penalty", "of %s", named.whose)
	} else {
		c.addLine("rule", "%s, a %s of %s", named.rule, strings.ReplaceAll(named.limit.Algorithm().String(), "_", " "), named.limit.WindowLabel())
		c.addLine("counts", "%s", named.whose)
		if named.shard >= 0 {
			c.addLine("shard", "%d, counted from 0: one of several counters that share the limit", named.shard)
		}
	}
	switch d.Mode {
	case ModeCluster, ModeRing:
		c.addLine("slot", "%d, at %s", slot, n.Addr)
	default:
		c.addLine("slot", "%d, were it a cluster; at %s", slot, n.Addr)
	}
	if m := d.moving(slot); m != nil {
		c.addLine("moving", "%s", d.moveText(m))
	}
	r := &reading{ctx: ctx, n: n, key: named.key, now: time.Now()}
	if at, err := n.send(ctx, "time").Slice(); err == nil && len(at) == 2 {
		seconds, _ := strconv.ParseInt(fmt.Sprint(at[0]), 10, 64)
		micros, _ := strconv.ParseInt(fmt.Sprint(at[1]), 10, 64)
		r.now = time.Unix(seconds, micros*1000)
	}
	err = r.describe(c, named)
	var bad *corruptError
	switch {
	case errors.As(err, &bad):
		c.Wrong = true
		c.addLine("wrong", "%s: every request that counts here has no answer, and on_error decides", bad.why)
		c.addLine("do", "%s", n.cli(append([]string{"DEL"}, named.keys()...)...))
		return c, nil
	case err != nil:
		return nil, n.explain(err)
	}
	if check != nil {
		err = r.compare(c, check)
	}
	return c, err
}

// Deployment.addrs returns the addresses of the servers.
func (d *Deployment) addrs() (addrs []string) {
	for _, n := range d.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// Serving returns the server that holds a key.
func (d *Deployment) Serving(key string) (*Node, error) {
	slot := redisstore.Slot(key)
	if d.Mode == ModeRing {
		n := d.Nodes[redisstore.ToolHome(d.addrs(), key)]
		return n, n.Err
	}
	for _, n := range d.Nodes {
		has := slices.ContainsFunc(n.Slots, func(s Slots) bool { return s.First <= slot && slot <= s.Last })
		if n.Master && (has || d.Mode != ModeCluster) || d.Mode == ModeSingle {
			return n, n.Err
		}
	}
	return nil, fmt.Errorf("no server has slot %d; see penstock redis health", slot)
}

// corruptError reports a counter that cannot be read.
type corruptError struct{ why string }

func (e *corruptError) Error() string { return e.why }

// reading reads one counter.
type reading struct {
	ctx context.Context
	n   *Node
	key string
	now time.Time // the server's clock
}

// reading.command sends a command for the key. If the slot is being moved, the key might already be
// on the target server; command then sends the command there.
func (r *reading) command(args ...any) *redis.Cmd {
	cmd := r.n.send(r.ctx, args...)
	if addr, ok := redis.IsAskError(cmd.Err()); ok {
		return r.askAt(addr, args)
	}
	if redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") {
		cmd.SetErr(&corruptError{"it holds another type of value"})
	}
	return cmd
}

func (r *reading) askAt(addr string, args []any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(r.ctx, answerTimeout)
	defer cancel()
	server := *r.n.server
	server.Addr = addr
	client := server.Open()
	defer client.Close()
	pipe := client.Pipeline()
	_ = pipe.Do(ctx, "asking")
	cmd := pipe.Do(ctx, args...)
	_, _ = pipe.Exec(ctx)
	return cmd
}

// reading.text returns the string at a key, or "" if there is none.
func (r *reading) text(key string) (string, error) {
	text, err := r.command("get", key).Text()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}

func (r *reading) describe(c *Counter, named *parsedKey) error {
	var err error
	switch {
	case named.rule == penaltyRule:
		err = r.penalty(c)
	case named.limit.Algorithm() == counter.SlidingLog:
		err = r.log(c, named.limit.Window())
	default:
		err = r.counter(c, &named.limit)
	}
	if err != nil {
		return err
	}
	// The line is omitted if the user may not run PTTL.
	if left, err := r.command("pttl", named.key).Int64(); err == nil && left > 0 {
		c.addLine("expires", "in %s", span(time.Duration(left)*time.Millisecond))
	}
	return nil
}

// reading.counter describes a counter that is stored as a string.
func (r *reading) counter(c *Counter, l *counter.Limit) error {
	text, err := r.text(r.key)
	switch {
	case err != nil:
		return err
	case text == "":
		c.addLine("holds", "nothing: it is as good as unused")
		return nil
	}
	c.addLine("stored", "%s", strconv.Quote(text))
	numbers, ok := decimals(text)
	dips := max(0, len(numbers)-4)
	if !ok || len(numbers) < 3 || l.Algorithm() == counter.TokenBucket && numbers[2] < 1 ||
		dips > 0 && (l.Algorithm() != counter.TokenBucket || dips%2 != 0 || dips > 2*counter.DipsMax) {
		return &corruptError{"it must be three or four decimals, and after those of a token bucket at most " +
			strconv.Itoa(counter.DipsMax) + " pairs"}
	}
	at, used, aux := instant(numbers[0]), numbers[1], numbers[2]
	switch {
	case l.Algorithm() == counter.TokenBucket:
		c.addLine("holds", "a bucket that lacked %s of its tokens at %s", fraction(used, aux), r.when(at))
	case l.Calendar() != 0:
		c.addLine("holds", "%s used in the %s that began at %s", plural(int(used), "unit"), l.Calendar(), r.when(at))
	default:
		r.window(c, l, at, used, aux)
	}
	if dips > 0 {
		least := numbers[5]
		for i := 5; i < len(numbers); i += 2 {
			least = min(least, numbers[i])
		}
		c.addLine("refunds", "charges may come back; at least %s of its tokens were missing since %s", fraction(least, aux), r.when(instant(numbers[4])))
	}
	if len(numbers) >= 4 && instant(numbers[3]).After(r.now) {
		c.addLine("leased", "units may be out until %s, taken in advance by nodes that decide without asking", r.when(instant(numbers[3])))
	}
	return nil
}

// reading.window adds lines that describe a fixed or a sliding window.
func (r *reading) window(c *Counter, l *counter.Limit, at time.Time, used, before int64) {
	window := time.Duration(l.Window()) * time.Microsecond
	ends, sliding := at.Add(window), l.Algorithm() == counter.SlidingWindow
	c.addLine("holds", "%s used in the window that began at %s and ends at %s", plural(int(used), "unit"), r.when(at), r.when(ends))
	switch {
	case !r.now.Before(ends.Add(window)), !sliding && !r.now.Before(ends):
		c.addLine("", "that is over, and counts no more")
	case !r.now.Before(ends):
		c.addLine("", "that is over, and weighs %d in the one that follows it", weighPrevious(used, ends.Add(window).Sub(r.now), window))
	case sliding:
		c.addLine("", "%d in the one before, which weigh %d now", before, weighPrevious(before, min(window, ends.Sub(r.now)), window))
	}
}

// weighPrevious returns how many of the units of the previous window still count. The argument
// named rest is the time that is left of the current window.
func weighPrevious(units int64, rest, window time.Duration) uint64 {
	high, low := bits.Mul64(uint64(max(0, units)), uint64(max(0, rest.Microseconds())))
	weighs, _ := bits.Div64(high, low, uint64(window.Microseconds()))
	return weighs
}

// reading.log describes a sliding log.
func (r *reading) log(c *Counter, window counter.Micros) error {
	sum, err := r.text(r.key + ":n")
	if err != nil {
		return err
	}
	marks, err := r.command("zcount", r.key, "-inf", "+inf").Int64()
	if err != nil {
		return err
	}
	if marks == 0 {
		c.addLine("holds", "nothing: it is as good as unused")
		return nil
	}
	oldest, err := r.member(0, 2)
	if err != nil {
		return err
	}
	newest, err := r.member(-1, 2)
	if err != nil {
		return err
	}
	units := "units that are not summed up"
	if numbers, ok := decimals(sum); ok && len(numbers) == 1 {
		units = plural(int(numbers[0]), "unit")
	} else if sum != "" {
		return &corruptError{"there must be a decimal in the companion key, which ends in :n"}
	}
	c.addLine("holds", "%s, charged at %s", units, plural(int(marks), "instant"))
	c.addLine("", "the oldest, %d, at %s; it leaves at %s", oldest[1], r.when(instant(oldest[0])),
		r.when(instant(oldest[0]+int64(window))))
	c.addLine("", "the newest, %d, at %s", newest[1], r.when(instant(newest[0])))
	return nil
}

// reading.member returns the numbers in one member of the sorted set, the one with the given rank.
func (r *reading) member(rank int64, want int) ([]int64, error) {
	members, err := r.command("zrange", r.key, rank, rank).StringSlice()
	if err != nil {
		return nil, err
	}
	if len(members) == 1 {
		text := strings.NewReplacer(":", " ", "-", " ").Replace(members[0])
		if numbers, ok := decimals(text); ok && len(numbers) == want {
			return numbers, nil
		}
	}
	return nil, &corruptError{"its members should be decimals"}
}

// reading.penalty describes a client's penalty.
func (r *reading) penalty(c *Counter) error {
	text, err := r.text(r.key + ":until")
	if err != nil {
		return err
	}
	numbers, ok := decimals(text)
	switch {
	case text == "":
		c.addLine("penalty", "none is in force")
	case !ok || len(numbers) != 1:
		return &corruptError{"there must be a decimal in the companion key, which ends in :until"}
	case instant(numbers[0]).After(r.now):
		c.addLine("penalty", "in force until %s: every request is denied", r.when(instant(numbers[0])))
	default:
		c.addLine("penalty", "over since %s", r.when(instant(numbers[0])))
	}
	violations, err := r.command("zcount", r.key, "-inf", "+inf").Int64()
	if err != nil {
		return err
	}
	c.addLine("violations", "%d", violations)
	if violations > 0 {
		newest, err := r.member(-1, 3)
		if err != nil {
			return err
		}
		c.addLine("", "the newest at %s, of a limit whose wait ends at %s", r.when(instant(newest[0])), r.when(instant(newest[1])))
	}
	return nil
}

// reading.compare evaluates a check of the counter without charging it.
func (r *reading) compare(c *Counter, check *counter.Check) error {
	ctx, cancel := context.WithTimeout(r.ctx, answerTimeout)
	defer cancel()
	peek := *check
	peek.Op, peek.Guard, peek.Violation, peek.Cost = counter.OpLook, 0, 0, 0
	result := make([]counter.Result, 1)
	err := redisstore.ToolLoad(ctx, r.n.client)
	if err == nil {
		err = redisstore.ToolAsk(ctx, r.n.client, []counter.Check{peek}, result)
	}
	if _, asks := redis.IsAskError(err); asks || redis.HasErrorPrefix(err, "TRYAGAIN") {
		c.addLine("limit", "%s: unknown while the slot moves: %v", check.Limit, err)
		return nil
	}
	if err != nil {
		return r.n.explain(err)
	}
	if check.Penalty != nil {
		c.addLine("imposed", "from %s in %s on, for %s at most", plural(int(check.Penalty.Threshold), "violation"),
			time.Duration(check.Penalty.Window)*time.Microsecond, time.Duration(check.Penalty.Longest())*time.Microsecond)
		return nil
	}
	text := fmt.Sprintf("%d of %d left", result[0].Remaining, check.Limit.Capacity())
	if result[0].Wait > 0 {
		text += ", the next in " + span(time.Duration(result[0].Wait)*time.Microsecond)
	}
	if check.UnshardedLimit != nil {
		text += fmt.Sprintf("; all shards together have %s", check.UnshardedLimit)
	}
	c.addLine("limit", "%s: %s", check.Limit, text)
	return nil
}

// decimals parses whole numbers separated by single spaces. It rejects numbers that are too large
// for a counter.
func decimals(text string) (numbers []int64, ok bool) {
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseUint(word, 10, 63)
		if err != nil || n > 1<<53 {
			return nil, false
		}
		numbers = append(numbers, int64(n))
	}
	return numbers, true
}

func instant(micros int64) time.Time { return time.UnixMicro(micros) }

// reading.when formats an instant and its distance from now.
func (r *reading) when(at time.Time) string {
	text := at.UTC().Format("2006-01-02T15:04:05.000Z")
	if away := at.Sub(r.now); away > 0 {
		return text + " (in " + span(away) + ")"
	}
	return text + " (" + span(r.now.Sub(at)) + " ago)"
}

// span formats a duration for people.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d.Round(24*time.Hour)/(24*time.Hour))
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}

// fraction formats parts of a unit as a decimal with three digits.
func fraction(parts, unit int64) string {
	text := strconv.FormatFloat(float64(parts)/float64(unit), 'f', 3, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
