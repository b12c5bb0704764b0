// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/penstock/penstock/core/compact"
	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/envoy-wasm/filter"
)

// replyBytesMax bounds the part of the bridge's answer that is read. A policy can be long.
const replyBytesMax = compact.PolicyBytesMax

// host implements [filter.Host] over Envoy.
type host struct {
	plugin   uint32 // the context of the plugin
	cluster  string
	queue    uint32
	counters []counter
	held     gauge
}

// started is the start time of the VM. It is not a field, because the linker keeps all methods of
// types that are reachable from an interface.
var started = time.Now()

func newHost(plugin uint32) *host {
	h := &host{plugin: plugin}
	for _, name := range filter.CounterNames {
		h.counters = append(h.counters, newCounter("penstock."+name))
	}
	h.held = newGauge("penstock." + filter.GaugeHeld)
	return h
}

// Call implements [filter.Host]. The call belongs to the plugin. If it belonged to the stream that
// was resumed last, its answer would be lost when that stream ends.
func (h *host) Call(c filter.Call, answered func(filter.Reply)) error {
	if err := proxywasm.SetEffectiveContext(h.plugin); err != nil {
		return err
	}
	_, err := proxywasm.DispatchHttpCall(h.cluster, c.Header, c.Body, nil, c.TimeoutMillis, func(_, bodyBytes, _ int) {
		answered(h.reply(bodyBytes))
	})
	return err
}

// reply reads the answer to a call. An answer that cannot be read has status 0.
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
			status, _ := slim.ParseWhole(field[1]) // 0, which means no answer, if it is not a number
			r.Status = int(status)
		case "etag":
			r.ETag = field[1]
		case filter.LeasingHeader:
			r.Leases = field[1]
		case filter.DenialsHeader:
			r.Denials = true
		case filter.NodesHeader:
			r.Nodes, _ = slim.ParseWhole(field[1])
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

// TickEvery implements [filter.Host]. The ticks belong to the plugin.
func (h *host) TickEvery(millis uint32) error {
	if err := proxywasm.SetEffectiveContext(h.plugin); err != nil {
		return err
	}
	return proxywasm.SetTickPeriodMilliSeconds(millis)
}

// Resume implements [filter.Host].
func (h *host) Resume(stream uint32) {
	if proxywasm.SetEffectiveContext(stream) == nil {
		_ = proxywasm.ResumeHttpRequest() // a stream that has ended needs no response
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
func (h *host) Now() corecounter.Micros { return corecounter.Micros(time.Now().UnixMicro()) }

// Elapsed implements [filter.Host].
func (h *host) Elapsed() corecounter.Micros {
	return 1 + corecounter.Micros(time.Since(started)/time.Microsecond)
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
	// a value that cannot be read has never been written
	value, cas, _ = proxywasm.GetSharedData(recordName(record))
	return value, cas
}

// Share implements [filter.Host].
func (h *host) Share(record uint32, value []byte, cas uint32) bool {
	return proxywasm.SetSharedData(recordName(record), value, cas) == nil
}

// recordName returns the name of a record. None of its runes is a surrogate, since those cannot be
// encoded.
func recordName(record uint32) string { return "penstock-" + string(rune(1<<16+record)) }

// Warn implements [filter.Host].
func (h *host) Warn(line string) { proxywasm.LogWarn(line) }
