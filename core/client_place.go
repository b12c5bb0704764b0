// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"encoding/binary"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// PlacesAll is the number of places that [Plan.Place] assigns to clients.
const PlacesAll = 10_000

// Place returns the place of the client of a request among PlacesAll places, by a hash of the salt
// and the client. Place is called before Add, and charges nothing. All programs return the same
// place for a client.
//
// The client is the user, if the policy finds one, and otherwise the client that the policy
// identifies. So all API keys of a user have the same place. A request without a client has the
// place of its address. A request without an address has the last place, which is only in a share
// that has all places.
//
// If the owner of an API key has to be read first, Unresolved names the key. The place is then
// final only after the key has been read.
func (p *Plan) Place(rs *Ruleset, a policy.Attributes, salt *[16]byte) int32 {
	p.who.Request.Read(a)
	p.who.Identify(&rs.who)
	p.who.Uses = p.who.Uses[:0]
	mark := len(p.text)
	p.text = appendPlaced(append(p.text, salt[:]...), &p.who.Identity)
	if len(p.text) == mark+len(salt) && p.who.Request.Peer.IsValid() {
		p.text = identify.AppendAddr(append(p.text, kindAddress+":"...), p.who.Request.Peer, rs.who.Prefixes)
	}
	place := placeOf(p.text[mark:], salt)
	p.text = p.text[:mark]
	return place
}

// PlaceOf returns the place of a client whose identity is known. The result equals that of
// [Plan.Place] for a request of this client.
func PlaceOf(who *policy.Identity, salt *[16]byte) int32 {
	return placeOf(appendPlaced(append([]byte(nil), salt[:]...), who), salt)
}

// appendPlaced appends the text that determines a client's place. It appends nothing for a request
// without a client.
func appendPlaced(dst []byte, who *policy.Identity) []byte {
	switch {
	case who.User != "":
		dst = append(append(dst, kindUser+":"...), who.User...)
	case who.Kind != "":
		dst = append(append(append(dst, who.Kind...), ':'), who.ID...)
	}
	return dst
}

// placeOf computes the place of a client from its text, which begins with the salt.
func placeOf(text []byte, salt *[16]byte) int32 {
	if len(text) == len(salt) {
		return PlacesAll - 1
	}
	sum := slim.SHA256(text)
	return int32(binary.BigEndian.Uint64(sum[:8]) % PlacesAll)
}
