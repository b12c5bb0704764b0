// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
)

// countMax bounds each number of a line, so that sums do not overflow.
const countMax = 1 << 50

// Unreadable is the error for a batch that no node would send. Sending it again cannot succeed.
type Unreadable struct {
	Line int // counted from 1; 0 stands for the whole batch
	Text string
}

func (e *Unreadable) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// Content is what Read has found in a batch.
type Content struct {
	Lines []feed.Line
	// Unread counts the lines that were left out because no node would send them, and First is the
	// error of the first such line.
	Unread int64
	First  *Unreadable
	// Altered counts the lines with a text or a number that was changed to fit into a row.
	Altered int64
}

// Read reads a batch, which may be compressed by gzip. A line that cannot be read is left out and
// counted. If no line of the batch can be read, the error is an [Unreadable].
func Read(body []byte, compressed bool) (*Content, error) {
	from := io.Reader(bytes.NewReader(body))
	if compressed {
		var err error
		if from, err = gzip.NewReader(from); err != nil {
			return nil, &Unreadable{Text: fmt.Sprintf("the batch is not compressed by gzip: %v", err)}
		}
	}
	bounded := &io.LimitedReader{R: from, N: feed.TextBytesMax + 1}
	lines, c := bufio.NewReaderSize(bounded, events.LineBytesMax), new(Content)
	for n := 1; ; n++ {
		text, err := nextLine(lines)
		switch {
		case err == nil && n > feed.LinesMax:
			return nil, &Unreadable{Text: fmt.Sprintf("the batch has more than %d lines: send several", feed.LinesMax)}
		case bounded.N == 0:
			return nil, &Unreadable{Text: fmt.Sprintf("the batch has more than %d bytes: send several", feed.TextBytesMax)}
		case err == io.EOF && n == 1:
			return nil, &Unreadable{Text: "the batch is empty"}
		case err == io.EOF && len(c.Lines) == 0:
			return nil, c.First
		case err == io.EOF:
			return c, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, &Unreadable{Line: n, Text: err.Error()}
		}
		c.addLine(n, text, err)
	}
}

// nextLine returns the next line without its end. The error is bufio.ErrBufferFull if it is too
// long, and io.EOF if there is none.
func nextLine(from *bufio.Reader) (text []byte, err error) {
	text, err = from.ReadSlice('\n')
	for full := err; errors.Is(full, bufio.ErrBufferFull); {
		if _, full = from.ReadSlice('\n'); full != nil && full != io.EOF && !errors.Is(full, bufio.ErrBufferFull) {
			return nil, full
		}
	}
	if err == io.EOF && len(text) > 0 {
		err = nil // the last line needs no end
	}
	return bytes.TrimSuffix(text, []byte("\n")), err
}

// addLine reads a line of a batch and adds it to the content. The parameter number is the number of
// the line.
func (c *Content) addLine(number int, text []byte, err error) {
	line, altered := feed.Line{}, false
	if err == nil {
		line, altered, err = readLine(text)
	}
	if err != nil {
		if c.Unread++; c.First == nil {
			c.First = &Unreadable{Line: number, Text: err.Error()}
		}
		return
	}
	if altered {
		c.Altered++
	}
	c.Lines = append(c.Lines, line)
}

// readLine reads and checks one line. The result altered is true if a text or a number was changed
// to fit.
func readLine(text []byte) (l feed.Line, altered bool, err error) {
	if err := json.Unmarshal(text, &l); err != nil {
		return l, false, fmt.Errorf("it is no line of a batch: %w", err)
	}
	for _, field := range [...]*string{&l.Policy, &l.Version, &l.Rule, &l.Limit, &l.Decision, &l.Client, &l.Tier, &l.Method, &l.Path, &l.State,
		&l.Reason, &l.Node, &l.Region, &l.Endpoint} {
		fit := feed.Fit(*field)
		altered = altered || fit != *field
		*field = fit
	}
	for _, n := range [...]*int64{&l.Count, &l.Admitted, &l.Denied, &l.Units, &l.RetryAfterMS, &l.LatencyUS} {
		if *n < 0 && n != &l.Units { // units may have been refunded
			return l, false, fmt.Errorf("the number %d is below 0", *n)
		}
		if fit := max(-countMax, min(countMax, *n)); fit != *n {
			altered, *n = true, fit
		}
	}
	for _, hash := range l.Keys {
		if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size {
			return l, false, fmt.Errorf("%.70q is no SHA-256 of an API key", hash)
		}
	}
	switch {
	case l.Time.IsZero():
		return l, false, errors.New("the time is missing")
	case l.Kind == feed.KindUsage:
		return l, altered, nil
	case l.Kind != events.KindDenied && l.Kind != events.KindAdmitted && l.Kind != events.KindDegraded && l.Kind != events.KindDropped:
		return l, false, fmt.Errorf("there is no kind %.40q", l.Kind)
	case l.Status < 0 || l.Status > 999 || !(l.Share >= 0 && l.Share <= 1) || !(l.Seconds >= 0 && l.Seconds < 1e10):
		return l, false, errors.New("status, share or seconds are out of bounds")
	}
	if l.IP == "" {
		return l, altered, nil
	}
	if _, err := netip.ParsePrefix(l.IP); err != nil {
		if addr, err := netip.ParseAddr(l.IP); err != nil || addr.Zone() != "" {
			return l, false, fmt.Errorf("ip %.60q is no address", l.IP)
		}
	}
	return l, altered, nil
}
