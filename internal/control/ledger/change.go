// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The kinds of things that a change can concern.
const (
	WhatClient = "client"
	WhatTier   = "tier"
	WhatToken  = "token"
	WhatPolicy = "policy"
	WhatKey    = "key"
)

// Change is one entry of the audit trail: who changed what, when and why.
type Change struct {
	Number  int64     `json:"change"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Origin  string    `json:"origin" doc:"the address that the change came from, or the command"`
	What    string    `json:"what" enum:"client,tier,token,policy,threshold,key"`
	Subject string    `json:"subject" doc:"KIND:ID of a client, or the name of a tier, token, policy or key"`
	Action  string    `json:"action"`
	Reason  string    `json:"reason"`
	Before  *string   `json:"before" doc:"the text of the record before the change; null if there was no record"`
	After   *string   `json:"after" doc:"the text of the record after the change; null if there is no record"`
	hash    []byte
}

// Change.sum returns the hash of a change. The hash covers the previous hash, and each field with
// its length.
func (c *Change) sum(before []byte) []byte {
	h := sha256.New()
	field := func(text []byte) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		h.Write(text)
	}
	optional := func(text *string) {
		if text == nil {
			field(nil)
			return
		}
		field([]byte("=" + *text)) // distinguishes an empty text from a missing one
	}
	field(before)
	field(fmt.Append(nil, c.Number))
	field(fmt.Append(nil, c.At.UnixMicro()))
	for _, text := range []string{c.Actor, c.Origin, c.What, c.Subject, c.Action, c.Reason} {
		field([]byte(text))
	}
	optional(c.Before)
	optional(c.After)
	return h.Sum(nil)
}

const changeColumns = "change, at, actor, origin, what, subject, action, reason, before, after, hash"

func scanChange(row pgx.CollectableRow) (c Change, err error) {
	err = row.Scan(&c.Number, &c.At, &c.Actor, &c.Origin, &c.What, &c.Subject, &c.Action, &c.Reason, &c.Before, &c.After, &c.hash)
	c.At = c.At.UTC()
	return c, err
}

// History returns at most n changes, the newest first. Their numbers are less than the parameter
// before, unless that is 0, which stands for no bound. An empty subject stands for all subjects.
func (l *Ledger) History(ctx context.Context, what, subject string, before int64, n int) ([]Change, error) {
	if before <= 0 {
		before = 1<<63 - 1
	}
	query, args := "SELECT "+changeColumns+" FROM changes WHERE change < $1 ORDER BY change DESC LIMIT $2", []any{before, n}
	if subject != "" {
		query = "SELECT " + changeColumns + " FROM changes WHERE change < $1 AND what = $3 AND subject = $4 ORDER BY change DESC LIMIT $2"
		args = append(args, what, subject)
	}
	rows, err := l.Pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanChange)
}

// Verified is the result of [Ledger.Verify].
type Verified struct {
	Changes int64  // the number of changes that are unaltered
	Hash    []byte // the hash of the last of them
}

// verifyPage is how many changes Verify reads at a time.
const verifyPage = 1000

// Verify reads the whole audit trail. The result broken names the first change that was altered or
// is missing. If the trail is complete and unaltered, broken is "".
func (l *Ledger) Verify(ctx context.Context) (v Verified, broken string, err error) {
	v.Hash = make([]byte, sha256.Size)
	err = pgx.BeginTxFunc(ctx, l.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for more := true; more; {
			rows, err := tx.Query(ctx, "SELECT "+changeColumns+" FROM changes WHERE change > $1 ORDER BY change LIMIT $2", v.Changes, verifyPage)
			if err != nil {
				return err
			}
			page, err := pgx.CollectRows(rows, scanChange)
			if err != nil {
				return err
			}
			if broken = v.follow(page); broken != "" {
				return nil
			}
			more = len(page) == verifyPage
		}
		var last int64
		var hash []byte
		if err := tx.QueryRow(ctx, "SELECT change, hash FROM chain").Scan(&last, &hash); err != nil {
			return err
		}
		if last != v.Changes || !bytes.Equal(hash, v.Hash) {
			broken = fmt.Sprintf("the audit trail ends at change %d, and its end is recorded at %d", v.Changes, last)
		}
		return nil
	})
	return v, broken, err
}

// Verified.follow checks the next changes of the chain.
func (v *Verified) follow(page []Change) (broken string) {
	for _, c := range page {
		if c.Number != v.Changes+1 {
			return fmt.Sprintf("change %d is missing: after %d comes %d", v.Changes+1, v.Changes, c.Number)
		}
		hash := c.sum(v.Hash)
		if !bytes.Equal(hash, c.hash) {
			return fmt.Sprintf("change %d of %s is not as it was written", c.Number, c.At.Format(time.RFC3339))
		}
		v.Changes, v.Hash = c.Number, hash
	}
	return ""
}
