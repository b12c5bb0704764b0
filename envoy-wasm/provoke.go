// SPDX-License-Identifier: Apache-2.0

//go:build provoke

package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/penstock/penstock/envoy-wasm/filter"
)

// provoked returns a host that panics once, in the method that a request's header X-Provoke names:
// property, wake, call, resume or respond. The method name fatal causes an error from which Go
// cannot recover.
func provoked(h filter.Host) filter.Host { return &provocation{Host: h} }

type provocation struct {
	filter.Host
	next string // the method that panics next
}

func (p *provocation) at(here string) {
	if p.next == here {
		p.next = ""
		panic("provoked in " + here)
	}
}

// Property implements [filter.Host]. The filter asks for one first, while the request's headers can
// be read.
func (p *provocation) Property(path ...string) (string, bool) {
	if where, err := proxywasm.GetHttpRequestHeader("x-provoke"); err == nil {
		p.next = where
		if where == "fatal" {
			overflow(0)
		}
	}
	p.at("property")
	return p.Host.Property(path...)
}

// Wake implements [filter.Host].
func (p *provocation) Wake() error {
	p.at("wake")
	return p.Host.Wake()
}

// Call implements [filter.Host].
func (p *provocation) Call(c filter.Call, answered func(filter.Reply)) error {
	if c.Method == "POST" {
		p.at("call")
	}
	return p.Host.Call(c, answered)
}

// Resume implements [filter.Host].
func (p *provocation) Resume(stream uint32) {
	p.at("resume")
	p.Host.Resume(stream)
}

// Respond implements [filter.Host].
func (p *provocation) Respond(stream uint32, r filter.Response) {
	p.at("respond")
	p.Host.Respond(stream, r)
}

func overflow(depth int) int { return overflow(depth+1) + depth }
