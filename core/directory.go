// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// recordsMax is the number of records whose limits can apply to one client: those of the client
// itself, of its user and of its tenant.
const recordsMax = 3

// blockedByRecord is the result of Plan.BlockedBy if a record blocks the client.
const blockedByRecord = "directory"

// records holds the directory's data about the client that the policy being added has
// found.
type records struct {
	directory       policy.Directory
	blocked, exempt bool
	known           bool // whether there is a record of the client itself
	// overrides are the limits of the records, in order of precedence.
	overrides  [recordsMax]*policy.Overrides
	overridden int // how many of overrides are set
	unresolved []policy.ClientName
	// required reports whether requests of unresolved clients are denied.
	required bool
}

// UseDirectory makes Add look up clients in the directory d until Reset, and also API keys if d
// is a [policy.KeyDirectory]. A nil directory changes nothing.
func (p *Plan) UseDirectory(d policy.Directory) {
	p.records.directory = d
	if keys, ok := d.(policy.KeyDirectory); ok {
		p.who.Asker.Keys, p.who.Asker.Unread = keys, &p.records.unresolved
	}
}

// Unresolved returns the clients and the API keys (of [policy.KindKey]) that the directory has not
// looked up yet, or nil. The caller makes the directory read their records, calls Retry, and adds
// the same request again. The owner of a key becomes known only then, so the owner's records may be
// unresolved in turn. If the caller does not do this, the plan treats these clients as clients
// without records, and these keys as invalid. The names are valid until Retry or Reset.
func (p *Plan) Unresolved() []policy.ClientName { return p.records.unresolved }

// Retry resets the plan for the same request: it keeps the effects of UseDirectory, Hurry and
// AcceptExpired.
func (p *Plan) Retry() {
	directory, left, past := p.records.directory, p.who.Asker.Left, p.who.Asker.Past
	p.releaseShardTurns()
	p.Reset()
	p.UseDirectory(directory)
	p.who.Asker.Left, p.who.Asker.Past = left, past
}

// RequireRecords makes Add, until Reset, deny a request with 503 if the directory has not looked up
// its client. RequireRecords is meant for a directory that works but has too many lookups to do.
// The client might be blocked, and might have caused the overload.
func (p *Plan) RequireRecords() { p.records.required = true }

// DenyUnread denies the added request with 503, as in an overload, whether it has limits or not.
// DenyUnread is meant for a front that has no time left to read the client's records.
func (p *Plan) DenyUnread() { p.denial = max(p.denial, denialUnchecked) }

// Known reports whether the client or its user has a record of its own in the directory.
func (p *Plan) Known() bool { return p.records.known }

// Source returns the Source of a [counter.Check] for the address of the request that was added
// last.
func (p *Plan) Source() uint32 { return p.who.Request.Source() }

// records.reset forgets the records of a request.
func (r *records) reset() {
	clear(r.unresolved) // because the names share the memory of the request
	r.directory, r.unresolved, r.required = nil, r.unresolved[:0], false
	r.forget()
}

// records.forget drops the records that were found for the previous policy.
func (r *records) forget() {
	r.blocked, r.exempt, r.known, r.overridden = false, false, false, 0
	clear(r.overrides[:])
}

// readRecords looks up the client in the directory, if there is one. The client's credential and
// the policy take precedence over its record.
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
		p.applyRecord(directory.FindAddr(addr, now), who.Kind == kindAddress)
	}
	if who.Kind != "" && who.Kind != kindAddress {
		p.readRecord(who.Kind, who.ID, now)
	}
	if who.User != "" && (who.Kind != kindUser || who.ID != who.User) {
		p.readRecord(kindUser, who.User, now)
	}
	if who.Tenant != "" {
		known := p.records.known // a tenant's record makes no client known, because clients can make up names within a tenant
		p.readRecord(kindTenant, who.Tenant, now)
		p.records.known = known
	}
}

// The kinds of clients for which records are looked up, besides the client's own kind.
const (
	kindAddress = "ip"
	kindUser    = "user"
	kindTenant  = "tenant"
)

//go:noinline
func (p *Plan) readRecord(kind, id string, now counter.Micros) {
	if len(id) > policy.ValueBytesMax { // written as in keys, so that a directory does not store long names
		who := policy.IdentityOf(kind, id)
		kind, id = who.Kind, who.ID
	}
	found, ok := p.records.directory.Find(kind, id, now)
	if !ok {
		p.records.unresolved = append(p.records.unresolved, policy.ClientName{Kind: kind, ID: id})
		return
	}
	p.applyRecord(found, true)
}

// applyRecord applies a record, which may be nil. A record of a network blocks and exempts every
// client in it, but it sets the tier and the limits only of clients that are identified by their
// address.
//
//go:noinline
func (p *Plan) applyRecord(record *policy.ClientRecord, whole bool) {
	if record == nil {
		return
	}
	r, who := &p.records, &p.who.Identity
	r.blocked, r.exempt = r.blocked || record.Blocked, r.exempt || record.Exempt
	if !whole {
		return
	}
	r.known = r.known || !record.Network
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

// limitsOfRecords returns the limits under a rule that the client's records define.
//
//go:noinline
func (p *Plan) limitsOfRecords(r *rule) *limitSet {
	for _, o := range p.records.overrides[:p.records.overridden] {
		if own := ownLimitsOf(o).limitsFor(r, p.countsClient(r)); own != nil {
			return own
		}
	}
	return nil
}
