// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// A Grant permits a client to use a number of units in addition to a limit. It applies to one
// window of the limit, the one that contains At.
type Grant struct {
	Rule  string `json:"rule"`
	Units int64  `json:"units"`
	// Window is the window of the limit, written as in a limit: "1h" or "month". "" stands for the
	// longest fixed or calendar window that the client has under the rule.
	Window string    `json:"window,omitempty"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// parseWindow returns a limit of one unit with a fixed or calendar window.
func parseWindow(window string) (counter.Limit, error) {
	l, err := counter.ParseLimit("1/" + window + " fixed_window")
	if err != nil {
		return l, fmt.Errorf("window of a grant: %w", err)
	}
	return l, nil
}

// WindowLabel returns the label of the grant's window as core spells it, or "" if the grant names
// no window.
func (g *Grant) WindowLabel() (string, error) {
	if g.Window == "" {
		return "", nil
	}
	l, err := parseWindow(g.Window)
	return l.WindowLabel(), err
}

// calendarSpare is more than the difference between a calendar period and its typical length.
const calendarSpare = 3 * 24 * time.Hour

// Ended reports whether the window of the grant has certainly ended. Time zones and the limits of
// the client are not known here. So a grant in a calendar window counts as ended when the period's
// typical length and three days have passed since the grant was made. A grant without a window is
// treated as one for a year.
func (g *Grant) Ended(now time.Time) bool {
	window := g.Window
	if window == "" {
		window = counter.CalendarYear.String()
	}
	l, err := parseWindow(window)
	if err != nil {
		return false // this cannot happen, because the record was checked
	}
	if l.Calendar() != 0 {
		return now.Sub(g.At) > time.Duration(l.Window())*time.Microsecond+calendarSpare
	}
	return now.UnixMicro()/int64(l.Window()) > g.At.UnixMicro()/int64(l.Window())
}

// Record.grants checks and returns the grants of a record.
func (r *Record) grants() ([]policy.Grant, error) {
	list := make([]policy.Grant, len(r.Grants))
	for i := range r.Grants {
		g := &r.Grants[i]
		label, err := g.WindowLabel()
		if err != nil {
			return nil, err
		}
		if g.At.UnixMicro() <= 0 {
			return nil, fmt.Errorf("grant for rule %q: at %s is no instant of a grant", g.Rule, g.At.Format(time.RFC3339))
		}
		if err := checkText("reason of the grant", g.Reason, TextBytesMax); err != nil {
			return nil, err
		}
		list[i] = policy.Grant{Rule: g.Rule, Window: label, Units: g.Units, At: counter.Micros(g.At.UnixMicro())}
	}
	return list, nil
}

// Edit.grant returns the existing grants, followed by the grant that the edit describes.
func (e *Edit) grant(before []Grant, now time.Time) []Grant {
	return append(before, Grant{Rule: e.Rule, Units: e.Units, Window: e.Window, At: now.UTC().Truncate(time.Microsecond), Reason: e.Reason})
}

// Edit.ungrant returns the grants without those for the rule of an edit, or no grants if the edit
// names no rule.
func (e *Edit) ungrant(before []Grant) ([]Grant, error) {
	after := slices.DeleteFunc(slices.Clone(before), func(g Grant) bool { return e.Rule == "" || g.Rule == e.Rule })
	switch {
	case len(after) < len(before):
		return after, nil
	case e.Rule == "":
		return nil, newEditError("%s has no grant whose window may last", e.Client)
	}
	return nil, newEditError("%s has no grant for rule %q whose window may last", e.Client, e.Rule)
}

// withoutEnded returns a copy of the grants, without those whose windows have certainly ended.
func withoutEnded(grants []Grant, now time.Time) []Grant {
	var lasting []Grant
	for _, g := range grants {
		if !g.Ended(now) {
			lasting = append(lasting, g)
		}
	}
	return lasting
}
