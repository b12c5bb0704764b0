// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
)

// Bounds of a line.
const (
	textBytesMax = 512
	// countMax bounds each number of a line, so that sums do not overflow.
	countMax = 1 << 50
)

// Unreadable is the error for a batch that no node would send. Sending it again cannot succeed.
type Unreadable struct {
	Line int // counted from 1; 0 stands for the whole
	Text string
}

func (e *Unreadable) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// Read reads a batch, which may be compressed by gzip.
func Read(body []byte, compressed bool) ([]feed.Line, error) {
	from := io.Reader(bytes.NewReader(body))
	if compressed {
		var err error
		if from, err = gzip.NewReader(from); err != nil {
			return nil, &Unreadable{Text: fmt.Sprintf("the batch is not compressed by gzip: %v", err)}
		}
	}
	bounded := &io.LimitedReader{R: from, N: feed.TextBytesMax + 1}
	scanner := bufio.NewScanner(bounded)
	scanner.Buffer(nil, events.LineBytesMax)
	var lines []feed.Line
	for scanner.Scan() {
		if len(lines) == feed.LinesMax {
			return nil, &Unreadable{Text: fmt.Sprintf("the batch has more than %d lines: send several", feed.LinesMax)}
		}
		line, err := readLine(scanner.Bytes())
		if err != nil {
			return nil, &Unreadable{Line: len(lines) + 1, Text: err.Error()}
		}
		lines = append(lines, line)
	}
	switch err := scanner.Err(); {
	case bounded.N == 0:
		return nil, &Unreadable{Text: fmt.Sprintf("the batch has more than %d bytes: send several", feed.TextBytesMax)}
	case err != nil:
		return nil, &Unreadable{Line: len(lines) + 1, Text: err.Error()}
	case len(lines) == 0:
		return nil, &Unreadable{Text: "the batch is empty"}
	}
	return lines, nil
}

// readLine reads and checks one line.
func readLine(text []byte) (l feed.Line, err error) {
	if err := json.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("it is no line of a batch: %w", err)
	}
	for _, field := range [...][2]string{{"policy", l.Policy}, {"version", l.Version}, {"rule", l.Rule}, {"limit", l.Limit}, {"decision", l.Decision},
		{"client", l.Client}, {"tier", l.Tier}, {"method", l.Method}, {"path", l.Path}, {"state", l.State}, {"reason", l.Reason}, {"node", l.Node}} {
		if len(field[1]) > textBytesMax || !utf8.ValidString(field[1]) || strings.ContainsRune(field[1], 0) {
			return l, fmt.Errorf("%s %.40q has more than %d bytes, is not UTF-8, or has a NUL", field[0], field[1], textBytesMax)
		}
	}
	for _, n := range [...]int64{l.Count, l.Admitted, l.Denied, max(l.Units, -l.Units)} { // units may have been refunded
		if n < 0 || n > countMax {
			return l, fmt.Errorf("the number %d is not in 0 to %d", n, countMax)
		}
	}
	switch {
	case l.Time.IsZero():
		return l, errors.New("the time is missing")
	case l.Kind == feed.KindUsage:
		return l, nil
	case l.Kind != events.KindDenied && l.Kind != events.KindAdmitted && l.Kind != events.KindDegraded && l.Kind != events.KindDropped:
		return l, fmt.Errorf("there is no kind %.40q", l.Kind)
	case l.Status < 0 || l.Status > 999 || !(l.Share >= 0 && l.Share <= 1) || !(l.Seconds >= 0 && l.Seconds < 1e10):
		return l, errors.New("status, share or seconds are out of bounds")
	}
	if l.IP == "" {
		return l, nil
	}
	if _, err := netip.ParsePrefix(l.IP); err != nil {
		if addr, err := netip.ParseAddr(l.IP); err != nil || addr.Zone() != "" {
			return l, fmt.Errorf("ip %.60q is no address", l.IP)
		}
	}
	return l, nil
}

// storable returns a text that a row may contain and a terminal shows: control characters, which no
// node sends unescaped, become U+FFFD.
func storable(text string) string {
	if !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}
