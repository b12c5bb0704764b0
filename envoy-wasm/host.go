// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/envoy-wasm/filter"
)

// replyBytesMax is how much of the bridge's answer is read: that of a policy may be long.
const replyBytesMax = core.PolicyBytesMax

// host is Envoy as the filter sees it.
type host struct {
	plugin   uint32 // the context of the plugin
	cluster  string
	queue    uint32
	counters []counter
	held     gauge
}

// started is when the VM was. It is no field: what can be reached from an interface is in the filter with all its methods.
var started = time.Now()

func newHost(plugin uint32) *host {
	h := &host{plugin: plugin}
	for _, name := range filter.CounterNames {
		h.counters = append(h.counters, newCounter("penstock."+name))
	}
	h.held = newGauge("penstock." + filter.GaugeHeld)
	return h
}

// Call implements [filter.Host]. A call belongs to the plugin and not to the stream that was resumed last: with that one
// its answer would be lost.
func (h *host) Call(c filter.Call, answered func(filter.Reply)) error {
	if err := proxywasm.SetEffectiveContext(h.plugin); err != nil {
		return err
	}
	_, err := proxywasm.DispatchHttpCall(h.cluster, c.Header, c.Body, nil, c.TimeoutMillis, func(_, bodyBytes, _ int) {
		answered(h.reply(bodyBytes))
	})
	return err
}

// reply reads the answer to a call. One that cannot be read is none, but the riders are told.
func (h *host) reply(bodyBytes int) (r filter.Reply) {
	defer func() {
		if recover() != nil {
			h.Count(filter.CounterPanic)
			r = filter.Reply{}
		}
	}()
	headers, err := proxywasm.GetHttpCallResponseHeaders()
	if err != nil {
		return r
	}
	for _, field := range headers {
		switch field[0] {
		case ":status":
			status, _ := core.ParseWhole(field[1]) // 0, no answer, for what is no number
			r.Status = int(status)
		case "etag":
			r.ETag = field[1]
		case filter.LeasingHeader:
			r.Leases = field[1]
		case filter.NodesHeader:
			r.Nodes, _ = core.ParseWhole(field[1])
		}
	}
	if r.Status == 200 && bodyBytes > 0 {
		if r.Body, err = proxywasm.GetHttpCallResponseBody(0, min(bodyBytes, replyBytesMax)); err != nil {
			return filter.Reply{}
		}
	}
	return r
}

// Wake implements [filter.Host].
func (h *host) Wake() error { return proxywasm.EnqueueSharedQueue(h.queue, []byte{1}) }

// TickEvery implements [filter.Host]. The ticks are the plugin's.
func (h *host) TickEvery(millis uint32) error {
	if err := proxywasm.SetEffectiveContext(h.plugin); err != nil {
		return err
	}
	return proxywasm.SetTickPeriodMilliSeconds(millis)
}

// Resume implements [filter.Host].
func (h *host) Resume(stream uint32) {
	if proxywasm.SetEffectiveContext(stream) == nil {
		_ = proxywasm.ResumeHttpRequest() // a stream that has ended meanwhile needs none
	}
}

// Respond implements [filter.Host].
func (h *host) Respond(stream uint32, r filter.Response) {
	if proxywasm.SetEffectiveContext(stream) == nil {
		if err := proxywasm.SendHttpResponse(r.Status, r.Headers, r.Body, r.GRPCStatus); err != nil {
			proxywasm.LogWarn("penstock: a refusal cannot be sent: " + err.Error())
		}
	}
}

// Now implements [filter.Host].
func (h *host) Now() core.Micros { return core.Micros(time.Now().UnixMicro()) }

// Elapsed implements [filter.Host].
func (h *host) Elapsed() core.Micros {
	return 1 + core.Micros(time.Since(started)/time.Microsecond)
}

// Property implements [filter.Host].
func (h *host) Property(path ...string) (string, bool) {
	value, err := proxywasm.GetProperty(path)
	return string(value), err == nil
}

// Count implements [filter.Host].
func (h *host) Count(c filter.Counter) { h.counters[c].increment() }

// Held implements [filter.Host].
func (h *host) Held(change int64) { h.held.add(change) }

// Shared implements [filter.Host].
func (h *host) Shared(record uint32) (value []byte, cas uint32) {
	value, cas, _ = proxywasm.GetSharedData(recordName(record)) // one that cannot be read was never written
	return value, cas
}

// Share implements [filter.Host].
func (h *host) Share(record uint32, value []byte, cas uint32) bool {
	return proxywasm.SetSharedData(recordName(record), value, cas) == nil
}

// recordName is the name of a record: none of its runes is a surrogate, which have no encoding of their own.
func recordName(record uint32) string { return "penstock-" + string(rune(1<<16+record)) }

// Warn implements [filter.Host].
func (h *host) Warn(line string) { proxywasm.LogWarn(line) }
