// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/policyfile"
)

// parseDate parses an instant or a day. A day stands for its first instant in UTC.
func parseDate(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if when, err := time.Parse(layout, text); err == nil {
			return when, nil
		}
	}
	return time.Time{}, fmt.Errorf("--%s %q is not a date; write 2027-12-31 or 2027-12-31T12:00:00Z", flag, text)
}

// parseEnd returns the end that --until or --for states, or the zero time.
func parseEnd(until, span string, now time.Time) (time.Time, error) {
	switch {
	case until != "" && span != "":
		return time.Time{}, errors.New("--until and --for both state the end; keep one")
	case span == "":
		return parseDate("until", until)
	}
	length, err := parseSpan("for", span)
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(length).UTC().Truncate(time.Second), nil
}

// parseSpan parses a span such as 12h or 90d.
func parseSpan(flag, text string) (time.Duration, error) {
	span, err := policyfile.Span(text)
	if err != nil {
		return 0, fmt.Errorf("--%s %q %w", flag, text, err)
	}
	return span, nil
}

func parseLimits(texts []string) (map[string][]string, error) {
	limits := map[string][]string{}
	for _, text := range texts {
		rule, limit, ok := strings.Cut(text, "=")
		if !ok || rule == "" || limit == "" {
			return nil, fmt.Errorf("--limit %q has no rule; write search=50/1m, or \"*=500/1m\" for every rule", text)
		}
		limits[rule] = append(limits[rule], limit)
	}
	return limits, nil
}

// currentUser returns the name of the user who runs the command, or "".
func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
