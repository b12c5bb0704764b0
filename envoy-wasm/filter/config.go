// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// Config is the configuration of the filter in Envoy.
type Config struct {
	Cluster  string         // Envoy's name for the bridge
	Host     string         // the :authority of calls
	Token    string         // the token sent to the bridge; "" if there is none
	Deadline counter.Micros // how long a call to the bridge may take
	// Deny makes the filter deny requests until it has a policy. After that, the policy decides.
	Deny   bool
	Policy []byte         // a compact policy; nil means that the bridge provides it
	Poll   counter.Micros // how often the filter polls the bridge for a new policy
	// Appended reports whether Envoy appends the address of its peer to X-Forwarded-For
	// (use_remote_address).
	Appended bool
}

// Bounds of the configuration.
const (
	deadlineMin, deadlineMax = counter.Millisecond, 10 * counter.Second
	pollMin, pollMax         = 100 * counter.Millisecond, counter.Hour
	configBytesMax           = compact.PolicyBytesMax * 2
)

// ParseConfig reads lines of "name: value", or a JSON object of strings, numbers and booleans, to
// which Istio converts a pluginConfig. The error lists all problems.
func ParseConfig(data []byte) (Config, error) {
	c := Config{Cluster: "penstock", Host: "penstock", Deadline: 50 * counter.Millisecond, Poll: counter.Second, Appended: true}
	if len(data) > configBytesMax {
		return c, slim.NewError("the configuration is longer than 32 MiB")
	}
	settings, err := settingsOf(slim.TrimSpace(string(data)))
	if err != nil {
		return c, err
	}
	var wrong []error
	seen := map[string]bool{}
	for _, s := range settings {
		if seen[s.name] {
			wrong = append(wrong, slim.NewError(s.name+" is listed twice; leave one out"))
		}
		seen[s.name] = true
		if err := c.set(s.name, s.value); err != nil {
			wrong = append(wrong, err)
		}
	}
	return c, errors.Join(wrong...)
}

// sameBridge reports whether two filters use the same bridge.
func (c *Config) sameBridge(other *Config) bool {
	return c.Cluster == other.Cluster && c.Host == other.Host && c.Token == other.Token
}

type setting struct {
	_           slim.Incomparable
	name, value string
}

func (c *Config) set(name, value string) (err error) {
	switch name {
	case "cluster":
		c.Cluster, err = requireValue(name, value)
	case "host":
		c.Host, err = requireValue(name, value)
	case "token":
		c.Token, err = requireValue(name, value)
	case "deadline":
		c.Deadline, err = parseSpan(name, value, deadlineMin, deadlineMax)
	case "poll":
		c.Poll, err = parseSpan(name, value, pollMin, pollMax)
	case "on_error":
		c.Deny, err = parseChoice(name, value, "allow", "deny")
	case "xff_appended":
		c.Appended, err = parseChoice(name, value, "false", "true")
	case "policy":
		var ok bool
		if c.Policy, ok = base64(value); !ok {
			err = slim.NewError("policy is not in base64; take it from the bridge as it is")
		}
	default:
		err = slim.NewError(slim.Quote(name) + " is unknown; write cluster, host, token, deadline, poll, on_error, xff_appended or policy")
	}
	return err
}

// base64 decodes the padded standard encoding. The library's decoder would add 15 KB to the filter.
func base64(text string) (data []byte, ok bool) {
	digits := strings.TrimSuffix(strings.TrimSuffix(text, "="), "=")
	if padding := len(text) - len(digits); len(text)%4 != 0 || padding > 2 {
		return nil, false
	}
	data = make([]byte, 0, len(digits)*3/4)
	var bits uint32
	for i := range len(digits) {
		var digit byte
		switch c := digits[i]; {
		case c >= 'A' && c <= 'Z':
			digit = c - 'A'
		case c >= 'a' && c <= 'z':
			digit = c - 'a' + 26
		case c >= '0' && c <= '9':
			digit = c - '0' + 52
		case c == '+':
			digit = 62
		case c == '/':
			digit = 63
		default:
			return nil, false
		}
		bits = bits<<6 | uint32(digit)
		if i%4 > 0 { // each digit except the first of four completes a byte
			data = append(data, byte(bits>>(6-i%4*2)))
		}
	}
	return data, true
}

