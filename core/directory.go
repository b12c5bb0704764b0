// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// recordsMax is the number of records whose limits may apply to one client: that of its own name, of
// its user, and of its tenant.
const recordsMax = 3

// blockedByRecord is what Plan.BlockedBy returns for a client that its record blocks.
const blockedByRecord = "directory"

// records are what a directory says about the client of the policy being added.
type records struct {
	directory       policy.Directory
	blocked, exempt bool
	// overrides are the limits of the records, the strongest first.
	overrides  [recordsMax]*policy.Overrides
	overridden int // how many of overrides are set
	unresolved []policy.ClientName
	// required says that requests of unresolved clients are denied.
	required bool
}

// UseDirectory makes Add look up clients in a directory until Reset. A nil directory changes
// nothing.
func (p *Plan) UseDirectory(d policy.Directory) { p.records.directory = d }

// Unresolved returns the clients that the directory does not know about yet, or nil. The caller has
// the directory read their records, calls Retry, and adds the same request again. The names are
// valid until Retry or Reset. Without that, the plan stands as if these clients had no records.
func (p *Plan) Unresolved() []policy.ClientName { return p.records.unresolved }

// Retry is Reset for the same request: the plan keeps the directory, and what Hurry was given.
func (p *Plan) Retry() {
	directory, left := p.records.directory, p.who.Asker.Left
	p.releaseShardTurns()
	p.Reset()
	p.records.directory, p.who.Asker.Left = directory, left
}

// RequireRecords makes Add deny the request with 503 if the directory does not know its client, until
// Reset. It is for a directory that works and has too many clients to read: the client may be
// blocked, and may have caused this.
func (p *Plan) RequireRecords() { p.records.required = true }

// DenyUnread denies the request that was added with 503, as an overload, whether it has limits or
// not. It is for a front that cannot read the client's records for lack of time.
func (p *Plan) DenyUnread() { p.denial = max(p.denial, denialUnchecked) }

// Source returns the number of the address that the request added last is from, as in
// [counter.Check].
func (p *Plan) Source() uint32 { return p.who.Request.Source() }

// reset forgets the records of a request.
func (r *records) reset() {
	clear(r.unresolved) // the names share the memory of the request
	r.directory, r.unresolved, r.required = nil, r.unresolved[:0], false
	r.forget()
}

// forget forgets the records of the policy added before.
func (r *records) forget() {
	r.blocked, r.exempt, r.overridden = false, false, 0
	clear(r.overrides[:])
}

// readRecords looks up the client in the directory, if there is one. What the client's credential and
// the policy say takes precedence over its record.
//
//go:noinline
func (p *Plan) readRecords() {
	p.records.forget()
	directory := p.records.directory
	if directory == nil {
		return
	}
	who, now := &p.who.Identity, p.who.Request.Attrs.Now()
	if addr := p.who.Request.Peer; addr.IsValid() {
		p.apply(directory.FindAddr(addr, now), who.Kind == kindAddress)
	}
	if who.Kind != "" && who.Kind != kindAddress {
		p.readRecord(who.Kind, who.ID, now)
	}
	if who.User != "" && (who.Kind != kindUser || who.ID != who.User) {
		p.readRecord(kindUser, who.User, now)
	}
	if who.Tenant != "" {
		p.readRecord(kindTenant, who.Tenant, now)
	}
}

// The kinds of clients that records are looked up for besides the client's own kind.
const (
	kindAddress = "ip"
	kindUser    = "user"
	kindTenant  = "tenant"
)

//go:noinline
func (p *Plan) readRecord(kind, id string, now counter.Micros) {
	if len(id) > policy.ValueBytesMax { // as in keys, so that a directory remembers no long names
		who := policy.IdentityOf(kind, id)
		kind, id = who.Kind, who.ID
	}
	found, ok := p.records.directory.Find(kind, id, now)
	if !ok {
		p.records.unresolved = append(p.records.unresolved, policy.ClientName{Kind: kind, ID: id})
		return
	}
	p.apply(found, true)
}

// apply applies a record, which may be nil. A record of a network blocks and exempts every client in
// it, but sets the tier and the limits only of clients that are identified by their address.
//
//go:noinline
func (p *Plan) apply(record *policy.ClientRecord, whole bool) {
	if record == nil {
		return
	}
	r, who := &p.records, &p.who.Identity
	r.blocked, r.exempt = r.blocked || record.Blocked, r.exempt || record.Exempt
	if !whole {
		return
	}
	if record.Overrides != nil && r.overridden < recordsMax {
		r.overrides[r.overridden] = record.Overrides
		r.overridden++
	}
	if who.Tier == "" {
		who.Tier = record.Tier
	}
	if who.Tenant == "" {
		who.Tenant = record.Tenant
	}
}

// limitsOfRecords returns the client's limits under a rule as its records state them.
//
//go:noinline
func (p *Plan) limitsOfRecords(r *rule) *limitSet {
	for _, o := range p.records.overrides[:p.records.overridden] {
		if own := ownLimitsOf(o).of(r, p.countsClient(r)); own != nil {
			return own
		}
	}
	return nil
}
