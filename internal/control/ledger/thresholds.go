// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// WhatThreshold is the kind of the changes of thresholds.
const WhatThreshold = "threshold"

// Bounds of thresholds.
const (
	thresholdsMax = 1000
	percentsMax   = 10
	percentMax    = 1000
	urlBytesMax   = 1000
	textBytesMax  = 512
)

// Threshold names the receiver that is called when a client has used a share of a quota in a
// calendar month (UTC).
type Threshold struct {
	Threshold string    `json:"threshold"`
	Policy    string    `json:"policy"`
	Rule      string    `json:"rule"`
	Client    string    `json:"client,omitempty" doc:"KIND:ID; absent for each client by itself"`
	Tier      string    `json:"tier,omitempty" doc:"only usage in this tier"`
	Units     int64     `json:"units" doc:"the quota of a month"`
	Percents  []int     `json:"percents" doc:"shares of the quota, each told once a month"`
	URL       string    `json:"url" doc:"who is told, by POST; only scheme and host for roles below admin"`
	Revision  int64     `json:"revision" doc:"the number of the latest change"`
	UpdatedAt time.Time `json:"updated_at"`
}

const thresholdColumns = "threshold, policy, rule, client, tier, units, percents, url, revision, updated_at"

func scanThreshold(row pgx.CollectableRow) (t Threshold, err error) {
	err = row.Scan(&t.Threshold, &t.Policy, &t.Rule, &t.Client, &t.Tier, &t.Units, &t.Percents, &t.URL, &t.Revision, &t.UpdatedAt)
	t.UpdatedAt = t.UpdatedAt.UTC()
	return t, err
}

// Thresholds returns the next n thresholds after the given one, sorted by name.
func (l *Ledger) Thresholds(ctx context.Context, after string, n int) ([]Threshold, error) {
	rows, err := l.Pool.Query(ctx, "SELECT "+thresholdColumns+" FROM thresholds WHERE threshold > $1 ORDER BY threshold LIMIT $2", after, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanThreshold)
}

// PutThreshold makes a threshold, or replaces it.
func (l *Ledger) PutThreshold(ctx context.Context, actor Actor, t Threshold, reason string) (put Threshold, err error) {
	if err := checkReason(reason); err != nil {
		return put, err
	}
	if err := checkThreshold(&t); err != nil {
		return put, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		before, others, err := w.threshold(ctx, t.Threshold)
		if err != nil {
			return err
		}
		if before == nil && others >= thresholdsMax {
			return &Invalid{Value: others, Text: fmt.Sprintf("there are %d thresholds, and no more can be: leave out the client, so that one counts for all", others)}
		}
		if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatThreshold, Subject: t.Threshold, Action: "put", Reason: reason,
			Before: before.text(), After: t.text()}); err != nil {
			return err
		}
		t.Revision, t.UpdatedAt = w.last, w.now
		_, err = w.tx.Exec(ctx, "INSERT INTO thresholds ("+thresholdColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (threshold) DO UPDATE "+
			"SET policy = excluded.policy, rule = excluded.rule, client = excluded.client, tier = excluded.tier, units = excluded.units, "+
			"percents = excluded.percents, url = excluded.url, revision = excluded.revision, updated_at = excluded.updated_at",
			t.Threshold, t.Policy, t.Rule, t.Client, t.Tier, t.Units, t.Percents, t.URL, t.Revision, t.UpdatedAt)
		return err
	})
	return t, err
}

// writeTx.threshold returns a threshold, or nil if there is none, and the number of all thresholds.
func (w *writeTx) threshold(ctx context.Context, name string) (t *Threshold, all int, err error) {
	rows, err := w.tx.Query(ctx, "SELECT "+thresholdColumns+" FROM thresholds WHERE threshold = $1", name)
	if err != nil {
		return nil, 0, err
	}
	found, err := pgx.CollectRows(rows, scanThreshold)
	if err != nil {
		return nil, 0, err
	}
	if len(found) > 0 {
		t = &found[0]
	}
	return t, all, w.tx.QueryRow(ctx, "SELECT count(*) FROM thresholds").Scan(&all)
}

// Threshold.text returns the form of a threshold in the audit trail; nil if there is none. Viewers
// can read the audit trail, so this form has only the host of the receiver.
func (t *Threshold) text() *string {
	if t == nil {
		return nil
	}
	short := *t
	short.Revision, short.UpdatedAt = 0, time.Time{}
	short.URL = Host(short.URL)
	text, err := json.Marshal(short)
	if err != nil { // texts and numbers can always be marshaled
		return nil
	}
	s := string(text)
	return &s
}

// DeleteThreshold removes a threshold. Notices that were already made are still delivered.
func (l *Ledger) DeleteThreshold(ctx context.Context, actor Actor, name, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	return l.write(ctx, func(w *writeTx) error {
		if !thresholdName.MatchString(name) {
			return ErrNone
		}
		before, _, err := w.threshold(ctx, name)
		switch {
		case err != nil:
			return err
		case before == nil:
			return ErrNone
		}
		if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatThreshold, Subject: name, Action: "delete", Reason: reason,
			Before: before.text()}); err != nil {
			return err
		}
		_, err = w.tx.Exec(ctx, "DELETE FROM thresholds WHERE threshold = $1", name)
		return err
	})
}

