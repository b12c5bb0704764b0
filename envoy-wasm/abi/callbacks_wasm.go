// SPDX-License-Identifier: Apache-2.0

package abi

// The variable vm represents the filter. The maps hold the plugins and streams that Envoy has
// created and not deleted, by their contexts. A callback for any other context would panic, but
// Envoy makes no such callback.
var (
	vm      VM
	plugins = map[uint32]Plugin{}
	streams = map[uint32]Stream{}
)

// Register makes Envoy call the filter. Register is called by an init function.
func Register(filter VM) { vm = filter }

//go:wasmexport proxy_abi_version_0_2_0
func onVersion() {}

//go:wasmexport proxy_on_vm_start
func onVMStart(_, _ uint32) bool { return true }

//go:wasmexport proxy_on_context_create
func onCreate(id, plugin uint32) {
	if plugin == 0 {
		plugins[id] = vm.NewPlugin(id)
	} else {
		streams[id] = plugins[plugin].NewStream(id)
	}
}

//go:wasmexport proxy_on_configure
func onConfigure(plugin, _ uint32) bool { return plugins[plugin].Start() }

//go:wasmexport proxy_on_tick
func onTick(plugin uint32) { plugins[plugin].Tick() }

//go:wasmexport proxy_on_queue_ready
func onQueueReady(plugin, queue uint32) { plugins[plugin].QueueReady(queue) }

//go:wasmexport proxy_on_http_call_response
func onCalled(plugin, call, _, bodyBytes, _ uint32) { plugins[plugin].Called(call, int(bodyBytes)) }

//go:wasmexport proxy_on_request_headers
func onRequestHeaders(stream, _ uint32, ends bool) Action {
	return streams[stream].RequestHeaders(ends)
}

//go:wasmexport proxy_on_request_body
func onRequestBody(stream, _ uint32, ends bool) Action {
	if streams[stream].RequestBody(ends) {
		return PauseBody
	}
	return Continue
}

//go:wasmexport proxy_on_request_trailers
func onRequestTrailers(stream, _ uint32) Action {
	if streams[stream].RequestBody(true) {
		return Pause
	}
	return Continue
}

//go:wasmexport proxy_on_response_headers
func onResponseHeaders(stream, _ uint32, ends bool) Action {
	streams[stream].ResponseHeaders(ends)
	return Continue
}

//go:wasmexport proxy_on_response_body
func onResponseBody(stream, bytes uint32, ends bool) Action {
	streams[stream].ResponseBody(int(bytes), ends)
	return Continue
}

//go:wasmexport proxy_on_response_trailers
func onResponseTrailers(stream, _ uint32) Action {
	streams[stream].ResponseTrailers()
	return Continue
}

// onLog is called at the end of a stream, and also of a plugin.
//
//go:wasmexport proxy_on_log
func onLog(context uint32) {
	if s := streams[context]; s != nil {
		s.Done()
	}
}

// onDone reports that nothing remains to be done in the context before Envoy deletes it.
//
//go:wasmexport proxy_on_done
func onDone(context uint32) bool {
	if p := plugins[context]; p != nil {
		p.Done()
	}
	return true
}

//go:wasmexport proxy_on_delete
func onDelete(context uint32) {
	delete(streams, context)
	delete(plugins, context)
}
