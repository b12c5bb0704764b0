// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// The first byte of a record holds its flags.
const (
	flagBlocked = 1 << iota
	flagExempt
)

// AppendRecord appends a client's record to the records of a verdict. For nil, a client without a
// record, it appends the empty text.
func AppendRecord(dst []byte, r *policy.ClientRecord) []byte {
	if r == nil {
		return appendText(dst, "")
	}
	var flags byte
	if r.Blocked {
		flags |= flagBlocked
	}
	if r.Exempt {
		flags |= flagExempt
	}
	id := policy.Identity{Tier: r.Tier, Tenant: r.Tenant, Overrides: r.Overrides}
	return appendText(dst, string(compact.AppendIdentity([]byte{flags}, &id)))
}

// CutRecord returns the text of the first record of a verdict, and the other records. The result ok
// is false if there is none.
func CutRecord(records string) (text, others string, ok bool) {
	c := cursor{rest: records}
	text = c.text()
	return text, c.rest, !c.failed
}

// RecordFingerprint returns the hash of a record's text. A filter adds the hash of each record that
// it remembers to [Ask.Known].
func RecordFingerprint(text string) uint64 { return slim.FNV(text) }

// ReadRecord decodes the text of a record. The record shares no memory with the text.
func ReadRecord(text string) (*policy.ClientRecord, error) {
	if text == "" {
		return nil, nil
	}
	id, err := compact.ReadIdentity([]byte(text[1:]))
	if err != nil {
		return nil, err
	}
	return &policy.ClientRecord{Tier: id.Tier, Tenant: id.Tenant, Overrides: id.Overrides,
		Blocked: text[0]&flagBlocked != 0, Exempt: text[0]&flagExempt != 0}, nil
}
