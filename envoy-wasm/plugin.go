// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/penstock/penstock/envoy-wasm/filter"
)

// plugin is one configuration of the filter in one worker.
type plugin struct {
	types.DefaultPluginContext
	filter *filter.Filter
	host   *host
}

// OnPluginStart implements [types.PluginContext].
func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil && err != types.ErrorStatusNotFound {
		proxywasm.LogCritical("penstock: the configuration cannot be read: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.host = newHost()
	if p.filter, err = filter.New(p.host, configuration); err != nil {
		proxywasm.LogCritical("penstock: the configuration is refused: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.host.cluster = p.filter.Cluster()
	// A queue of this worker's own, under a name that no other has: what is put there wakes this worker at once.
	if p.host.queue, err = proxywasm.RegisterSharedQueue(queueName()); err != nil {
		proxywasm.LogCritical("penstock: no queue: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	if err := proxywasm.SetTickPeriodMilliSeconds(filter.TickMillis); err != nil {
		proxywasm.LogCritical("penstock: no ticks: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// OnQueueReady implements [types.PluginContext].
func (p *plugin) OnQueueReady(queue uint32) {
	defer p.recovered()
	for {
		if _, err := proxywasm.DequeueSharedQueue(queue); err != nil {
			break
		}
	}
	p.filter.Flush()
}

// OnTick implements [types.PluginContext].
func (p *plugin) OnTick() {
	defer p.recovered()
	p.filter.Tick()
}

// NewHttpContext implements [types.PluginContext].
func (p *plugin) NewHttpContext(id uint32) types.HttpContext {
	return &stream{plugin: p, step: p.filter.NewStream(id)}
}

func (p *plugin) recovered() {
	if r := recover(); r != nil {
		p.host.panicked(r)
	}
}

// stream is one request.
type stream struct {
	types.DefaultHttpContext
	plugin *plugin
	step   *filter.Stream
}

// OnHttpRequestHeaders implements [types.HttpContext].
func (s *stream) OnHttpRequestHeaders(int, bool) (action types.Action) {
	defer func() {
		if r := recover(); r != nil {
			s.plugin.host.panicked(r)
			action = actionOf(s.step.Failed())
		}
	}()
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return actionOf(s.step.Failed())
	}
	return actionOf(s.step.RequestHeaders(headers))
}

// OnHttpResponseHeaders implements [types.HttpContext].
func (s *stream) OnHttpResponseHeaders(int, bool) types.Action {
	defer s.plugin.recovered()
	if !s.step.Tells() {
		return types.ActionContinue
	}
	headers, err := proxywasm.GetHttpResponseHeaders()
	if err != nil {
		return types.ActionContinue
	}
	for _, field := range s.step.ResponseHeaders(headers) {
		if err := proxywasm.ReplaceHttpResponseHeader(field[0], field[1]); err != nil {
			proxywasm.LogWarn("penstock: " + field[0] + " cannot be set: " + err.Error())
		}
	}
	return types.ActionContinue
}

// OnHttpStreamDone implements [types.HttpContext].
func (s *stream) OnHttpStreamDone() {
	defer s.plugin.recovered()
	s.step.Done()
}

func actionOf(a filter.Action) types.Action {
	if a == filter.Pause {
		return types.ActionPause
	}
	return types.ActionContinue
}

func queueName() string { return "penstock-" + strconv.FormatUint(random(), 36) }
