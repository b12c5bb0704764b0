// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"net/netip"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// recordTrusted is how long the filter may decide by what it remembers of a client: a record, the
// verdict on a credential, a denial, or held units. The time counts from the question whose answer
// contained the record. After that time, the filter asks the bridge again, even if the client has
// no limit. So a change takes effect within a second.
const recordTrusted = counter.Second / 2

// Bounds of the records that a worker remembers. A client's record may be in recordPlaces places; a
// record of a new client replaces the oldest record there. If the texts of new records exceed
// recordTextMax, all records are forgotten, because a record takes up to 16 bytes for each byte
// of its text.
const (
	recordsKept   = 1 << 12 // 160 KB
	recordPlaces  = 4
	recordTextMax = 256 << 10
)

// directory remembers the records of clients that the bridge sends. Old records stay, and decide
// requests that the bridge does not answer.
type directory struct {
	filter *Filter
	key    hashKey
	known  []knownRecord
	text   int // total length of the texts that were taken
}

// knownRecord is the record of one client, or its absence, as the bridge sent it.
type knownRecord struct {
	client      uint64 // keyed hash of the client's name
	fingerprint uint64
	asked       counter.Micros
	record      *corepolicy.ClientRecord // nil if the client has none
}

var _ corepolicy.Directory = (*directory)(nil)

// Find implements [corepolicy.Directory]. The result ok is always true; Filter.dated reports that a
// record is not known.
func (d *directory) Find(kind, id string, _ counter.Micros) (record *corepolicy.ClientRecord, ok bool) {
	return d.findKnown(d.key.sum([]byte(kind))*3 ^ d.key.sum([]byte(id))), true
}

// FindAddr implements [corepolicy.Directory]. The result is the record of the address's network.
func (d *directory) FindAddr(addr netip.Addr, _ counter.Micros) *corepolicy.ClientRecord {
	b := addr.As16()
	return d.findKnown(d.key.sum(b[:]))
}

// findKnown returns the record of the client with the given hash.
func (d *directory) findKnown(client uint64) *corepolicy.ClientRecord {
	f, known := d.filter, &d.known[client%recordsKept]
	for place := uint64(1); place < recordPlaces && known.client != client; place++ {
		if other := &d.known[(client^place)%recordsKept]; other.client == client || other.asked < known.asked {
			known = other
		}
	}
	switch h := f.bridgeVerdicts; {
	case h != nil:
		return d.takeRecord(h, client, known)
	case known.client != client:
		f.dated = true
		return nil
	case !isAhead(known.asked+recordTrusted, f.now, recordTrusted):
		f.dated = true
	}
	f.known += known.fingerprint
	return known.record
}

// takeRecord returns the record that the bridge has sent, and stores it in the argument known. The
// bridge looks up the same clients in the same order, so the position selects the record. A record
// that the bridge itself does not know is not remembered.
func (d *directory) takeRecord(h *verdictReply, client uint64, known *knownRecord) *corepolicy.ClientRecord {
	text, others, ok := wire.CutRecord(h.records)
	h.records = others
	fingerprint, keeps := wire.RecordFingerprint(text), h.until > d.filter.now
	d.filter.known += fingerprint
	record := known.record
	if known.client != client || known.fingerprint != fingerprint {
		var err error
		record, err = wire.ReadRecord(text)
		ok = ok && err == nil
		if d.text += len(text); d.text > recordTextMax {
			clear(d.known)
			d.text = 0
		}
	}
	if h.short = h.short || !ok; keeps {
		*known = knownRecord{client, fingerprint, h.asked, record}
	}
	return record
}

// planRequest makes the plan of the request by a ruleset.
func (a *askingData) planRequest(f *Filter, rs *core.Ruleset) {
	a.plan.Reset()
	if d := a.policy.directory; d != nil {
		a.plan.UseDirectory(d)
		f.now = f.host.Now() // the request may have waited since it arrived
	}
	a.plan.Add(rs, &a.attrs.View)
}
