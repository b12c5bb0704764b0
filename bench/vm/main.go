// SPDX-License-Identifier: Apache-2.0

//go:build wasm

// Command vm is a WebAssembly filter for Envoy that measures parts of Penstock's filter. Its
// configuration is either one of the modes below, or a compact policy in base64 in which three
// limits apply to the path /. With a policy, each response has headers whose names begin with
// "bench-". They contain the time of each part in nanoseconds.
package main

import (
	"strconv"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/envoy-wasm/abi"
	"github.com/penstock/penstock/envoy-wasm/filter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// The modes in which the filter as a whole is measured from outside. In these modes it decides
// nothing.
const (
	modeNothing = "nothing" // calls nothing; shows what it costs Envoy to call a filter
	// reads the request's headers and adds three to the response: the least that a limiter can do
	modeHeaders = "headers"
	// calls Envoy as often as Penstock's filter does for a request decided from held units
	modeCalls = "calls"
	modeAsks  = "asks" // like modeCalls, and requests the bridge's health
)

func main() {}

func init() { abi.Register(new(vm)) }

type vm struct{}

// NewPlugin implements [abi.VM].
func (*vm) NewPlugin(id uint32) abi.Plugin { return &plugin{id: id, asking: map[uint32]uint32{}} }

type plugin struct {
	id     uint32
	mode   string // one of the modes; "" measures the filter's parts
	host   *host
	filter *filter.Filter
	queue  uint32
	count  abi.Metric
	asking map[uint32]uint32 // the streams that wait for the bridge, by the IDs of their calls
}

// Start implements [abi.Plugin].
func (p *plugin) Start() bool {
	configuration, err := abi.Configuration()
	if err != nil {
		return false
	}
	p.count = abi.NewCounter("bench.count")
	switch mode := string(configuration); mode {
	case modeNothing, modeHeaders, modeCalls, modeAsks:
		p.mode = mode
		return true
	}
	p.host = new(host)
	if p.filter, err = filter.New(p.host, []byte("policy: "+string(configuration))); err != nil {
		abi.Critical(err.Error())
		return false
	}
	p.queue, err = abi.RegisterQueue("bench")
	if err != nil {
		return false
	}
	return true
}

// Done implements [abi.Plugin].
func (p *plugin) Done() {}

// Tick implements [abi.Plugin].
func (p *plugin) Tick() {}

// QueueReady implements [abi.Plugin].
func (p *plugin) QueueReady(uint32) {}

// Called implements [abi.Plugin].
func (p *plugin) Called(call uint32, bodyBytes int) {
	_, _ = abi.CallHeaders.All()
	_, _ = abi.Read(abi.CallBody, bodyBytes)
	stream := p.asking[call]
	delete(p.asking, call)
	if abi.Use(stream) == nil {
		_ = abi.ResumeRequest()
	}
}

// NewStream implements [abi.Plugin].
func (p *plugin) NewStream(id uint32) abi.Stream { return &stream{plugin: p, id: id} }

// host stands in for Envoy. Its functions do nothing, so that only the filter's own work is
// measured.
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
func (h *host) Warn(line string)                { abi.Warn(line) }

func (h *host) Shared(uint32) ([]byte, uint32)    { return nil, 0 }
func (h *host) Share(uint32, []byte, uint32) bool { return true }
func (h *host) Property(path ...string) (string, bool) {
	return "192.0.2.7:4711", path[0] == "source"
}

// rounds is how often each part runs, and batched is the number of requests in a batch.
const (
	rounds  = 400
	batched = 16
)

type stream struct {
	plugin  *plugin
	id      uint32
	figures [][2]string
	seen    int // number of request headers
}

func (s *stream) note(name string, took time.Duration, times int) {
	s.figures = append(s.figures, [2]string{"bench-" + name, strconv.FormatInt(int64(took)/int64(times), 10)})
}

// stream.each measures how long a call of do() takes on average.
func (s *stream) each(name string, do func()) {
	begin := time.Now()
	for range rounds {
		do()
	}
	s.note(name, time.Since(begin), rounds)
}

// RequestHeaders implements [abi.Stream].
func (s *stream) RequestHeaders(bool) abi.Action {
	if s.plugin.mode == modeNothing {
		return abi.Continue
	}
	headers, _ := abi.RequestHeaders.All()
	s.seen = len(headers)
	switch s.plugin.mode {
	case modeHeaders:
		return abi.Continue
	case modeCalls, modeAsks:
		_, _ = abi.Property([]string{"source", "address"})
		s.plugin.count.Add(1) // allowed
		s.plugin.count.Add(1) // leased
		return s.ask()
	}
	s.work(headers)
	s.each("request-headers", func() { _, _ = abi.RequestHeaders.All() })
	path := []string{"source", "address"}
	s.each("property", func() { _, _ = abi.Property(path) })
	s.each("clock", func() { _ = abi.Now() })
	s.each("count", func() { s.plugin.count.Add(1) })
	s.each("context", func() { _ = abi.Use(s.id) })
	s.each("queue", func() {
		_ = abi.Enqueue(s.plugin.queue, "1")
		_, _ = abi.Dequeue(s.plugin.queue)
	})
	return abi.Continue
}

// stream.ask calls the bridge in the mode modeAsks, and pauses the request until the bridge has
// answered.
func (s *stream) ask() abi.Action {
	if s.plugin.mode != modeAsks {
		return abi.Continue
	}
	question := [][2]string{{":method", "GET"}, {":path", "/healthz"}, {":authority", "bridge"}}
	if abi.Use(s.plugin.id) != nil {
		return abi.Continue
	}
	call, err := abi.HTTPCall("service", question, nil, 500)
	if err != nil {
		return abi.Continue
	}
	s.plugin.asking[call] = s.id
	return abi.Pause
}

// stream.work measures the parts of the filter's work, on batches of requests.
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

// RequestBody implements [abi.Stream].
func (s *stream) RequestBody(bool) (waits bool) { return false }

// ResponseBody implements [abi.Stream].
func (s *stream) ResponseBody(int, bool) {}

// ResponseTrailers implements [abi.Stream].
func (s *stream) ResponseTrailers() {}

// Done implements [abi.Stream].
func (s *stream) Done() {}

// ResponseHeaders implements [abi.Stream].
func (s *stream) ResponseHeaders(bool) {
	switch s.plugin.mode {
	case modeNothing:
		return
	case modeHeaders, modeCalls, modeAsks:
		names := []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
		if s.plugin.mode != modeHeaders {
			// the response may already contain some of the headers
			_, _ = abi.ResponseHeaders.All()
			names = append(names, "ratelimit", "ratelimit-policy")
		}
		for _, name := range names {
			_ = abi.ResponseHeaders.Replace(name, strconv.Itoa(999_000_000+s.seen))
		}
		return
	}
	s.each("response-headers", func() { _, _ = abi.ResponseHeaders.All() })
	s.each("replace", func() { _ = abi.ResponseHeaders.Replace("x-ratelimit-remaining", "999000000") })
	for _, f := range s.figures {
		_ = abi.ResponseHeaders.Replace(f[0], f[1])
	}
}
