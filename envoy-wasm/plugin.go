// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strconv"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/penstock/penstock/envoy-wasm/filter"
)

// plugin is one configuration of the filter in one worker.
type plugin struct {
	types.DefaultPluginContext
	id     uint32
	vm     *vm
	filter *filter.Filter
	host   *host
}

// OnPluginStart implements [types.PluginContext]. A panic makes only the start fail, and not the
// VM, which other plugins share.
func (p *plugin) OnPluginStart(int) (status types.OnPluginStartStatus) {
	defer func() {
		if recover() != nil {
			proxywasm.LogCritical("penstock: a panic, and the configuration is refused")
			status = types.OnPluginStartStatusFailed
		}
	}()
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil && err != types.ErrorStatusNotFound {
		proxywasm.LogCritical("penstock: the configuration cannot be read: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.host = newHost(p.id)
	if p.filter, err = filter.New(provoked(p.host), configuration); err != nil {
		proxywasm.LogCritical("penstock: the configuration is refused: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.host.cluster = p.filter.Cluster()
	// The queue has a unique name and belongs to this worker: an item in it makes Envoy call this
	// worker at once.
	if p.host.queue, err = proxywasm.RegisterSharedQueue(queueName()); err != nil {
		proxywasm.LogCritical("penstock: no queue: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	for i := len(p.vm.plugins) - 1; i >= 0 && !p.filter.Succeed(p.vm.plugins[i].filter); i-- {
	}
	if err := p.filter.Start(); err != nil {
		proxywasm.LogCritical("penstock: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.vm.plugins = append(p.vm.plugins, p)
	return types.OnPluginStartStatusOK
}

// OnPluginDone implements [types.PluginContext].
func (p *plugin) OnPluginDone() bool {
	p.vm.plugins = slices.DeleteFunc(p.vm.plugins, func(other *plugin) bool { return other == p })
	if p.filter == nil {
		return true // its configuration was rejected
	}
	p.filter.End()
	for i := len(p.vm.plugins) - 1; i >= 0 && !p.vm.plugins[i].filter.Inherit(p.filter); i-- {
	}
	return true
}

// OnQueueReady implements [types.PluginContext]. It is called once for all items in the queue.
func (p *plugin) OnQueueReady(queue uint32) {
	_, _ = proxywasm.DequeueSharedQueue(queue) // the content of the item has no meaning
	p.filter.Flush()
}

// OnTick implements [types.PluginContext].
func (p *plugin) OnTick() { p.filter.Tick() }

// NewHttpContext implements [types.PluginContext].
func (p *plugin) NewHttpContext(id uint32) types.HttpContext {
	return &stream{plugin: p, step: p.filter.NewStream(id)}
}

// stream adapts one request.
type stream struct {
	types.DefaultHttpContext
	plugin *plugin
	step   *filter.Stream
}

// OnHttpRequestHeaders implements [types.HttpContext].
func (s *stream) OnHttpRequestHeaders(_ int, ends bool) (action types.Action) {
	if ends {
		s.step.RequestEnds()
	}
	defer func() {
		if reason := recover(); reason != nil {
			action = actionOf(s.step.Panicked(reason))
		}
	}()
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return actionOf(s.step.Failed())
	}
	return actionOf(s.step.RequestHeaders(headers))
}

// OnHttpRequestBody implements [types.HttpContext].
func (s *stream) OnHttpRequestBody(_ int, ends bool) types.Action {
	if ends {
		s.step.RequestEnds()
	}
	return types.ActionContinue
}

// OnHttpRequestTrailers implements [types.HttpContext].
func (s *stream) OnHttpRequestTrailers(int) types.Action {
	s.step.RequestEnds()
	return types.ActionContinue
}

// OnHttpResponseHeaders implements [types.HttpContext].
func (s *stream) OnHttpResponseHeaders(_ int, ends bool) types.Action {
	defer s.step.Guard()
	if !s.step.Responds() {
		return types.ActionContinue
	}
	headers, err := proxywasm.GetHttpResponseHeaders()
	if err != nil {
		return types.ActionContinue
	}
	for _, field := range s.step.ResponseHeaders(headers, ends) {
		if err := proxywasm.ReplaceHttpResponseHeader(field[0], field[1]); err != nil {
			proxywasm.LogWarn("penstock: " + field[0] + " cannot be set: " + err.Error())
		}
	}
	return types.ActionContinue
}

// OnHttpResponseBody implements [types.HttpContext]. It does not delay the body, so it sees each
// piece once.
func (s *stream) OnHttpResponseBody(size int, ends bool) types.Action {
	defer s.step.Guard()
	var piece []byte
	if size > 0 && s.step.Listens() {
		piece, _ = proxywasm.GetHttpResponseBody(0, size) // if it fails, no cost is found and the default is charged
	}
	s.step.ResponseBody(piece, ends)
	return types.ActionContinue
}

// OnHttpResponseTrailers implements [types.HttpContext].
func (s *stream) OnHttpResponseTrailers(int) types.Action {
	defer s.step.Guard()
	if s.step.Awaits() {
		trailers, _ := proxywasm.GetHttpResponseTrailers()
		s.step.ResponseTrailers(trailers)
	}
	return types.ActionContinue
}

// OnHttpStreamDone implements [types.HttpContext].
func (s *stream) OnHttpStreamDone() { s.step.Done() }

func actionOf(a filter.Action) types.Action {
	if a == filter.Pause {
		return types.ActionPause
	}
	return types.ActionContinue
}

func queueName() string { return "penstock-" + strconv.FormatUint(random(), 36) }
