// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// KindNetwork is the kind of addresses and networks. Records of networks are few, so a directory
// holds all of them, and a request from a new address costs no read.
const KindNetwork = "ip"

// Bounds of the records of all networks together.
const (
	// NetworksMax is the greatest number of networks with a record.
	NetworksMax = 10_000
	// NetworksBytesMax is the greatest length of all their records as one JSON object. A source
	// that keeps them in one value could not read a longer value, and then no network would be
	// blocked.
	NetworksBytesMax = 1 << 20
)

// NetworkBytes returns the number of bytes that the record of a network adds to the JSON object.
func NetworkBytes(id string, text []byte) int { return len(`"":,`) + len(id) + len(text) }

// networks holds the records of all networks. The records are immutable, except for the values that
// the entries cache.
type networks struct {
	four, six networkTable
}

// networkTable holds the networks of one family.
type networkTable struct {
	bits    []int // the prefix lengths that occur, the longest first
	entries map[netip.Prefix]*network
}

// network is the record of a network.
type network struct {
	record *Record
	now    atomic.Pointer[effective]
	wide   bool // whether the network has several clients; an IPv6 network of 64 bits is one client
}

// newNetwork returns the record of a prefix, and computes which part of it is in force at an
// instant.
func newNetwork(p netip.Prefix, record *Record, now counter.Micros) *network {
	n := &network{record: record, wide: p.Bits() < min(p.Addr().BitLen(), 64)}
	n.at(now)
	return n
}

// network.at returns the part of the record that is in force at an instant.
func (n *network) at(now counter.Micros) *policy.ClientRecord {
	if said := n.now.Load(); said != nil && now < said.until {
		return said.record
	}
	said := n.record.at(now)
	said.client.Network = n.wide
	n.now.Store(said)
	return said.record
}

// networks.find returns the record of the smallest network that contains the address, or nil.
func (n *networks) find(addr netip.Addr, now counter.Micros) *policy.ClientRecord {
	addr = addr.Unmap()
	table := &n.six
	if addr.Is4() {
		table = &n.four
	}
	for _, bits := range table.bits {
		prefix, err := addr.WithZone("").Prefix(bits)
		if err != nil {
			return nil
		}
		if e := table.entries[prefix]; e != nil {
			if record := e.at(now); record != nil {
				return record
			}
		}
	}
	return nil
}

// ParseNetwork parses an address, or a network in CIDR notation. The result is masked.
func ParseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network; write 192.0.2.7 or 192.0.2.0/24", text)
	}
	return prefix.Masked(), nil
}

// networkName returns the ID of a network in a [policy.ClientName]. If the network is a single
// address, the ID is that address without a prefix length.
func networkName(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// NetworksOf returns the names of the records that an address may have: its own, and those of all
// networks that contain it.
func NetworksOf(addr netip.Addr) (names []policy.ClientName) {
	addr = addr.Unmap().WithZone("")
	for bits := addr.BitLen(); addr.IsValid() && bits >= 0; bits-- {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			return names
		}
		names = append(names, policy.ClientName{Kind: KindNetwork, ID: networkName(prefix)})
	}
	return names
}

// ReadNetworks reads the records of all networks now. ReadNetworks is meant for a process that uses
// the directory only once. In a long-running process, the directory reads them automatically.
func (d *Directory) ReadNetworks(ctx context.Context) { d.readNetworks(ctx) }

// readNetworks reads the records of all networks. readNetworks reports whether the source answered.
// If the source did not answer, or if nothing of its answer can be read, the previous records stay
// in force.
func (d *Directory) readNetworks(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, max(d.timeout, time.Second))
	defer cancel()
	texts, err := d.source.Networks(ctx)
	if errors.Is(err, ErrGarbled) {
		d.countUnreadable(KindNetwork, err)
		return true // the source has answered, so the history is read too
	}
	if err != nil {
		return false
	}
	if len(texts) == 0 && !d.networks.Load().empty() {
		if whole, ok := d.isWhole(ctx); !ok || !whole {
			return ok
		}
	}
	now, all := counter.Micros(d.now().UnixMicro()), new(networks)
	for text, record := range texts {
		prefix, err := ParseNetwork(text)
		if err != nil {
			d.countUnreadable(KindNetwork, err)
			continue
		}
		parsed, err := ParseRecord(record)
		if err != nil {
			d.countUnreadable(KindNetwork, err)
			continue
		}
		all.addNetwork(prefix, newNetwork(prefix, parsed, now))
	}
	d.networks.Store(all)
	return true
}

func (n *networks) empty() bool { return len(n.four.entries)+len(n.six.entries) == 0 }

func (n *networks) addNetwork(p netip.Prefix, e *network) {
	table := &n.six
	if p.Addr().Is4() {
		table = &n.four
	}
	if table.entries == nil {
		table.entries = make(map[netip.Prefix]*network)
	}
	table.entries[p] = e
	if !slices.Contains(table.bits, p.Bits()) {
		table.bits = append(table.bits, p.Bits())
		slices.SortFunc(table.bits, func(a, b int) int { return b - a })
	}
}
