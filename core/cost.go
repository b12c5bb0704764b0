// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"strings"
)

// ruleCost is one entry of a rule's cost list, made ready for requests.
type ruleCost struct {
	when    condition
	n       int64
	header  string // canonical; "": n always
	trusted addrSet
	max     int64
}

func compileCosts(sources []Cost) (costs []ruleCost, ok bool) {
	costs = make([]ruleCost, len(sources))
	for i := range sources {
		source := &sources[i]
		when, fine := compileMatch(&source.Match)
		trusted, known := compilePrefixes(source.Trusted)
		if !fine || !known {
			return nil, false
		}
		costs[i] = ruleCost{when: when, n: source.N, header: canonicalHeader(source.Header),
			trusted: newAddrSet(trusted), max: cmp.Or(source.Max, CountMax)}
	}
	return costs, true
}

// cost returns what is charged before the request goes on: what it costs under the rule, or the estimate where the
// response will say. Of a path that servers read in more than one way it is no less than what each of them would cost.
func (r *rule) cost(req *request) int64 {
	if after := r.after.costAfter; after != nil {
		return after.Estimate
	}
	most := int64(1)
	for i := range r.costs {
		c := &r.costs[i]
		if !c.when.holds(req) {
			continue
		}
		most = max(most, c.amount(req))
		if c.when.certain(req) {
			return most
		}
	}
	return most
}

// amount returns what the entry says that the request costs. A header that a stranger sends, that comes twice, or that
// holds anything but a whole number within bounds says nothing.
func (c *ruleCost) amount(req *request) int64 {
	if c.header == "" {
		return c.n
	}
	value, ok := req.attrs.Header(c.header)
	// It is about who holds the connection and not about the client: what a proxy says of the client's address, the client
	// may have said to the proxy.
	if !ok || !c.trusted.contains(plainAddr(req.attrs.Remote())) {
		return c.n
	}
	if n, ok := wholeNumber(value, c.max); ok && n >= 1 {
		return n
	}
	req.unreadable++
	return c.n
}

// costBytesMax is how long the text of a cost may be: CountMax has 13 digits, the rest is for zeros and a fraction.
const costBytesMax = 64

// wholeNumber reads a text of nothing but digits, up to most.
func wholeNumber(text string, most int64) (n int64, ok bool) {
	if text == "" || len(text) > costBytesMax {
		return 0, false
	}
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			return 0, false
		}
		if n = n*10 + int64(text[i]-'0'); n > most {
			return 0, false
		}
	}
	return n, true
}

// costNumber reads a cost as responses say it: a number as JSON writes it, from 0 to most. A fraction is rounded up, for
// counters hold whole units and nobody is to be charged less than was used. It is exact.
func costNumber(text string, most int64) (n int64, ok bool) {
	if len(text) > costBytesMax {
		return 0, false
	}
	whole := digits(text)
	rest, fraction := text[len(whole):], ""
	if strings.HasPrefix(rest, ".") {
		if fraction = digits(rest[1:]); fraction == "" {
			return 0, false
		}
		rest = rest[1+len(fraction):]
	}
	exponent, ok := readExponent(rest)
	if !ok || whole == "" {
		return 0, false
	}
	point := len(whole) + exponent // where the fraction begins, counted in digits
	for i := 0; i < point; i++ {
		if n = n*10 + digitAt(whole, fraction, i); n > most {
			return 0, false
		}
		if n == 0 && i >= len(whole)+len(fraction) {
			break // 0e99
		}
	}
	for i := max(0, point); i < len(whole)+len(fraction); i++ {
		if digitAt(whole, fraction, i) != 0 {
			return n + 1, n+1 <= most
		}
	}
	return n, true
}

// readExponent reads what may follow the digits of a number. An exponent of more digits than any cost has is no
// exponent of one.
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
	n, ok := wholeNumber(text, 999)
	if negative {
		n = -n
	}
	return int(n), ok
}

// digits returns the digits that the text begins with.
func digits(text string) string {
	n := 0
	for n < len(text) && isDigit(text[n]) {
		n++
	}
	return text[:n]
}

// digitAt returns the i-th digit of whole and fraction together; after the last there are zeros.
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

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