var thresholdName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// checkThreshold returns an [Invalid] if a threshold is invalid, and sorts its shares.
func checkThreshold(t *Threshold) error {
	invalid := func(place string, value any, format string, args ...any) error {
		return &Invalid{Place: place, Value: value, Text: fmt.Sprintf(format, args...)}
	}
	if !thresholdName.MatchString(t.Threshold) {
		return invalid("threshold", t.Threshold, "the name %.80q is not of the form [A-Za-z0-9._-]{1,64}", t.Threshold)
	}
	for _, field := range []struct {
		place, value string
		least        int
	}{{"policy", t.Policy, 1}, {"rule", t.Rule, 1}, {"tier", t.Tier, 0}} {
		if len(field.value) < field.least || len(field.value) > textBytesMax || !utf8.ValidString(field.value) || strings.ContainsFunc(field.value, unicode.IsControl) {
			return invalid(field.place, field.value, "%s %.40q has a control character, or not between %d and %d bytes: write the name of one", field.place,
				field.value, field.least, textBytesMax)
		}
	}
	if t.Client != "" {
		name, err := Name(t.Client)
		if err != nil {
			return err
		}
		t.Client = name.String()
	}
	if t.Units < 1 {
		return invalid("units", t.Units, "a quota of %d units must be at least 1: write a number of units in a month", t.Units)
	}
	t.Percents = slices.Compact(slices.Sorted(slices.Values(t.Percents)))
	if len(t.Percents) == 0 || len(t.Percents) > percentsMax || t.Percents[0] < 1 || t.Percents[len(t.Percents)-1] > percentMax {
		return invalid("percents", t.Percents, "the shares are not 1 to %d numbers from 1 to %d: write [80, 100]", percentsMax, percentMax)
	}
	return checkURL(t.URL)
}

// checkURL returns an [Invalid] if the URL of a receiver is invalid. The addresses of the receiver
// are checked when it is called.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > urlBytesMax || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" ||
		strings.ContainsFunc(text, unicode.IsControl) {
		return &Invalid{Place: "url", Value: text, Text: fmt.Sprintf("the url %.80q is no receiver: write https://HOST/PATH, of at most %d bytes, without a user", text, urlBytesMax)}
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.Zone() != "" {
		return &Invalid{Place: "url", Value: text, Text: "the url has an address with a zone: write a host name"}
	}
	return nil
}

// Host returns the scheme and the host of a receiver. The path and the query of a receiver's URL
// may be secrets.
func Host(receiver string) string {
	u, err := url.Parse(receiver)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// Notice is a message which says that a client has used a share of a quota.
type Notice struct {
	Notice    string     `json:"notice" doc:"the identifier of the message: its header webhook-id"`
	Threshold string     `json:"threshold"`
	Client    string     `json:"client"`
	Month     string     `json:"month" doc:"the month, in UTC, such as 2026-11"`
	Percent   int        `json:"percent"`
	Used      float64    `json:"used" doc:"the units used when the notice was made"`
	Units     int64      `json:"units" doc:"the quota"`
	MadeAt    time.Time  `json:"made_at"`
	Attempts  int        `json:"attempts"`
	NextAt    *time.Time `json:"next_at,omitempty" doc:"the next attempt; absent if it is delivered or given up"`
	Delivered *time.Time `json:"delivered_at,omitempty"`
	Trouble   string     `json:"trouble,omitempty" doc:"why the last attempt failed"`
}

// NoticeKey is the position of a notice. Notices are in the order of their keys, the newest first.
type NoticeKey struct {
	MadeAt time.Time `json:"made_at"`
	Notice string    `json:"notice"`
}

// Notices returns the newest n notices of a threshold that come after a key, or the newest n if the
// key is nil.
func (l *Ledger) Notices(ctx context.Context, threshold string, after *NoticeKey, n int) ([]Notice, error) {
	query, args := "", []any{threshold, n}
	if after != nil {
		query, args = " AND (made_at, notice) < ($3, $4)", append(args, after.MadeAt, after.Notice)
	}
	rows, err := l.Pool.Query(ctx, "SELECT notice, threshold, client, to_char(month, 'YYYY-MM'), percent, used::float8, units, made_at, attempts, next_at, "+
		"delivered_at, trouble FROM notices WHERE threshold = $1"+query+" ORDER BY made_at DESC, notice DESC LIMIT $2", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Notice, err error) {
		err = row.Scan(&o.Notice, &o.Threshold, &o.Client, &o.Month, &o.Percent, &o.Used, &o.Units, &o.MadeAt, &o.Attempts, &o.NextAt, &o.Delivered, &o.Trouble)
		o.MadeAt = o.MadeAt.UTC()
		return o, err
	})
}
