// SPDX-License-Identifier: Apache-2.0

package abi

import "math"

// The functions of the ABI. A text is two arguments: its address and its size.

//go:wasmimport env proxy_log
func proxyLog(level uint32, line string) Status

//go:wasmimport env proxy_get_property
func proxyGetProperty(path string, address, size *uint32) Status

//go:wasmimport env proxy_send_local_response
func proxySendLocalResponse(status uint32, details, body, fields string, grpcStatus int32) Status

//go:wasmimport env proxy_continue_stream
func proxyContinueStream(stream uint32) Status

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetHeaderMapPairs(fields Fields, address, size *uint32) Status

//go:wasmimport env proxy_get_header_map_value
func proxyGetHeaderMapValue(fields Fields, name string, address, size *uint32) Status

//go:wasmimport env proxy_replace_header_map_value
func proxyReplaceHeaderMapValue(fields Fields, name, value string) Status

//go:wasmimport env proxy_get_buffer_bytes
func proxyGetBufferBytes(body Body, start, most uint32, address, size *uint32) Status

//go:wasmimport env proxy_http_call
func proxyHTTPCall(cluster, fields, body, trailers string, millis uint32, call *uint32) Status

//go:wasmimport env proxy_set_effective_context
func proxySetEffectiveContext(context uint32) Status

//go:wasmimport env proxy_set_tick_period_milliseconds
func proxySetTickPeriodMilliseconds(millis uint32) Status

//go:wasmimport env proxy_register_shared_queue
func proxyRegisterSharedQueue(name string, queue *uint32) Status

//go:wasmimport env proxy_enqueue_shared_queue
func proxyEnqueueSharedQueue(queue uint32, item string) Status

//go:wasmimport env proxy_dequeue_shared_queue
func proxyDequeueSharedQueue(queue uint32, address, size *uint32) Status

//go:wasmimport env proxy_get_shared_data
func proxyGetSharedData(key string, address, size, version *uint32) Status

//go:wasmimport env proxy_set_shared_data
func proxySetSharedData(key, value string, version uint32) Status

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, name string, id *uint32) Status

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, change int64) Status

// Fields are the headers or trailers of a message.
type Fields uint32

// The fields that can be read in a callback for the message.
const (
	RequestHeaders   Fields = 0
	ResponseHeaders  Fields = 2
	ResponseTrailers Fields = 3
	CallHeaders      Fields = 6 // the header fields of the answer to a call
)

// Body names a body of which Envoy returns a part.
type Body uint32

// The bodies that can be read in a callback for the message.
const (
	ResponseBody  Body = 1 // the piece of the body for which the callback is made
	CallBody      Body = 4 // of the answer to a call
	configuration Body = 7
)

// Warn writes a line to Envoy's log, at the level warn.
func Warn(line string) { proxyLog(3, line) }

// Critical writes a line to Envoy's log at the highest level, which Envoy does not filter out.
func Critical(line string) { proxyLog(5, line) }

// Configuration returns the configuration of the plugin; nil if there is none.
func Configuration() ([]byte, error) {
	data, err := Read(configuration, math.MaxInt32)
	if err == NotFound {
		return nil, nil
	}
	return data, err
}

// Read returns the beginning of a body. The argument named most is the maximum number of bytes.
func Read(body Body, most int) ([]byte, error) {
	size = 0
	return answer(proxyGetBufferBytes(body, 0, uint32(most), &address, &size))
}

// All returns all fields of a message. Names are in lower case.
func (f Fields) All() ([][2]string, error) {
	size = 0
	data, err := answer(proxyGetHeaderMapPairs(f, &address, &size))
	if err != nil || len(data) == 0 {
		return nil, err
	}
	fields, valid := decodeFields(data)
	if !valid {
		return nil, internalFailure
	}
	return fields, nil
}

// Get returns the value of a field.
func (f Fields) Get(name string) (string, error) {
	size = 0
	data, err := answer(proxyGetHeaderMapValue(f, name, &address, &size))
	return text(data), err
}

// Replace gives a field one value in place of all its values.
func (f Fields) Replace(name, value string) error {
	return proxyReplaceHeaderMapValue(f, name, value).err()
}

// Property returns an attribute of the request or of Envoy.
func Property(path []string) (string, error) {
	property = appendPath(property[:0], path)
	size = 0
	data, err := answer(proxyGetProperty(text(property), &address, &size))
	return text(data), err
}

// Use makes the subsequent calls in this callback belong to a stream or to a plugin. Use returns an
// error if Envoy has deleted the stream or the plugin.
func Use(context uint32) error { return proxySetEffectiveContext(context).err() }

// ResumeRequest lets the request of the stream in use continue.
func ResumeRequest() error {
	const request = 0
	return proxyContinueStream(request).err()
}

// Respond answers the request of the stream in use. A gRPC status of -1 means none.
func Respond(status uint32, fields [][2]string, body []byte, grpcStatus int32) error {
	return proxySendLocalResponse(status, "", text(body), text(encodeFields(fields)), grpcStatus).err()
}

// HTTPCall sends a request to a cluster of Envoy. The plugin in use gets the answer, with the
// number that HTTPCall returns.
func HTTPCall(cluster string, fields [][2]string, body []byte, millis uint32) (call uint32, err error) {
	const noTrailers = "\x00\x00\x00\x00"
	err = proxyHTTPCall(cluster, text(encodeFields(fields)), text(body), noTrailers, millis, &number).err()
	return number, err
}

// number is the memory into which Envoy writes a number.
var number uint32

// TickEvery sets the interval of the ticks of the plugin in use.
func TickEvery(millis uint32) error { return proxySetTickPeriodMilliseconds(millis).err() }

// RegisterQueue returns the queue of the given name. Its items make Envoy call the plugin in use.
func RegisterQueue(name string) (queue uint32, err error) {
	err = proxyRegisterSharedQueue(name, &number).err()
	return number, err
}

// Enqueue appends an item to a queue.
func Enqueue(queue uint32, item string) error { return proxyEnqueueSharedQueue(queue, item).err() }

// Dequeue takes an item out of a queue.
func Dequeue(queue uint32) ([]byte, error) {
	size = 0
	return answer(proxyDequeueSharedQueue(queue, &address, &size))
}

// Shared returns a value that all workers share, and its version.
func Shared(key string) (value []byte, version uint32, err error) {
	size, number = 0, 0
	value, err = answer(proxyGetSharedData(key, &address, &size, &number))
	return value, number, err
}

// Share sets a value that all workers share. Share returns an error if the version of the value
// differs from the given one, unless the given one is 0.
func Share(key string, value []byte, version uint32) error {
	return proxySetSharedData(key, text(value), version).err()
}

// Metric is a metric of Envoy, which all workers share. Changes to a metric that Envoy has rejected
// are ignored.
type Metric uint32

// NewCounter returns the counter of the given name.
func NewCounter(name string) Metric { return newMetric(0, name) }

// NewGauge returns the gauge of the given name.
func NewGauge(name string) Metric { return newMetric(1, name) }

func newMetric(kind uint32, name string) Metric {
	if number = 0; proxyDefineMetric(kind, name, &number) != ok {
		return 0
	}
	return Metric(number)
}

// Add changes the metric.
func (m Metric) Add(change int64) { proxyIncrementMetric(uint32(m), change) }
