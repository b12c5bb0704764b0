// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

func TestParseLimitReads(t *testing.T) {
	for _, c := range []struct {
		text      string
		algorithm counter.Algorithm
		count     int64
		window    counter.Micros
		capacity  int64
		canonical string
	}{
		{"100/1m", counter.SlidingWindow, 100, counter.Minute, 100, "100/1m"},
		{"100/60s", counter.SlidingWindow, 100, counter.Minute, 100, "100/1m"},
		{" 100/1m  sw ", counter.SlidingWindow, 100, counter.Minute, 100, "100/1m"},
		{"100/1m sliding_window_counter", counter.SlidingWindow, 100, counter.Minute, 100, "100/1m"},
		{"7/90s", counter.SlidingWindow, 7, 90 * counter.Second, 7, "7/90s"},
		{"5000/1d fixed_window", counter.FixedWindow, 5000, counter.Day, 5000, "5000/1d fixed_window"},
		{"5000/31d fw", counter.FixedWindow, 5000, 31 * counter.Day, 5000, "5000/31d fixed_window"},
		{"10000/500ms sl", counter.SlidingLog, 10000, 500 * counter.Millisecond, 10000, "10000/500ms sliding_log"},
		{"10/1s burst 20", counter.TokenBucket, 10, counter.Second, 20, "10/1s burst 20"},
		{"10/1s burst 20 tb", counter.TokenBucket, 10, counter.Second, 20, "10/1s burst 20"},
		{"10/1s burst 10", counter.TokenBucket, 10, counter.Second, 10, "10/1s token_bucket"},
		{"10/24h token_bucket", counter.TokenBucket, 10, counter.Day, 10, "10/1d token_bucket"},
		{"1099511627776/1d fw", counter.FixedWindow, counter.CountMax, counter.Day, counter.CountMax, "1099511627776/1d fixed_window"},
		{"5000/day", counter.FixedWindow, 5000, counter.Day, 5000, "5000/day"},
		{"5000/week fw", counter.FixedWindow, 5000, 7 * counter.Day, 5000, "5000/week"},
		{"100000/month fixed_window", counter.FixedWindow, 100000, 30 * counter.Day, 100000, "100000/month"},
		{"1099511627776/year", counter.FixedWindow, counter.CountMax, 365 * counter.Day, counter.CountMax, "1099511627776/year"},
	} {
		l, err := counter.ParseLimit(c.text)
		if err != nil {
			t.Errorf("ParseLimit(%q): %v", c.text, err)
			continue
		}
		if l.Algorithm() != c.algorithm || l.Count() != c.count || l.Window() != c.window || l.Capacity() != c.capacity {
			t.Errorf("ParseLimit(%q) = %v %d/%v capacity %d", c.text, l.Algorithm(), l.Count(), l.Window(), l.Capacity())
		}
		if l.String() != c.canonical {
			t.Errorf("ParseLimit(%q).String() = %q, want %q", c.text, l.String(), c.canonical)
		}
	}
}

