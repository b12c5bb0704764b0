// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

func (c *converter) rule(path string, d *Rule) core.Rule {
	r := core.Rule{
		Name:        d.Name,
		Match:       c.match(path+".match", d.Match),
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
		RetryAfter:  c.span(path+".retry_after", d.RetryAfter, core.Second, core.FillMax),
		RetryJitter: c.span(path+".retry_jitter", d.RetryJitter, core.Second, core.FillMax),
	}
	if d.Per != nil {
		for i, word := range *d.Per {
			r.Per = append(r.Per, c.dimension(index(path+".per", i), word))
		}
	}
	c.claimedDimensions(path, d, r.Per)
	for i := range d.Cost {
		r.Cost = append(r.Cost, c.cost(index(path+".cost", i), &d.Cost[i]))
	}
	return r
}

// limits reads limits. One that cannot be read is the zero Limit, so that the others keep their numbers.
func (c *converter) limits(path string, texts Words) (limits []core.Limit) {
	for i, text := range texts {
		limit, err := core.ParseLimit(text)
		switch at := index(path, i); {
		case err != nil && text == unlimited && strings.HasSuffix(path, ".limit"):
			c.problem(at, text, "is for tiers only", "write action: allow in a group, or exempt, or leave the rule out")
		case err != nil && text == unlimited:
			c.problem(at, text, "stands beside a limit", "write unlimited alone, or leave it out")
		case err != nil:
			c.limit(at, text, err)
		}
		limits = append(limits, limit)
	}
	return limits
}

// unlimited is what a tier without limits has in their place.
const unlimited = "unlimited"

func (c *converter) tiers(path string, tiers Tiers) map[string]core.LimitSet {
	if tiers == nil {
		return nil
	}
	sets := make(map[string]core.LimitSet, len(tiers))
	for _, tier := range slices.Sorted(maps.Keys(tiers)) { // sorted, so that problems have an order
		texts := tiers[tier]
		if len(texts) == 1 && texts[0] == unlimited {
			sets[tier] = core.LimitSet{Unlimited: true}
			continue
		}
		sets[tier] = core.LimitSet{Limits: c.limits(join(path, tier), texts)}
	}
	return sets
}

// limit reports a limit that could not be read, and puts what its error advises where remedies stand.
func (c *converter) limit(path, text string, err error) {
	why, remedy := err.Error(), ""
	for _, verb := range []string{": write ", ": lower "} {
		if at := strings.LastIndex(why, verb); at >= 0 {
			why, remedy = why[:at], why[at+len(": "):]
		}
	}
	c.problem(path, text, why, remedy)
}

func (c *converter) cost(path string, d *Cost) core.Cost {
	remedy := "write how many units a request takes"
	if d.Header != "" {
		remedy += " when the header does not say"
	}
	c.units(path+".n", d.N, remedy)
	return core.Cost{
		Match:   c.match(path+".match", d.Match),
		N:       d.N,
		Header:  textproto.CanonicalMIMEHeaderKey(d.Header),
		Trusted: c.prefixes(path+".trusted", d.Trusted),
		Max:     c.optionalUnits(path+".max", d.Max),
	}
}

// units reports a number of units that no request can cost.
func (c *converter) units(path string, n int64, remedy string) {
	if n < 1 || n > core.CountMax {
		c.problem(path, strconv.FormatInt(n, 10), fmt.Sprintf("is not between 1 and %d", core.CountMax), remedy)
	}
}

// optionalUnits returns a number of units, or 0 if none is written.
func (c *converter) optionalUnits(path string, n *int64) int64 {
	if n == nil {
		return 0
	}
	c.units(path, *n, "write another, or leave the word out")
	return *n
}

// atLeastOne returns a number, or 0 if none is written.
func (c *converter) atLeastOne(path string, n *int) int {
	if n == nil {
		return 0
	}
	if *n < 1 {
		c.problem(path, strconv.Itoa(*n), "is less than 1", "write a number from 1, or leave the word out")
	}
	return *n
}

// shards returns a number of shards, or 0 if none is written.
func (c *converter) shards(path string, n *int) int {
	if n == nil {
		return 0
	}
	if *n < 2 || *n > core.ShardsMax {
		c.problem(path, strconv.Itoa(*n), fmt.Sprintf("is not between 2 and %d", core.ShardsMax), "write another, or leave the word out")
	}
	return *n
}

func (c *converter) costAfter(path string, d *CostAfter) *core.CostAfter {
	if d == nil {
		return nil
	}
	c.units(path+".estimate", d.Estimate, "write how many units to charge until the response is known")
	return &core.CostAfter{
		Header:   textproto.CanonicalMIMEHeaderKey(d.Header),
		JSON:     d.JSON,
		Estimate: d.Estimate,
		Default:  c.optionalUnits(path+".default", d.Default),
		Max:      c.optionalUnits(path+".max", d.Max),
		Unread:   c.optionalUnits(path+".unread", d.Unread),
	}
}

// statuses reads 401 and 5xx.
func (c *converter) statuses(path string, d *Statuses) (ranges []core.Statuses) {
	if d == nil {
		return nil
	}
	if len(d.Status) == 0 {
		c.problem(path+".status", "", "is missing", "write statuses such as 401 and 5xx")
	}
	for i, text := range d.Status {
		if class, ok := strings.CutSuffix(strings.ToLower(text), "xx"); ok && len(class) == 1 && class >= "1" && class <= "5" {
			from := int(class[0]-'0') * 100
			ranges = append(ranges, core.Statuses{From: from, To: from + 99})
			continue
		}
		status, err := strconv.Atoi(text)
		if err != nil || len(text) != 3 || status < 100 || status > 599 {
			c.problem(index(path+".status", i), text, "is not a response status", "write one such as 401, or a class such as 5xx")
		}
		ranges = append(ranges, core.Statuses{From: status, To: status})
	}
	return ranges
}

// maxWaitingDefault is how many requests may wait for one counter on one proxy if the policy does not say.
const maxWaitingDefault = 1000

func (c *converter) throttle(path string, d *Throttle) *core.Throttle {
	if d == nil {
		return nil
	}
	t := &core.Throttle{
		MaxDelay:   c.span(path+".max_delay", d.MaxDelay, core.Millisecond, core.DelayMax),
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

func (c *converter) response(path string, d *Response) *core.Response {
	if d == nil {
		return nil
	}
	r := &core.Response{
		Status:      c.atLeastOne(path+".status", d.Status),
		Message:     d.Message,
		Body:        d.Body,
		ContentType: cmp.Or(d.ContentType, core.BodyContentType(d.Body)),
	}
	for name, value := range d.Headers {
		r.Headers = append(r.Headers, core.Field{Name: textproto.CanonicalMIMEHeaderKey(name), Value: value})
	}
	slices.SortFunc(r.Headers, func(a, b core.Field) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// The penalty of a policy that says no more than that there is one.
const (
	penaltyWindowDefault    = core.Hour
	penaltyThresholdDefault = 3
)

var penaltyMultipliersDefault = []int64{1, 2, 4, 8}

func (c *converter) penalty(path string, d *Penalty) *core.Penalty {
	if d == nil {
		return nil
	}
	p := &core.Penalty{
		Window:      c.span(path+".window", d.Window, core.Second, core.PenaltyMax),
		Threshold:   c.optionalUnits(path+".threshold", d.Threshold),
		Multipliers: d.Multipliers,
		Max:         c.span(path+".max", d.Max, core.Second, core.PenaltyMax),
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
