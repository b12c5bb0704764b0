// SPDX-License-Identifier: Apache-2.0

package abi

// VM is a filter in one worker of Envoy.
type VM interface {
	// NewPlugin returns the plugin for a context of Envoy's.
	NewPlugin(id uint32) Plugin
}

// Plugin is one configuration of a filter in one worker.
type Plugin interface {
	// Start is called once, before the first stream. Start reports whether the configuration is
	// valid.
	Start() bool
	// Done is called when Envoy drops the configuration.
	Done()
	// Tick is called at the interval that TickEvery has set.
	Tick()
	// QueueReady is called for items in a queue that the plugin has registered.
	QueueReady(queue uint32)
	// Called is called with the answer to a call that HTTPCall has sent. The argument bodyBytes is
	// the length of the answer's body.
	Called(call uint32, bodyBytes int)
	// NewStream returns the stream for a request.
	NewStream(id uint32) Stream
}

// Stream is one request and its response. The argument named ends reports whether the message ends
// after this part.
type Stream interface {
	RequestHeaders(ends bool) Action
	// RequestBody is called with each piece of the body, and with the trailers. RequestBody reports
	// whether Envoy must keep them.
	RequestBody(ends bool) (waits bool)
	ResponseHeaders(ends bool)
	// ResponseBody is called with each piece of the body, which has the given number of bytes.
	ResponseBody(bytes int, ends bool)
	ResponseTrailers()
	// Done is called once, at the end of the request.
	Done()
}

// Action is what Envoy does with a message after a callback.
type Action uint32

// The actions. After Pause, Envoy waits for ResumeRequest or Respond. PauseBody is for RequestBody
// only: Envoy stops reading when its buffer is full, and does not answer 413.
const (
	Continue  Action = 0
	Pause     Action = 1
	PauseBody Action = 2
)
