// SPDX-License-Identifier: Apache-2.0

// Package limittest parses limits for tests. An invalid limit fails the test.
package limittest

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// Parse returns the limit that is written in the text.
func Parse(t testing.TB, text string) counter.Limit {
	t.Helper()
	l, err := counter.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// New is like [Parse], but returns a pointer, as checks need it.
func New(t testing.TB, text string) *counter.Limit {
	t.Helper()
	l := Parse(t, text)
	return &l
}

// All returns the limits that are written in the texts.
func All(t testing.TB, texts ...string) (limits []counter.Limit) {
	t.Helper()
	for _, text := range texts {
		limits = append(limits, Parse(t, text))
	}
	return limits
}
