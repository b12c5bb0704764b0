// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// ruleCost is a compiled entry of a rule's cost list.
type ruleCost struct {
	when    match.Condition
	n       int64
	header  string // canonical name; "" if the cost is always n
	trusted match.AddrSet
	max     int64
}

func compileCosts(sources []policy.Cost) (costs []ruleCost, ok bool) {
	costs = make([]ruleCost, len(sources))
	for i := range sources {
		source := &sources[i]
		when, fine := match.CompileMatch(&source.Match)
		trusted, known := match.CompilePrefixes(source.Trusted)
		if !fine || !known {
			return nil, false
		}
		costs[i] = ruleCost{when: when, n: source.N, header: match.CanonicalHeader(source.Header),
			trusted: match.NewAddrSet(trusted), max: cmp.Or(source.Max, counter.CountMax)}
	}
	return costs, true
}

// rule.cost returns the units that are charged before the request is forwarded: the request's cost
// under the rule, or the estimate if the response will state the cost. If servers read the path in
// more than one way, or a header has several values, the result is at least the cost of each of
// these readings and values.
func (r *rule) cost(req *match.Request) int64 {
	if after := r.after.costAfter; after != nil {
		return after.Estimate
	}
	most := int64(1)
	for i := range r.costs {
		c := &r.costs[i]
		if !c.when.Holds(req) {
			continue
		}
		most = max(most, c.amount(req))
		if c.when.Certain(req) {
			return most
		}
	}
	return most
}

// amount returns the cost of the request according to the entry. A cost header is ignored if its
// sender is not trusted, if it occurs twice, or if its value is not a whole number within bounds.
func (c *ruleCost) amount(req *match.Request) int64 {
	if c.header == "" {
		return c.n
	}
	value, ok := req.Attrs.Header(c.header)
	// Trust depends on the peer of the connection. A forwarded address cannot be used, because the
	// client itself might have sent it.
	if !ok || !c.trusted.Contains(match.PlainAddr(req.Attrs.Remote())) {
		return c.n
	}
	if n, ok := slim.WholeNumber(value, c.max); ok && n >= 1 {
		return n
	}
	req.Unreadable++
	return c.n
}

// costBytesMax bounds the length of a cost's text: CountMax has 13 digits, and the rest leaves room
// for zeros and a fraction.
const costBytesMax = 64

// costNumber parses the cost in a response, a JSON number from 0 to a maximum. A fraction is
// rounded up, because counters hold whole units and a client must not be charged less than it used.
// The conversion is exact.
func costNumber(text string, most int64) (n int64, ok bool) {
	if len(text) > costBytesMax {
		return 0, false
	}
	whole := slim.Digits(text)
	rest, fraction := text[len(whole):], ""
	if strings.HasPrefix(rest, ".") {
		if fraction = slim.Digits(rest[1:]); fraction == "" {
			return 0, false
		}
		rest = rest[1+len(fraction):]
	}
	exponent, ok := readExponent(rest)
	if !ok || whole == "" {
		return 0, false
	}
	point := len(whole) + exponent // index of the first digit of the fraction
	for i := 0; i < point; i++ {
		if n = n*10 + digitAt(whole, fraction, i); n > most {
			return 0, false
		}
		if n == 0 && i >= len(whole)+len(fraction) {
			break // all digits are read, and the number is 0, such as 0e99
		}
	}
	for i := max(0, point); i < len(whole)+len(fraction); i++ {
		if digitAt(whole, fraction, i) != 0 {
			return n + 1, n+1 <= most
		}
	}
	return n, true
}

// readExponent parses the text after the digits of a number: either nothing, or an exponent of at
// most 3 digits.
func readExponent(text string) (exponent int, ok bool) {
	if text == "" {
		return 0, true
	}
	if text[0] != 'e' && text[0] != 'E' || len(text) < 2 {
		return 0, false
	}
	text, negative := text[1:], text[1] == '-'
	if negative || text[0] == '+' {
		text = text[1:]
	}
	n, ok := slim.WholeNumber(text, 999)
	if negative {
		n = -n
	}
	return int(n), ok
}

// digitAt returns the i-th digit of the concatenation whole + fraction, or 0 after the last digit.
func digitAt(whole, fraction string, i int) int64 {
	switch {
	case i < len(whole):
		return int64(whole[i] - '0')
	case i < len(whole)+len(fraction):
		return int64(fraction[i-len(whole)] - '0')
	default:
		return 0
	}
}