//go:noinline
func requireValue(name, value string) (string, error) {
	if value == "" {
		return "", slim.NewError(name + " is empty; leave it out for the default")
	}
	return value, nil
}

func parseChoice(name, value, no, yes string) (bool, error) {
	if value != no && value != yes {
		return false, slim.NewError(name + ": " + slim.Quote(value) + " is neither " + no + " nor " + yes)
	}
	return value == yes, nil
}

// parseSpan reads a duration: a whole number and ms, s or m.
func parseSpan(name, value string, least, most counter.Micros) (counter.Micros, error) {
	for _, unit := range [...]struct {
		suffix string
		is     counter.Micros
	}{{"ms", counter.Millisecond}, {"s", counter.Second}, {"m", counter.Minute}} {
		digits, ok := strings.CutSuffix(value, unit.suffix)
		if n, whole := slim.ParseWhole(digits); ok && whole {
			if d := counter.Micros(n) * unit.is; n <= int64(most/unit.is) && d >= least {
				return d, nil
			}
			break
		}
	}
	return 0, slim.NewError(name + ": " + slim.Quote(value) + " is no duration from " + least.String() + " to " + most.String() +
		"; write for example 50ms")
}

// settingsOf reads the settings from lines or from a JSON object.
func settingsOf(text string) ([]setting, error) {
	if strings.HasPrefix(text, "{") {
		return objectOf(text)
	}
	// Envoy passes a Struct in protobuf encoding.
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' }) {
		return nil, slim.NewError("the configuration is no text; write it as a google.protobuf.StringValue, in lines or as JSON")
	}
	var settings []setting
	for i, line := range slim.Split(text, "\n") {
		line = slim.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, slim.NewError("line " + strconv.Itoa(i+1) + " is not \"name: value\"")
		}
		settings = append(settings, setting{name: slim.TrimSpace(name), value: slim.Trim(slim.TrimSpace(value), `"`)})
	}
	return settings, nil
}

// objectOf reads a flat JSON object. Its strings have no escapes.
func objectOf(text string) ([]setting, error) {
	malformed := slim.NewError(`the configuration is not a flat object such as {"cluster": "penstock"}, without null and without escapes in texts`)
	rest, ok := strings.CutSuffix(text[1:], "}")
	if !ok {
		return nil, malformed
	}
	var settings []setting
	for rest = slim.TrimSpace(rest); rest != ""; {
		var s setting
		if s.name, rest, ok = readToken(rest); !ok || !strings.HasPrefix(rest, ":") {
			return nil, malformed
		}
		if s.value, rest, ok = readToken(slim.TrimSpace(rest[1:])); !ok {
			return nil, malformed
		}
		settings = append(settings, s)
		if rest == "" {
			break
		}
		if rest, ok = strings.CutPrefix(rest, ","); !ok || slim.TrimSpace(rest) == "" {
			return nil, malformed
		}
		rest = slim.TrimSpace(rest)
	}
	return settings, nil
}

// readToken reads a quoted string or a bare word, and returns the text after it.
func readToken(text string) (value, rest string, ok bool) {
	if quoted, found := strings.CutPrefix(text, `"`); found {
		end := slim.IndexAny(quoted, `"\`)
		if end < 0 || quoted[end] != '"' {
			return "", "", false
		}
		return quoted[:end], slim.TrimSpace(quoted[end+1:]), true
	}
	end := slim.IndexAny(text, " ,:}{[]\"\t\r\n")
	if end < 0 {
		end = len(text)
	}
	// null is not a valid value of any setting
	return text[:end], slim.TrimSpace(text[end:]), end > 0 && text[:end] != "null"
}
