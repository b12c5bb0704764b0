// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Want is an expected answer.
type Want struct {
	Pass    bool        // the upstream is reached
	Status  int         // of the denial, or of the upstream's response
	Shown   *Shown      // the limit in the headers; if nil, only headers in Header may be about limits
	Header  [][2]string // patterns
	Body    *string     // a pattern
	Within  []string    // texts that the body contains
	Without []string    // texts that the body does not contain
	Settled *int64      // units charged when the response was known; nil: no settlement
}

// Shown is a limit that both families of headers show.
type Shown struct {
	Name             string
	Remaining, Limit int64
}

// parseWant parses an expectation, which begins with "pass" or a status. The expected status of a
// passed request is that of the upstream's response.
func parseWant(words []string, says *Says) (w Want, err error) {
	if len(words) == 0 {
		return w, fmt.Errorf("an answer begins with pass or a status")
	}
	w.Pass, w.Status = words[0] == "pass", says.Status
	if !w.Pass {
		if w.Status, err = strconv.Atoi(words[0]); err != nil {
			return w, fmt.Errorf("%q is neither pass nor a status", words[0])
		}
	}
	for _, word := range words[1:] {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case !ok:
			return w, fmt.Errorf("%q is not NAME=VALUE", word)
		case name == "shown":
			w.Shown, err = parseShown(value)
		case name == "body":
			w.Body = &value
		case name == "body~":
			w.Within = append(w.Within, value)
		case name == "body!":
			w.Without = append(w.Without, value)
		case name == "settles":
			var n int64
			n, err = strconv.ParseInt(value, 10, 64)
			w.Settled = &n
		case name[0] < 'A' || name[0] > 'Z':
			err = fmt.Errorf("%q is none of the words of an answer", name)
		default:
			w.Header = append(w.Header, [2]string{name, value})
		}
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// parseShown reads NAME REMAINING/LIMIT.
func parseShown(text string) (*Shown, error) {
	name, numbers, ok := strings.Cut(text, " ")
	remaining, limit, both := strings.Cut(numbers, "/")
	if !ok || !both {
		return nil, fmt.Errorf("%q is not NAME REMAINING/LIMIT", text)
	}
	s := &Shown{Name: name}
	var err error
	if s.Remaining, err = strconv.ParseInt(remaining, 10, 64); err != nil {
		return nil, err
	}
	s.Limit, err = strconv.ParseInt(limit, 10, 64)
	return s, err
}

// told lists the headers that report a limit to the client. If no expectation names one of these
// headers, the header must be absent.
var told = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit", "Ratelimit-Policy",
	"X-Ratelimit-Cost", "Retry-After", "Www-Authenticate"}

// instantMax is a pattern that matches every instant in the answers of the corpus.
const instantMax = "{now+1..now+31700000}"

// Want.patterns returns the patterns of all headers that are checked.
func (w *Want) patterns() map[string]string {
	fields := map[string]string{}
	if s := w.Shown; s != nil {
		fields["X-Ratelimit-Limit"] = strconv.FormatInt(s.Limit, 10)
		fields["X-Ratelimit-Remaining"] = strconv.FormatInt(s.Remaining, 10)
		fields["X-Ratelimit-Reset"] = instantMax
		fields["Ratelimit"] = fmt.Sprintf(`"%s";r=%d;t={0..31700000}`, s.Name, s.Remaining)
	}
	for _, field := range w.Header {
		fields[http.CanonicalHeaderKey(field[0])] = field[1]
	}
	return fields
}

// Problems returns the differences between the answer and the expectation.
func (w *Want) Problems(a *Answer) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	switch {
	case w.Pass != a.Passed:
		add("the upstream was reached: %v, want %v (status %d)", a.Passed, w.Pass, a.Status)
	case a.Status != w.Status:
		add("status %d, want %d", a.Status, w.Status)
	}
	patterns := w.patterns()
	for _, name := range told {
		_, named := patterns[name]
		listed := name == "Ratelimit-Policy" && w.Shown != nil
		if lines := a.Header.Values(name); !named && !listed && len(lines) > 0 {
			add("%s: %q, want none", name, lines)
		}
	}
	if _, named := patterns["Ratelimit-Policy"]; w.Shown != nil && !named {
		item := fmt.Sprintf(`"%s";q=%d`, w.Shown.Name, w.Shown.Limit)
		if !lists(a.Header.Values("Ratelimit-Policy"), item) {
			add("RateLimit-Policy: %q lists no %s", a.Header.Values("Ratelimit-Policy"), item)
		}
	}
	names := make([]string, 0, len(patterns))
	for name := range patterns {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		got, want := strings.Join(a.Header.Values(name), " | "), patterns[name]
		if why := mismatch(want, got, a); why != "" {
			add("%s: %q, want %q: %s", name, got, want, why)
		}
	}
	return append(problems, w.bodyProblems(a)...)
}

// lists reports whether the given lines of RateLimit-Policy contain a list item that begins with
// the text item.
func lists(lines []string, item string) bool {
	for _, one := range strings.Split(strings.Join(lines, ", "), ", ") {
		if rest, ok := strings.CutPrefix(one, item); ok && (rest == "" || rest[0] == ';') {
			return true
		}
	}
	return false
}

func (w *Want) bodyProblems(a *Answer) (problems []string) {
	if w.Body != nil {
		if why := mismatch(*w.Body, a.Body, a); why != "" {
			problems = append(problems, fmt.Sprintf("the body is %q, want %q: %s", a.Body, *w.Body, why))
		}
	}
	for _, part := range w.Within {
		if !strings.Contains(a.Body, part) {
			problems = append(problems, fmt.Sprintf("the body is %q, without %q", a.Body, part))
		}
	}
	for _, part := range w.Without {
		if strings.Contains(a.Body, part) {
			problems = append(problems, fmt.Sprintf("the body is %q, with %q", a.Body, part))
		}
	}
	if w.Settled != nil && a.Counted && a.Settled != *w.Settled {
		problems = append(problems, fmt.Sprintf("%d units were settled, want %d", a.Settled, *w.Settled))
	}
	return problems
}
