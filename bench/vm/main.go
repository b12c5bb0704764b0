// SPDX-License-Identifier: Apache-2.0

// Command vm is a WebAssembly filter for Envoy that measures parts of Penstock's filter. Its
// configuration is one of the modes below, or a compact policy in base64 under which three limits
// apply to /. With a policy, each response has the time of each part, in nanoseconds, in headers
// that begin with "bench-".
package main

import (
	"strconv"
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/envoy-wasm/filter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// The modes in which the filter itself is measured from outside. None of them decides anything.
const (
	modeNothing = "nothing" // the difference from no filter is the cost of calling a filter
	// reads the request's headers and adds three to the response: the least that a limiter can do
	modeHeaders = "headers"
	// calls Envoy as often as Penstock's filter does for a request decided from held units
	modeCalls = "calls"
	modeAsks  = "asks" // like modeCalls, and requests the bridge's health
)

func main() {}

func init() { proxywasm.SetVMContext(new(vm)) }

type vm struct{ types.DefaultVMContext }

// NewPluginContext implements [types.VMContext].
func (*vm) NewPluginContext(uint32) types.PluginContext { return new(plugin) }

type plugin struct {
	types.DefaultPluginContext
	mode   string // one of the modes; "" measures the filter's parts
	host   *host
	filter *filter.Filter
	queue  uint32
	count  proxywasm.MetricCounter
}

// OnPluginStart implements [types.PluginContext].
func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		return types.OnPluginStartStatusFailed
	}
	p.count = proxywasm.DefineCounterMetric("bench.count")
	switch mode := string(configuration); mode {
	case modeNothing, modeHeaders, modeCalls, modeAsks:
		p.mode = mode
		return types.OnPluginStartStatusOK
	}
	p.host = new(host)
	if p.filter, err = filter.New(p.host, []byte("policy: "+string(configuration))); err != nil {
		proxywasm.LogCritical(err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.queue, err = proxywasm.RegisterSharedQueue("bench")
	if err != nil {
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// NewHttpContext implements [types.PluginContext].
func (p *plugin) NewHttpContext(id uint32) types.HttpContext { return &stream{plugin: p, id: id} }

// host is an Envoy whose functions do nothing, so that only the filter's own work is measured.
type host struct {
	call     filter.Call
	answered func(filter.Reply)
}

func (h *host) Call(c filter.Call, answered func(filter.Reply)) error {
	h.call, h.answered = c, answered
	return nil
}

func (h *host) Wake() error                     { return nil }
func (h *host) TickEvery(uint32) error          { return nil }
func (h *host) Resume(uint32)                   {}
func (h *host) Respond(uint32, filter.Response) {}
func (h *host) Now() counter.Micros             { return 1_700_000_000 * counter.Second }
func (h *host) Elapsed() counter.Micros         { return counter.Second }
func (h *host) Count(filter.Counter)            {}
func (h *host) Held(int64)                      {}
func (h *host) Warn(line string)                { proxywasm.LogWarn(line) }

func (h *host) Shared(uint32) ([]byte, uint32)    { return nil, 0 }
func (h *host) Share(uint32, []byte, uint32) bool { return true }
func (h *host) Property(path ...string) (string, bool) {
	return "192.0.2.7:4711", path[0] == "source"
}

// rounds is the number of times that each part runs, and batched is the number of requests in a
// batch.
const (
	rounds  = 400
	batched = 16
)

type stream struct {
	types.DefaultHttpContext
	plugin  *plugin
	id      uint32
	figures [][2]string
	seen    int // number of request headers
}

func (s *stream) note(name string, took time.Duration, times int) {
	s.figures = append(s.figures, [2]string{"bench-" + name, strconv.FormatInt(int64(took)/int64(times), 10)})
}

// each measures one run of do.
func (s *stream) each(name string, do func()) {
	begin := time.Now()
	for range rounds {
		do()
	}
	s.note(name, time.Since(begin), rounds)
}

// OnHttpRequestHeaders implements [types.HttpContext].
func (s *stream) OnHttpRequestHeaders(int, bool) types.Action {
	if s.plugin.mode == modeNothing {
		return types.ActionContinue
	}
	headers, _ := proxywasm.GetHttpRequestHeaders()
	s.seen = len(headers)
	switch s.plugin.mode {
	case modeHeaders:
		return types.ActionContinue
	case modeCalls, modeAsks:
		_, _ = proxywasm.GetProperty([]string{"source", "address"})
		s.plugin.count.Increment(1) // allowed
		s.plugin.count.Increment(1) // leased
		return s.ask()
	}
	s.work(headers)
	s.each("request-headers", func() { _, _ = proxywasm.GetHttpRequestHeaders() })
	path := []string{"source", "address"}
	s.each("property", func() { _, _ = proxywasm.GetProperty(path) })
	s.each("clock", func() { _ = time.Now() })
	s.each("count", func() { s.plugin.count.Increment(1) })
	s.each("context", func() { _ = proxywasm.SetEffectiveContext(s.id) })
	one := []byte{1}
	s.each("queue", func() {
		_ = proxywasm.EnqueueSharedQueue(s.plugin.queue, one)
		_, _ = proxywasm.DequeueSharedQueue(s.plugin.queue)
	})
	return types.ActionContinue
}

// ask waits for an answer of the bridge if the mode requires it.
func (s *stream) ask() types.Action {
	if s.plugin.mode != modeAsks {
		return types.ActionContinue
	}
	question := [][2]string{{":method", "GET"}, {":path", "/healthz"}, {":authority", "bridge"}}
	_, err := proxywasm.DispatchHttpCall("service", question, nil, nil, 500, func(_, size, _ int) {
		_, _ = proxywasm.GetHttpCallResponseHeaders()
		_, _ = proxywasm.GetHttpCallResponseBody(0, size)
		_ = proxywasm.ResumeHttpRequest()
	})
	if err != nil {
		return types.ActionContinue
	}
	return types.ActionPause
}

// work measures the filter's parts, with a batch of requests at a time.
func (s *stream) work(headers [][2]string) {
	f, h := s.plugin.filter, s.plugin.host
	reply := wire.AppendReply(nil)
	results := make([]counter.Result, 3)
	for i := range results {
		results[i] = counter.Result{At: h.Now(), Granted: 1, Remaining: 999_000_000 + int64(i), Reset: counter.Minute}
	}
	for range batched {
		reply = wire.AppendAnswer(reply, &wire.Answer{Results: results})
	}
	other := make([][2]string, len(headers))
	copy(other, headers)
	for i := range other {
		if other[i][0] == ":path" {
			other[i][1] = "/nowhere"
		}
	}
	response := [][2]string{{":status", "200"}, {"content-length", "2"}, {"content-type", "text/plain"}, {"date", "today"}}
	s.each("unmatched", func() {
		one := f.NewStream(1)
		one.RequestHeaders(other)
		one.Done()
	})
	var plan, ask, decide, tell time.Duration
	streams := make([]*filter.Stream, batched)
	for range rounds / batched {
		begin := time.Now()
		for i := range streams {
			streams[i] = f.NewStream(uint32(i))
			if streams[i].RequestHeaders(headers) != filter.Pause {
				panic("a request is not asked about")
			}
		}
		planned := time.Now()
		f.Flush()
		asked := time.Now()
		h.answered(filter.Reply{Status: 200, Body: reply})
		decided := time.Now()
		for _, one := range streams {
			if one.Responds() {
				one.ResponseHeaders(response, true)
			}
			one.Done()
		}
		plan, ask, decide, tell = plan+planned.Sub(begin), ask+asked.Sub(planned), decide+decided.Sub(asked), tell+time.Since(decided)
	}
	times := rounds / batched * batched
	s.note("plan", plan, times)
	s.note("ask", ask, times)
	s.note("decide", decide, times)
	s.note("tell", tell, times)
}

// OnHttpResponseHeaders implements [types.HttpContext].
func (s *stream) OnHttpResponseHeaders(int, bool) types.Action {
	switch s.plugin.mode {
	case modeNothing:
		return types.ActionContinue
	case modeHeaders, modeCalls, modeAsks:
		names := []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
		if s.plugin.mode != modeHeaders {
			// which may already contain some of the headers
			_, _ = proxywasm.GetHttpResponseHeaders()
			names = append(names, "ratelimit", "ratelimit-policy")
		}
		for _, name := range names {
			_ = proxywasm.ReplaceHttpResponseHeader(name, strconv.Itoa(999_000_000+s.seen))
		}
		return types.ActionContinue
	}
	s.each("response-headers", func() { _, _ = proxywasm.GetHttpResponseHeaders() })
	s.each("replace", func() { _ = proxywasm.ReplaceHttpResponseHeader("x-ratelimit-remaining", "999000000") })
	for _, f := range s.figures {
		_ = proxywasm.AddHttpResponseHeader(f[0], f[1])
	}
	return types.ActionContinue
}