// TestParseLimitRejects tests that every mistake is rejected with a message that states what to
// write instead.
func TestParseLimitRejects(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"", "write COUNT/WINDOW"},
		{"   ", "write COUNT/WINDOW"},
		{"100", "has no window"},
		{"/1m", "count is missing"},
		{"100/", "is not a duration"},
		{"100/hour", "write 1h"},
		{"100/Hours", "write 1h"},
		{"100/minute", "write 1m"},
		{"100/second", "write 1s"},
		{"100/s", "write 1s"},
		{"100/ms", "write 1ms"},
		{"100/m", "write 1m"},
		{"100/days", "write day"},
		{"100/Week", "write week"},
		{"100/1month", "write month, or a duration, 30d"},
		{"100/2years", "write year"},
		{"100/day sliding_window", "sliding_window does not go with the calendar window"},
		{"100/week sl", "sliding_log does not go with the calendar window"},
		{"100/month tb", "leave it out, or write a duration, 30d"},
		{"100/day burst 20", "burst 20 does not go with the calendar window"},
		{"100/day burst 20 fw", "burst 20 does not go with the calendar window"},
		{"100/day leaky", `"leaky" is not an algorithm`},
		{"100/day fw sw", `"sw" follows the algorithm`},
		{"0/day", "count 0 is out of bounds"},
		{"1099511627777/year", "out of bounds"},
		{"100/60", "write 60s"},
		{"100/1h30m", `window "1h30m" is not one whole number and one unit of ms, s, m, h and d: write 90m`},
		{"100/1.5s", "one whole number and one unit of ms, s, m, h and d: write 1500ms"},
		{"100/1.5h", ": write 90m"},
		{"100/24h0m", ": write 1d"},
		{"100/2w", ": write 14d"},
		{"100/5w", "write for example 90m"},
		{"100/0w", "write for example 90m"},
		{"100/744h1m", "write for example 90m"},
		{"100/1m0.5ms", "write for example 90m"},
		{"100/1us", "one whole number and one unit"},
		{"100/1M", "one whole number and one unit"},
		{"100/-1m", "is not a duration"},
		{"100/0s", "between 1ms and 31d"},
		{"100/32d", "between 1ms and 31d, or month or year, which are the calendar's"},
		{"100/99999999999999999999s", "between 1ms and 31d"},
		{"0/1m", "count 0 is out of bounds"},
		{"-1/1m", "not a whole number"},
		{"+1/1m", "not a whole number"},
		{"1.5/1m", "not a whole number"},
		{"1_000/1m", "not a whole number"},
		{"1e3/1m", "not a whole number"},
		{"99999999999999999999/1m", "out of bounds"},
		{"1099511627777/1m", "out of bounds"},
		{"10001/1m sl", "sliding_log takes 1 to 10000"},
		{"10/1m burst", "burst has no number"},
		{"10/1m burst 0", "leave burst out"},
		{"10/1m burst -5", "not a whole number"},
		{"10/1m burst 2.5", "not a whole number"},
		{"10/1m burst 20 fixed_window", "only token_bucket has a burst"},
		{"10/1m burst 20 sw", "only token_bucket has a burst"},
		{"10/1m token_bucket burst 20", "write burst N token_bucket"},
		{"10/1m leaky", `"leaky" is not an algorithm`},
		{"10/1m fw sw", `"sw" follows the algorithm`},
		{"10/1m fw 100/1d", "as a list"},
		{"10 / 1m", "has no window"},
		{"1/31d burst 1099511627776", "takes longer than"},
		{strings.Repeat("1", 129), "too long"},
	} {
		rejectsLimit(t, c.text, c.says)
	}
}

// TestParseLimitRejectsLeadingZeros: a number with leading zeros is rejected, because some parsers
// read 010 as eight. A number that is zero in any base is reported as out of bounds.
func TestParseLimitRejectsLeadingZeros(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"010/1m", `count "010" begins with 0, which some parsers read as octal: write 10`},
		{"010/month", `count "010" begins with 0`},
		{"0099/1m fw", ": write 99"},
		{"10/090s", `window "090s" begins with 0, which some parsers read as octal: write 90s`},
		{"10/007d", ": write 7d"},
		{"10/1m burst 020", `burst "020" begins with 0, which some parsers read as octal: write 20`},
		{"10/1m burst 020 tb", ": write 20"},
		{"00/1m", "count 0 is out of bounds"},
		{"10/00s", "between 1ms and 31d"},
		{"10/1m burst 00", "leave burst out"},
		{"0x10/1m", "not a whole number"},
		{"01e3/1m", "not a whole number"},
		{"0-1/1m", "not a whole number"},
		{"099999999999999999999/1m", ": write 99999999999999999999"},
	} {
		rejectsLimit(t, c.text, c.says)
	}
}

// rejectsLimit fails the test unless the text is rejected with a message that contains the last
// argument.
func rejectsLimit(t *testing.T, text, says string) {
	t.Helper()
	l, err := counter.ParseLimit(text)
	if err == nil {
		t.Errorf("ParseLimit(%q) = %v, want an error", text, l)
	} else if !strings.Contains(err.Error(), says) {
		t.Errorf("ParseLimit(%q): %v; want it to say %q", text, err, says)
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"100/1m", "10/1s burst 20", "5000/1d fixed_window", "1/1ms sl", "3/31d tb", "1/day",
		"7/week fw", "1/month burst 2", "010/01m burst 020",
		"10/1m burst 0", "10/1h30m", "99999999999999999999/1m", "1/1m\x00", "۱/1m", "1099511627776/31d burst 9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := counter.ParseLimit(text)
		if err != nil {
			if l != (counter.Limit{}) {
				t.Errorf("ParseLimit(%q) returns both %v and %v", text, l, err)
			}
			return
		}
		again, err := counter.ParseLimit(l.String())
		if err != nil || again != l {
			t.Errorf("ParseLimit(%q) = %v, which reads back as %v, %v", text, l, again, err)
		}
	})
}
