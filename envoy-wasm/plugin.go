// SPDX-License-Identifier: Apache-2.0

//go:build wasm

package main

import (
	"strconv"

	"github.com/penstock/penstock/envoy-wasm/abi"
	"github.com/penstock/penstock/envoy-wasm/filter"
)

func init() { abi.Register(new(vm)) }

// vm runs in one worker, with the plugins of all configurations that have the same vm_id.
type vm struct {
	plugins []*plugin // plugins that have started
}

// NewPlugin implements [abi.VM].
func (v *vm) NewPlugin(id uint32) abi.Plugin { return &plugin{id: id, vm: v} }

// plugin is one configuration of the filter in one worker.
type plugin struct {
	id     uint32
	vm     *vm
	filter *filter.Filter
	host   *host
}

// Start implements [abi.Plugin]. A panic makes only the start fail, and not the
// VM, which other plugins share.
func (p *plugin) Start() (valid bool) {
	defer func() {
		if recover() != nil {
			abi.Critical("penstock: a panic, and the configuration is rejected")
			valid = false
		}
	}()
	configuration, err := abi.Configuration()
	if err != nil {
		abi.Critical("penstock: the configuration cannot be read: " + err.Error())
		return false
	}
	p.host = newHost(p.id)
	if p.filter, err = filter.New(withProvocation(p.host), configuration); err != nil {
		abi.Critical("penstock: the configuration is rejected: " + err.Error())
		return false
	}
	p.host.cluster = p.filter.Cluster()
	// The queue has a unique name and belongs to this worker: an item in it makes Envoy call this
	// worker at once.
	if p.host.queue, err = abi.RegisterQueue(queueName()); err != nil {
		abi.Critical("penstock: no queue: " + err.Error())
		return false
	}
	for i := len(p.vm.plugins) - 1; i >= 0 && !p.filter.Succeed(p.vm.plugins[i].filter); i-- {
	}
	if err := p.filter.Start(); err != nil {
		abi.Critical("penstock: " + err.Error())
		return false
	}
	p.vm.plugins = append(p.vm.plugins, p)
	return true
}

// Done implements [abi.Plugin].
func (p *plugin) Done() {
	others := p.vm.plugins[:0] // slices.DeleteFunc would make the filter larger by a kilobyte
	for _, other := range p.vm.plugins {
		if other != p {
			others = append(others, other)
		}
	}
	clear(p.vm.plugins[len(others):])
	p.vm.plugins = others
	if p.filter == nil {
		return // this plugin's configuration was rejected
	}
	p.filter.End()
	for i := len(p.vm.plugins) - 1; i >= 0 && !p.vm.plugins[i].filter.Inherit(p.filter); i-- {
	}
}

// QueueReady implements [abi.Plugin]. QueueReady is called once for all items in the queue.
func (p *plugin) QueueReady(queue uint32) {
	_, _ = abi.Dequeue(queue) // the content of the item has no meaning
	p.filter.Flush()
}

// Tick implements [abi.Plugin].
func (p *plugin) Tick() { p.filter.Tick() }

// Called implements [abi.Plugin].
func (p *plugin) Called(call uint32, bodyBytes int) { p.host.called(call, bodyBytes) }

// NewStream implements [abi.Plugin].
func (p *plugin) NewStream(id uint32) abi.Stream {
	return &stream{plugin: p, step: p.filter.NewStream(id)}
}

// stream adapts one request.
type stream struct {
	plugin *plugin
	step   *filter.Stream
}

// RequestHeaders implements [abi.Stream].
func (s *stream) RequestHeaders(ends bool) (action abi.Action) {
	if ends {
		s.step.RequestEnds()
	}
	defer func() {
		if reason := recover(); reason != nil {
			action = actionOf(s.step.Panicked(reason))
		}
	}()
	headers, err := abi.RequestHeaders.All()
	if err != nil {
		return actionOf(s.step.Failed())
	}
	return actionOf(s.step.RequestHeaders(headers))
}

// RequestBody implements [abi.Stream]. Envoy calls RequestBody for a request that waits only if
// allow_on_headers_stop_iteration is set. If the body or the trailers went on then, the request
// would go on with them, undecided.
func (s *stream) RequestBody(ends bool) (waits bool) {
	if ends {
		s.step.RequestEnds()
	}
	return s.step.Waits()
}

// ResponseHeaders implements [abi.Stream].
func (s *stream) ResponseHeaders(ends bool) {
	defer s.step.Guard()
	if !s.step.Responds() {
		return
	}
	headers, err := abi.ResponseHeaders.All()
	if err != nil {
		return
	}
	for _, field := range s.step.ResponseHeaders(headers, ends) {
		if err := abi.ResponseHeaders.Replace(field[0], field[1]); err != nil {
			abi.Warn("penstock: " + field[0] + " cannot be set: " + err.Error())
		}
	}
}

// ResponseBody implements [abi.Stream]. ResponseBody does not delay the body, so it sees each piece
// once.
func (s *stream) ResponseBody(size int, ends bool) {
	defer s.step.Guard()
	var piece []byte
	if size > 0 && s.step.Listens() {
		// if it fails, no cost is found and the default is charged
		piece, _ = abi.Read(abi.ResponseBody, size)
	}
	s.step.ResponseBody(piece, ends)
}

// ResponseTrailers implements [abi.Stream].
func (s *stream) ResponseTrailers() {
	defer s.step.Guard()
	if s.step.Awaits() {
		trailers, _ := abi.ResponseTrailers.All()
		s.step.ResponseTrailers(trailers)
	}
}

// Done implements [abi.Stream].
func (s *stream) Done() { s.step.Done() }

func actionOf(a filter.Action) abi.Action {
	if a == filter.Pause {
		return abi.Pause
	}
	return abi.Continue
}

func queueName() string { return "penstock-" + strconv.FormatUint(random(), 36) }
