// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func (c *converter) rule(path string, d *Rule) policy.Rule {
	r := policy.Rule{
		Name:        d.Name,
		Match:       c.convertMatch(path+".match", d.Match),
		PerNone:     d.Per != nil && len(*d.Per) == 0,
		Limits:      c.limits(path+".limit", d.Limit),
		Tiers:       c.tiers(path+".tiers", d.Tiers),
		Replaces:    d.Replaces,
		Group:       d.Group,
		Priority:    d.Priority,
		Disabled:    d.Enabled != nil && !*d.Enabled,
		Missing:     choose(c, path+".missing", d.Missing, missings),
		Unverified:  d.Unverified,
		CostAfter:   c.costAfter(path+".cost_after", d.CostAfter),
		CountIf:     c.statuses(path+".count_if", d.CountIf),
		RefundOn:    c.statuses(path+".refund_on", d.RefundOn),
		Action:      choose(c, path+".action", d.Action, actions),
		Throttle:    c.throttle(path+".throttle", d.Throttle),
		OnError:     choose(c, path+".on_error", d.OnError, onErrors),
		Lease:       choose(c, path+".lease", d.Lease, leases),
		Shards:      c.shards(path+".shards", d.Shards),
		Expose:      d.Expose,
		Quota:       d.Quota,
		Response:    c.response(path+".response", d.Response),
		RetryAfter:  c.span(path+".retry_after", d.RetryAfter, counter.Second, counter.FillMax),
		RetryJitter: c.span(path+".retry_jitter", d.RetryJitter, counter.Second, counter.FillMax),
	}
	if d.Per != nil {
		for i, word := range *d.Per {
			r.Per = append(r.Per, c.dimension(Index(path+".per", i), word))
		}
	}
	c.claimedDimensions(path, d, r.Per)
	for i := range d.Cost {
		r.Cost = append(r.Cost, c.cost(Index(path+".cost", i), &d.Cost[i]))
	}
	return r
}

// converter.limits reads limits. An invalid limit becomes the zero Limit, so that the other limits
// keep their indexes.
func (c *converter) limits(path string, texts Words) (limits []counter.Limit) {
	for i, text := range texts {
		limit, err := counter.ParseLimit(text)
		switch at := Index(path, i); {
		case err != nil && text == policy.Unlimited && strings.HasSuffix(path, ".limit"):
			c.problem(at, text, "is for tiers only", "write action: allow in a group, or exempt, or leave the rule out")
		case err != nil && text == policy.Unlimited:
			c.problem(at, text, "conflicts with a limit", "write unlimited alone, or leave it out")
		case err != nil:
			c.limit(at, text, err)
		}
		limits = append(limits, limit)
	}
	return limits
}

func (c *converter) tiers(path string, tiers Tiers) map[string]policy.LimitSet {
	if tiers == nil {
		return nil
	}
	sets := make(map[string]policy.LimitSet, len(tiers))
	for _, tier := range slices.Sorted(maps.Keys(tiers)) { // sorted, so that problems have an order
		texts := tiers[tier]
		if len(texts) == 1 && texts[0] == policy.Unlimited {
			sets[tier] = policy.LimitSet{Unlimited: true}
			continue
		}
		sets[tier] = policy.LimitSet{Limits: c.limits(Join(path, tier), texts)}
	}
	return sets
}

// converter.limit reports an invalid limit. It takes the remedy from the text of the error.
func (c *converter) limit(path, text string, err error) {
	why, remedy := err.Error(), ""
	for _, verb := range []string{": write ", ": lower "} {
		if at := strings.LastIndex(why, verb); at >= 0 {
			why, remedy = why[:at], why[at+len(": "):]
		}
	}
	c.problem(path, text, why, remedy)
}

func (c *converter) cost(path string, d *Cost) policy.Cost {
	remedy := "write how many units a request takes"
	if d.Header != "" {
		remedy += " when the header does not say"
	}
	c.units(path+".n", d.N, remedy)
	return policy.Cost{
		Match:   c.convertMatch(path+".match", d.Match),
		N:       d.N,
		Header:  textproto.CanonicalMIMEHeaderKey(d.Header),
		Trusted: c.prefixes(path+".trusted", d.Trusted),
		Max:     c.optionalUnits(path+".max", d.Max),
	}
}

// converter.units reports a number of units outside the bounds of a cost.
func (c *converter) units(path string, n int64, remedy string) {
	if n < 1 || n > counter.CountMax {
		c.problem(path, strconv.FormatInt(n, 10), fmt.Sprintf("is not between 1 and %d", counter.CountMax), remedy)
	}
}

// optionalUnits returns a number of units, or 0 if none is written.
func (c *converter) optionalUnits(path string, n *int64) int64 {
	if n == nil {
		return 0
	}
	c.units(path, *n, "write another, or leave it out")
	return *n
}

