// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/retain"
)

// Forgotten holds the numbers of rows that named a client.
type Forgotten struct {
	Events  int64 `json:"events"`
	Usage   int64 `json:"usage" doc:"rows of days; their sums are kept without the name"`
	Denials int64 `json:"denials" doc:"rows of hours; their sums are kept without the name"`
}

// The statements that remove a client's name from usage and events. Sums move to the rows without a
// name, so that totals stay exact.
const (
	forgetEvents = "UPDATE rate_limit_events SET client = '', ip = NULL, path = '' WHERE client = $1"
	moveUsage    = "INSERT INTO client_usage AS t (day, client, policy, rule, tier, admitted, denied, units) " +
		"SELECT day, '', policy, rule, tier, admitted, denied, units FROM client_usage WHERE client = $1 ORDER BY policy, rule, tier, day " +
		"ON CONFLICT (client, policy, rule, tier, day) DO UPDATE " +
		"SET admitted = t.admitted + excluded.admitted, denied = t.denied + excluded.denied, units = t.units + excluded.units"
	forgetUsage = "DELETE FROM client_usage WHERE client = $1"
	moveRegions = "INSERT INTO client_usage_regions AS t (day, client, policy, rule, tier, region, admitted, denied, units) " +
		"SELECT day, '', policy, rule, tier, region, admitted, denied, units FROM client_usage_regions WHERE client = $1 ORDER BY policy, rule, tier, region, day " +
		"ON CONFLICT (client, policy, rule, tier, region, day) DO UPDATE " +
		"SET admitted = t.admitted + excluded.admitted, denied = t.denied + excluded.denied, units = t.units + excluded.units"
	forgetRegions = "DELETE FROM client_usage_regions WHERE client = $1"
	moveDenials   = "INSERT INTO client_denials AS t (at, policy, rule, client, denied) " +
		"SELECT at, policy, rule, '', denied FROM client_denials WHERE client = $1 ORDER BY at, policy, rule " +
		"ON CONFLICT (at, policy, rule, client) DO UPDATE SET denied = t.denied + excluded.denied"
	moveMinutes = "INSERT INTO client_minutes AS t (at, policy, rule, client, admitted, denied, units) " +
		"SELECT at, policy, rule, '', admitted, denied, units FROM client_minutes WHERE client = $1 ORDER BY at, policy, rule " +
		"ON CONFLICT (at, client, policy, rule) DO UPDATE " +
		"SET admitted = t.admitted + excluded.admitted, denied = t.denied + excluded.denied, units = t.units + excluded.units"
	forgetMinutes = "DELETE FROM client_minutes WHERE client = $1"
	forgetDenials = "DELETE FROM client_denials WHERE client = $1"
	forgetNotices = "DELETE FROM notices WHERE client = $1"
)

// Forget removes the name of a client from usage and events, and the notices about it. The record
// of the client and the history of its changes stay. Batches that nodes have not sent yet still
// contain the name. Months that are only in the archive keep the name. A month that is restored
// when Forget is called is later archived again without the name.
func (l *Ledger) Forget(ctx context.Context, actor Actor, name policy.ClientName, reason string) (f Forgotten, err error) {
	if err := checkReason(reason); err != nil {
		return f, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		client := name.String()
		// The archive begins a month under this lock: either it reads the rows after this
		// transaction, or the transaction marks its month as stale.
		if err := retain.Lock(ctx, w.tx); err != nil {
			return err
		}
		// An archive that is being written would contain the name, so its month is written again.
		// The row is locked before the tables, in the same order as where a partition is dropped.
		if _, err := w.tx.Exec(ctx, "UPDATE archives SET stale = true WHERE state <> 'dropped'"); err != nil {
			return err
		}
		// The tables are locked, because no batch may add to the rows between their move and their
		// removal, and no notice may be made from the former usage.
		if _, err := w.tx.Exec(ctx, "LOCK TABLE client_minutes, client_usage, client_usage_regions, client_denials, notices IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		batch := new(pgx.Batch)
		for _, one := range []struct {
			statement string
			rows      *int64
		}{{forgetEvents, &f.Events}, {moveUsage, &f.Usage}, {forgetUsage, nil}, {moveRegions, nil}, {forgetRegions, nil}, {moveDenials, &f.Denials}, {forgetDenials, nil}, {moveMinutes, nil}, {forgetMinutes, nil},
			{forgetNotices, nil}} {
			queued := batch.Queue(one.statement, client)
			if one.rows != nil {
				queued.Exec(func(tag pgconn.CommandTag) error { *one.rows = tag.RowsAffected(); return nil })
			}
		}
		if err := w.tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatClient, Subject: client, Action: "forget-usage", Reason: reason})
	})
	return f, err
}
