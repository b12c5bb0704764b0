// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/fleet"
)

// The bridge counts the usage of the requests that it decides, with their reserved units. When a
// response changes the units, the receipt names the client that used them. Filters report the
// requests that they admit themselves; see denials.go. Nothing is counted twice: a receipt is
// redeemed once, and a filter repeats a report only if the bridge has not read it.

// appendClient appends the client of a receipt to the part to be sealed.
func appendClient(dst []byte, c *enforce.Client) []byte {
	for _, text := range [...]string{c.Kind, c.ID, c.Tier} {
		dst = append(binary.AppendUvarint(dst, uint64(len(text))), text...)
	}
	if c.Known {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// readClient reads the output of appendClient, and returns what follows it.
func readClient(data []byte) (c enforce.Client, rest []byte, ok bool) {
	for _, text := range [...]*string{&c.Kind, &c.ID, &c.Tier} {
		n, length := binary.Uvarint(data)
		if length <= 0 || n > uint64(len(data)-length) {
			return enforce.Client{}, nil, false
		}
		*text, data = string(data[length:][:n]), data[length+int(n):]
	}
	if len(data) == 0 {
		return enforce.Client{}, nil, false
	}
	c.Known = data[0] == 1
	return c, data[1:], true
}

// sealReceipt returns the receipt for the question's settlement.
func (q *question) sealReceipt() string {
	b, v := q.bridge, q.version
	if !b.options.Meter.On() || !b.namesClients.Load() {
		return b.sealer.seal(v.ID, &q.settlement, v.Ruleset, q.now)
	}
	of := b.enforcer.ClientOf(&q.plan)
	return b.sealer.sealNamed(v.ID, &of, &q.settlement, v.Ruleset, q.now)
}

// nameClients makes receipts name the client, as soon as all bridges that can open receipts can
// read a client in them.
func (b *Bridge) nameClients() {
	switch {
	case !b.receiptsRoam || b.options.Others == nil:
		b.namesClients.Store(true)
	case b.options.Meter != nil:
		b.running.Go(func() { b.awaitReaders(b.ending) })
	}
}

// awaitReaders waits until every other bridge reads receipts with a client, or ctx is done. A
// bridge of an earlier release would reject such receipts. Until then, corrections count without a
// client.
func (b *Bridge) awaitReaders(ctx context.Context) {
	for {
		reading, err := b.options.Others(ctx)
		if err == nil && allReadClients(reading) {
			b.namesClients.Store(true)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(secretEvery):
		}
	}
}

// allReadClients reports whether every bridge among the nodes reads receipts with a client.
func allReadClients(r *fleet.Reading) bool {
	for _, one := range r.Records {
		silent := time.Duration(r.NowMicros-one.SeenMicros) * time.Microsecond
		if one.Front == front && one.Receipts < namedForm && silent < fleet.SilentAfter {
			return false
		}
	}
	return r.Unreadable == 0
}

// corrections holds by how much a response changes the units of its request. The corrections are
// counted when the store has made the settlement.
type corrections struct {
	enforcer *enforce.Enforcer
	client   enforce.Client
	units    []enforce.Correction
}

// keepCharges drops the corrections that refund units. The caller uses keepCharges if refunds must
// not be made, such as the refunds of an expired receipt.
func (c *corrections) keepCharges() {
	kept := c.units[:0]
	for _, one := range c.units {
		if one.Units > 0 {
			kept = append(kept, one)
		}
	}
	c.units = kept
}

// Ended implements [settle.Observer]. What the store has not corrected is not corrected in the
// usage either.
func (j *job) Ended(end settle.End) {
	if end == settle.Settled || end == settle.Owed {
		j.usage.enforcer.MeasureCorrections(j.usage.units, &j.usage.client)
	}
}

var _ settle.Observer = (*job)(nil)

// reportAdmissions counts the usage of requests that a filter admitted itself and reports now. If
// the credential of the client could not be verified in time, the usage has no client.
func (q *question) reportAdmissions() {
	checks, results := q.plan.Checks(), q.plan.Results()
	for i := range results {
		results[i] = counter.Result{Granted: checks[i].Cost, At: q.now}
	}
	q.plan.Decide()
	q.bridge.enforcer.MeasureAdmissions(&q.plan, q.version, uint64(-q.item.Units[0].Cost), !q.plan.Unchecked())
}

// reportsAdmissions reports whether the question is a report of admissions.
func (q *question) reportsAdmissions() bool {
	return q.item.Kind == wire.KindDenied && len(q.item.Units) == 1 && q.item.Units[0].Cost < 0
}