// atLeastOne returns a number, or 0 if none is written.
func (c *converter) atLeastOne(path string, n *int) int {
	if n == nil {
		return 0
	}
	if *n < 1 {
		c.problem(path, strconv.Itoa(*n), "is less than 1", "write a number from 1, or leave it out")
	}
	return *n
}

// converter.shards returns a number of shards, or 0 if none is written.
func (c *converter) shards(path string, n *int) int {
	if n == nil {
		return 0
	}
	if *n < 2 || *n > counter.ShardsMax {
		c.problem(path, strconv.Itoa(*n), fmt.Sprintf("is not between 2 and %d", counter.ShardsMax), "write another, or leave it out")
	}
	return *n
}

func (c *converter) costAfter(path string, d *CostAfter) *policy.CostAfter {
	if d == nil {
		return nil
	}
	c.units(path+".estimate", d.Estimate, "write how many units to charge until the response is known")
	return &policy.CostAfter{
		Header:   textproto.CanonicalMIMEHeaderKey(d.Header),
		JSON:     d.JSON,
		Estimate: d.Estimate,
		Default:  c.optionalUnits(path+".default", d.Default),
		Max:      c.optionalUnits(path+".max", d.Max),
		Unread:   c.optionalUnits(path+".unread", d.Unread),
	}
}

// converter.statuses reads statuses such as 401 and 5xx.
func (c *converter) statuses(path string, d *Statuses) (ranges []policy.Statuses) {
	if d == nil {
		return nil
	}
	if len(d.Status) == 0 {
		c.problem(path+".status", "", "is missing", "write statuses such as 401 and 5xx")
	}
	for i, text := range d.Status {
		if class, ok := strings.CutSuffix(strings.ToLower(text), "xx"); ok && len(class) == 1 && class >= "1" && class <= "5" {
			from := int(class[0]-'0') * 100
			ranges = append(ranges, policy.Statuses{From: from, To: from + 99})
			continue
		}
		status, err := strconv.Atoi(text)
		if err != nil || len(text) != 3 || status < 100 || status > 599 {
			c.problem(Index(path+".status", i), text, "is not a response status", "write one such as 401, or a class such as 5xx")
		}
		ranges = append(ranges, policy.Statuses{From: status, To: status})
	}
	return ranges
}

// maxWaitingDefault is the default of max_waiting, the number of requests that may wait for one
// counter on one proxy.
const maxWaitingDefault = 1000

func (c *converter) throttle(path string, d *Throttle) *policy.Throttle {
	if d == nil {
		return nil
	}
	t := &policy.Throttle{
		MaxDelay:   c.span(path+".max_delay", d.MaxDelay, counter.Millisecond, policy.DelayMax),
		MaxWaiting: c.atLeastOne(path+".max_waiting", d.MaxWaiting),
	}
	if d.MaxDelay == "" {
		c.problem(path+".max_delay", "", "is missing", "write how long a request may wait, such as 2s")
	}
	if d.MaxWaiting == nil {
		t.MaxWaiting = maxWaitingDefault
	}
	return t
}

func (c *converter) response(path string, d *Response) *policy.Response {
	if d == nil {
		return nil
	}
	r := &policy.Response{
		Status:      c.atLeastOne(path+".status", d.Status),
		Message:     d.Message,
		Body:        d.Body,
		ContentType: cmp.Or(d.ContentType, core.BodyContentType(d.Body)),
	}
	for name, value := range d.Headers {
		r.Headers = append(r.Headers, policy.Field{Name: textproto.CanonicalMIMEHeaderKey(name), Value: value})
	}
	slices.SortFunc(r.Headers, func(a, b policy.Field) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// The defaults of a penalty.
const (
	penaltyWindowDefault    = counter.Hour
	penaltyThresholdDefault = 3
)

var penaltyMultipliersDefault = []int64{1, 2, 4, 8}

func (c *converter) penalty(path string, d *Penalty) *counter.Penalty {
	if d == nil {
		return nil
	}
	p := &counter.Penalty{
		Window:      c.span(path+".window", d.Window, counter.Second, counter.PenaltyMax),
		Threshold:   c.optionalUnits(path+".threshold", d.Threshold),
		Multipliers: d.Multipliers,
		Max:         c.span(path+".max", d.Max, counter.Second, counter.PenaltyMax),
	}
	if d.Window == "" {
		p.Window = penaltyWindowDefault
	}
	if d.Threshold == nil {
		p.Threshold = penaltyThresholdDefault
	}
	if d.Multipliers == nil {
		p.Multipliers = slices.Clone(penaltyMultipliersDefault)
	}
	return p
}
