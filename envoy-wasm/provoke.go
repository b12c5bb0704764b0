// SPDX-License-Identifier: Apache-2.0

//go:build provoke && wasm

package main

import (
	"github.com/penstock/penstock/envoy-wasm/abi"
	"github.com/penstock/penstock/envoy-wasm/filter"
)

// withProvocation returns a host that panics once, in the method that a request's
// header X-Provoke names: property, wake, call, resume or respond. The value fatal causes an
// error from which Go cannot recover. If the cluster is named panic, the host panics at the
// start.
func withProvocation(h *host) filter.Host { return &provocation{host: h} }

type provocation struct {
	*host
	next string // the method that panics next
}

func (p *provocation) at(here string) {
	if p.next == here {
		p.next = ""
		panic("provoked in " + here)
	}
}

// TickEvery implements [filter.Host]. The filter calls this method at the start.
func (p *provocation) TickEvery(millis uint32) error {
	if p.cluster == "panic" {
		p.at(p.next)
	}
	return p.host.TickEvery(millis)
}

// Property implements [filter.Host]. The filter reads a property first, while the request's headers
// can be read.
func (p *provocation) Property(path ...string) (string, bool) {
	if where, err := abi.RequestHeaders.Get("x-provoke"); err == nil {
		p.next = where
		if where == "fatal" {
			overflow(0)
		}
	}
	p.at("property")
	return p.host.Property(path...)
}

// Wake implements [filter.Host].
func (p *provocation) Wake() error {
	p.at("wake")
	return p.host.Wake()
}

// Call implements [filter.Host].
func (p *provocation) Call(c filter.Call, answered func(filter.Reply)) error {
	if c.Method == "POST" {
		p.at("call")
	}
	return p.host.Call(c, answered)
}

// Resume implements [filter.Host].
func (p *provocation) Resume(stream uint32) {
	p.at("resume")
	p.host.Resume(stream)
}

// Respond implements [filter.Host].
func (p *provocation) Respond(stream uint32, r filter.Response) {
	p.at("respond")
	p.host.Respond(stream, r)
}

func overflow(depth int) int { return overflow(depth+1) + depth }
