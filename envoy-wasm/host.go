// SPDX-License-Identifier: Apache-2.0

//go:build wasm

package main

import (
	"github.com/penstock/penstock/core/compact"
	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/envoy-wasm/abi"
	"github.com/penstock/penstock/envoy-wasm/filter"
)

// replyBytesMax bounds the part of the bridge's answer that is read. A policy can be long.
const replyBytesMax = compact.PolicyBytesMax

// host implements [filter.Host] over Envoy.
type host struct {
	plugin   uint32 // the context of the plugin
	cluster  string
	queue    uint32
	counters []abi.Metric
	held     abi.Metric
	answered map[uint32]func(filter.Reply) // the callbacks of the calls that are not answered, by their numbers
}

// started is the start time of the VM. The start time is not a field, because the
// linker keeps all methods of types that are reachable from an interface.
var started = abi.Elapsed()

func newHost(plugin uint32) *host {
	h := &host{plugin: plugin, answered: map[uint32]func(filter.Reply){}}
	for _, name := range filter.CounterNames {
		h.counters = append(h.counters, abi.NewCounter("penstock."+name))
	}
	h.held = abi.NewGauge("penstock." + filter.GaugeHeld)
	return h
}

// Call implements [filter.Host]. The call belongs to the plugin. If the call belonged to the stream
// that was resumed last, its answer would be lost when that stream ends.
func (h *host) Call(c filter.Call, answered func(filter.Reply)) error {
	if err := abi.Use(h.plugin); err != nil {
		return err
	}
	call, err := abi.HTTPCall(h.cluster, c.Header, c.Body, c.TimeoutMillis)
	if err != nil {
		return err
	}
	h.answered[call] = answered
	return nil
}

// called is invoked when a call has been answered, and runs the callback of that call.
func (h *host) called(call uint32, bodyBytes int) {
	answered := h.answered[call]
	delete(h.answered, call)
	answered(h.reply(bodyBytes))
}

// host.reply reads the answer to a call. An answer that cannot be read has status 0.
func (h *host) reply(bodyBytes int) (r filter.Reply) {
	defer func() {
		if recover() != nil {
			h.Count(filter.CounterPanic)
			r = filter.Reply{}
		}
	}()
	headers, err := abi.CallHeaders.All()
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
			r.Denials, r.Usage = true, field[1] == filter.WantsUsage
		case filter.NodesHeader:
			r.Nodes, _ = slim.ParseWhole(field[1])
		}
	}
	if r.Status == 200 && bodyBytes > 0 {
		if r.Body, err = abi.Read(abi.CallBody, min(bodyBytes, replyBytesMax)); err != nil {
			return filter.Reply{}
		}
	}
	return r
}

// Wake implements [filter.Host].
func (h *host) Wake() error { return abi.Enqueue(h.queue, "1") }

// TickEvery implements [filter.Host]. The ticks belong to the plugin.
func (h *host) TickEvery(millis uint32) error {
	if err := abi.Use(h.plugin); err != nil {
		return err
	}
	return abi.TickEvery(millis)
}

// Resume implements [filter.Host].
func (h *host) Resume(stream uint32) {
	if abi.Use(stream) == nil {
		_ = abi.ResumeRequest() // a stream that has ended needs no response
	}
}

// Respond implements [filter.Host].
func (h *host) Respond(stream uint32, r filter.Response) {
	if abi.Use(stream) == nil {
		if err := abi.Respond(r.Status, r.Headers, r.Body, r.GRPCStatus); err != nil {
			abi.Warn("penstock: a denial cannot be sent: " + err.Error())
		}
	}
}

// Now implements [filter.Host].
func (h *host) Now() corecounter.Micros { return corecounter.Micros(abi.Now()) }

// Elapsed implements [filter.Host].
func (h *host) Elapsed() corecounter.Micros {
	return corecounter.Micros(1 + abi.Elapsed() - started)
}

// Property implements [filter.Host].
func (h *host) Property(path ...string) (string, bool) {
	value, err := abi.Property(path)
	return value, err == nil
}

// Count implements [filter.Host].
func (h *host) Count(c filter.Counter) { h.counters[c].Add(1) }

// Held implements [filter.Host].
func (h *host) Held(change int64) { h.held.Add(change) }

// Shared implements [filter.Host].
func (h *host) Shared(record uint32) (value []byte, cas uint32) {
	// a value that cannot be read has never been written
	value, cas, _ = abi.Shared(recordName(record))
	return value, cas
}

// neverWritten is the version with which a worker writes a value that was never written. Envoy
// accepts any version for such a value. If another worker has written the value in the meantime,
// Envoy rejects the write: versions count up from 1, so a value has the version neverWritten only
// after two billion writes. With the version 0, Envoy would overwrite the value.
const neverWritten = 1 << 31

// Share implements [filter.Host].
func (h *host) Share(record uint32, value []byte, cas uint32) bool {
	if cas == 0 {
		cas = neverWritten
	}
	return abi.Share(recordName(record), value, cas) == nil
}

// recordName returns the name of a record. No rune of the name is a surrogate, because those cannot
// be encoded.
func recordName(record uint32) string { return "penstock-" + string(rune(1<<16+record)) }

// Warn implements [filter.Host].
func (h *host) Warn(line string) { abi.Warn(line) }
