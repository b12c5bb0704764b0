// SPDX-License-Identifier: Apache-2.0

package events

import (
	"net/netip"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

// The kinds of events.
const (
	KindDenied   = "denied"
	KindAdmitted = "admitted" // sampled
	KindDegraded = "degraded" // the store has stopped or begun to answer
	KindDropped  = "dropped"  // reports decisions that are in no other event
)

// Event is one line of the log of events. Empty fields are left out of the line.
type Event struct {
	Time     time.Time
	Kind     string
	Policy   string
	Version  string // of the policy
	Rule     string
	Limit    string
	Decision string // the outcome, as in metrics
	Status   int    // of a denial
	Client   string // KIND:ID
	Tier     string
	IP       string
	Method   string
	Path     string
	Node     string
	Region   string  // of the node
	Share    float64 // the fraction of admissions that are reported
	State    string  // for KindDegraded: began or ended
	Reason   string  // the reason, for KindDegraded and KindDropped
	Seconds  float64 // for KindDegraded: how long the outage lasted
	Count    uint64  // of decisions
	// RetryAfterMS is how many milliseconds a denied client should wait, and LatencyUS how many
	// microseconds the decision took; 0 if it is unknown.
	RetryAfterMS int64 `json:"retry_after_ms"`
	LatencyUS    int64 `json:"latency_us"`
}

// Bounds of an event.
const (
	partBytesMax = 256 // the greatest length of a value that a client chooses; no client identifier is longer
	textBytesMax = 512 // the greatest length of any text, such as a client with its kind
	// LineBytesMax is the size of the longest line: six texts, each byte escaped as six bytes.
	LineBytesMax = 24 << 10
)

// TimeForm is the form of a time in an event: UTC, with milliseconds.
const TimeForm = "2006-01-02T15:04:05.000Z"

// AppendJSON appends the event as a JSON object without a line end.
func (e *Event) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"time":"`...)
	dst = e.Time.UTC().AppendFormat(dst, TimeForm)
	dst = append(dst, '"')
	text := func(name, value string) {
		if value != "" {
			dst = append(append(append(dst, `,"`...), name...), `":`...)
			dst = appendText(dst, value)
		}
	}
	number := func(name string, value float64) {
		if value != 0 {
			dst = append(append(append(dst, `,"`...), name...), `":`...)
			dst = strconv.AppendFloat(dst, value, 'f', -1, 64)
		}
	}
	text("kind", e.Kind)
	e.Texts(text)
	number("status", float64(e.Status))
	number("retry_after_ms", float64(e.RetryAfterMS))
	number("latency_us", float64(e.LatencyUS))
	number("seconds", e.Seconds)
	number("share", e.Share)
	dst = append(dst, `,"count":`...)
	return append(strconv.AppendUint(dst, e.Count, 10), '}')
}

// MarshalJSON implements [json.Marshaler].
func (e Event) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil), nil }

// Texts calls yield(...) with the name and the value of each text of the event except its kind, in
// order.
func (e *Event) Texts(yield func(name, value string)) {
	for _, field := range [...][2]string{{"policy", e.Policy}, {"version", e.Version}, {"rule", e.Rule}, {"limit", e.Limit},
		{"decision", e.Decision}, {"client", e.Client}, {"tier", e.Tier}, {"ip", e.IP}, {"method", e.Method}, {"path", e.Path},
		{"state", e.State}, {"reason", e.Reason}, {"node", e.Node}, {"region", e.Region}} {
		yield(field[0], field[1])
	}
}

// appendText appends a JSON string. appendText escapes all unprintable characters, so that a value
// can neither end the line nor control a terminal. Bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	unit := func(c uint16) { // this is one UTF-16 unit
		dst = append(dst, '\\', 'u', hex[c>>12], hex[c>>8&15], hex[c>>4&15], hex[c&15])
	}
	if len(text) > textBytesMax {
		text = cut(text, textBytesMax)
	}
	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == utf8.RuneError || unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x10000:
			unit(uint16(r))
		default:
			r -= 0x10000
			unit(uint16(0xd800 + r>>10))
			unit(uint16(0xdc00 + r&0x3ff))
		}
	}
	return append(dst, '"')
}

// ellipsis ends a value that was too long and was cut.
const ellipsis = "…"

// cut shortens a text to at most n bytes, at the beginning of a character.
func cut(text string, n int) string {
	n -= len(ellipsis)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + ellipsis
}

// kindIP is the kind of clients that are identified by their address.
const kindIP = "ip"

// ShownClient returns a client as KIND:ID. If the ID is an address, only the part that shown
// permits is written: see ShownAddress.
func ShownClient(kind, id string, shown policy.AddressShown) string {
	switch {
	case kind == "":
		return ""
	case kind != kindIP || shown == policy.AddressFull:
		return kind + ":" + id
	}
	prefix, err := netip.ParsePrefix(id)
	if addr, wrong := netip.ParseAddr(id); wrong == nil {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil {
		return kind
	}
	if text := ShownAddress(prefix.Addr(), shown); text != "" {
		return kind + ":" + text
	}
	return kind
}

// ShownAddress returns the part of an address that may be shown.
func ShownAddress(addr netip.Addr, shown policy.AddressShown) string {
	if !addr.IsValid() || shown == policy.AddressNone {
		return ""
	}
	addr = addr.Unmap().WithZone("")
	if shown == policy.AddressFull {
		return addr.String()
	}
	bits := policy.EventIPv4Bits
	if addr.Is6() {
		bits = policy.EventIPv6Bits
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return ""
	}
	return prefix.String()
}
