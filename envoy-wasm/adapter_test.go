// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/penstock/penstock/core/compact"
	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestAdapter tests the behavior that depends on the adapter, in the shipped .wasm.
func TestAdapter(t *testing.T) {
	shipped := shippedFilter(t)
	for name, test := range map[string]func(*testing.T, *filterRig){
		"a request and its response":  aRequestAndItsResponse,
		"a refusal":                   aDenial,
		"a refusal by gRPC-Web":       aDenialByGRPCWeb,
		"calls are shared":            callsAreShared,
		"a cost in the body":          aCostInTheBody,
		"a cost in a trailer":         aCostInATrailer,
		"a response without a cost":   aResponseWithoutACost,
		"who waits in line":           throttledRequest,
		"a stream that is gone":       aStreamThatIsGone,
		"a deadline":                  aDeadline,
		"an internal redirect":        anInternalRedirect,
		"answers that are none":       answersThatAreNone,
		"policies":                    policies,
		"configurations":              configurations,
		"properties of several kinds": propertiesOfSeveralKinds,
		"the pace of ticks":           thePaceOfTicks,
	} {
		t.Run(name, func(t *testing.T) { test(t, &filterRig{vm: shipped}) })
	}
}

// filterRig is the filter in an emulator, with a bridge whose answers the test chooses.
type filterRig struct {
	*emulator
	vm      types.VMContext
	policy  policy.Policy
	answers []wire.Answer // the answers to the next items; later items are admitted
	items   []wire.Item   // the items that the bridge received
	calls   []int         // the number of items in each call
	status  int           // the status of the next answers; 0 means 200
}

// filterRig.start starts the filter and gives it the policy.
func (r *filterRig) start(t *testing.T, settings string) {
	t.Helper()
	if len(r.policy.Rules) == 0 {
		limit, err := corecounter.ParseLimit("100/1m")
		if err != nil {
			t.Fatal(err)
		}
		r.policy.Name = "shop"
		r.policy.Rules = []policy.Rule{{Name: "api", Match: policy.Match{Path: []string{"/api/*"}}, Limits: []corecounter.Limit{limit}}}
	}
	log.SetOutput(io.Discard)
	w := &worker{VMContext: r.vm}
	host, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(w).WithPluginConfiguration([]byte(settings)))
	t.Cleanup(reset)
	// otherwise the next plugin of the same VM would continue with this policy
	t.Cleanup(func() { host.FinishVM() })
	r.emulator = &emulator{host: host, worker: w, bridge: r}
	if host.StartVM() != types.OnVMStartStatusOK || host.StartPlugin() != types.OnPluginStartStatusOK {
		t.Fatalf("the filter does not start: %q", host.GetCriticalLogs())
	}
	host.Tick()
	r.answerCalls(t)
	r.equal(t, "policies loaded", r.count(t, "policy_loaded"), 1)
	r.set(t, "192.0.2.7:4711", "source", "address")
}

// ServeHTTP is the bridge.
func (r *filterRig) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if r.status != 0 {
		w.WriteHeader(r.status)
		return
	}
	if request.URL.Path == "/v1/policy" {
		w.Header().Set("Etag", `"v1"`)
		_, _ = w.Write(compact.AppendPolicy(nil, &r.policy, "v1")) // an httptest.ResponseRecorder
		return
	}
	body, _ := io.ReadAll(request.Body) // in memory
	call, err := wire.ReadCall(body)
	reply, n := wire.AppendReply(nil), 0
	for err == nil {
		var item wire.Item
		var more bool
		if more, err = call.Next(&item); !more {
			break
		}
		answer := wire.Answer{Results: []corecounter.Result{{At: corecounter.Second, Granted: 1, Remaining: 9, Reset: corecounter.Minute}}}
		if len(r.answers) > 0 {
			answer, r.answers = r.answers[0], r.answers[1:]
		}
		reply = wire.AppendAnswer(reply, &answer)
		r.items, n = append(r.items, item), n+1
	}
	r.calls = append(r.calls, n)
	_, _ = w.Write(reply)
}

// filterRig.send sends the headers of a request through the filter.
func (r *filterRig) send(path string, fields ...string) (id uint32, action types.Action) {
	headers := [][2]string{{":method", "GET"}, {":path", path}, {":authority", "example.com"}}
	for i := 0; i < len(fields); i += 2 {
		headers = append(headers, [2]string{fields[i], fields[i+1]})
	}
	id = r.host.InitializeHttpContext()
	r.worker.stream = id
	return id, r.host.CallOnRequestHeaders(id, headers, true)
}

// sendAsked sends a request and checks that the filter calls the bridge.
func (r *filterRig) sendAsked(t *testing.T, path string, fields ...string) (id uint32) {
	t.Helper()
	id, action := r.send(path, fields...)
	if action != types.ActionPause {
		t.Fatal("the bridge is not asked")
	}
	return id
}

// sendAdmitted sends a request that the bridge admits.
func (r *filterRig) sendAdmitted(t *testing.T, path string, fields ...string) (id uint32) {
	t.Helper()
	id = r.sendAsked(t, path, fields...)
	r.answerCalls(t)
	if r.host.GetCurrentHttpStreamAction(id) != types.ActionContinue || r.host.GetSentLocalResponse(id) != nil {
		t.Fatal("not let go on")
	}
	return id
}

func (r *filterRig) count(t *testing.T, name string) uint64 {
	t.Helper()
	n, err := r.host.GetCounterMetric("penstock." + name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *filterRig) equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if gotN, ok := got.(uint64); ok {
		got = int(gotN)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: -want +got\n%s", what, diff)
	}
}

var text200 = [][2]string{{":status", "200"}, {"content-type", "text/plain"}, {"content-length", "2"}}

func aRequestAndItsResponse(t *testing.T, r *filterRig) {
	r.policy.TrustedHops = 1
	r.start(t, "token: secret")
	id := r.sendAdmitted(t, "/api/x?q=1", "x-forwarded-for", "1.1.1.1, 192.0.2.7", "x-other", "x")
	ask := r.items[0].Ask
	r.equal(t, "asked", []string{ask.Path, ask.Method, ask.Host, ask.Peer.String(), ask.Headers[0].Text},
		[]string{"/api/x", "GET", "example.com", "192.0.2.7", "1.1.1.1"})
	call := r.host.GetCalloutAttributesFromContext(proxytest.PluginContextID)[1]
	r.equal(t, "the call", []string{call.Upstream, pseudo(call.Headers, ":path"), pseudo(call.Headers, "authorization"),
		pseudo(call.Headers, "content-type")}, []string{"penstock", "/v1/check", "Bearer secret", wire.ContentType})
	r.host.CallOnResponseHeaders(id, append(slices.Clone(text200), [2]string{"x-ratelimit-remaining", "70"},
		[2]string{"ratelimit", `"up";r=70`}), false)
	got := headerOf(r.host.GetCurrentResponseHeaders(id))
	r.equal(t, "told", []string{got.Get("X-RateLimit-Limit"), got.Get("X-RateLimit-Remaining"), got.Get("RateLimit")},
		[]string{"100", "9", `"api";r=9, "up";r=70`})
	r.equal(t, "lines", len(got.Values("RateLimit")), 1)
	r.equal(t, "allowed", r.count(t, "allowed"), 1)
	if _, action := r.send("/other"); action != types.ActionContinue {
		t.Error("what no limit is for waits")
	}
}

func deniedResult() wire.Answer {
	return wire.Answer{Results: []corecounter.Result{{At: corecounter.Second, Denied: true, Wait: 30 * corecounter.Second, Reset: corecounter.Minute}}}
}

func aDenial(t *testing.T, r *filterRig) {
	r.start(t, "")
	r.answers = []wire.Answer{deniedResult()}
	id := r.sendAsked(t, "/api/x")
	r.answerCalls(t)
	local := r.host.GetSentLocalResponse(id)
	if local == nil {
		t.Fatal("not refused")
	}
	r.equal(t, "refused", []any{int(local.StatusCode), int(local.GRPCStatus), pseudo(local.Headers, "retry-after"),
		strings.Contains(string(local.Data), "quota-exceeded")}, []any{429, -1, "30", true})
	before := append([][2]string{{":status", "429"}}, local.Headers...)
	r.host.CallOnResponseHeaders(id, before, false)
	r.equal(t, "shown to the filter again", r.host.GetCurrentResponseHeaders(id), before)
	r.equal(t, "denied", r.count(t, "denied"), 1)
}

func aDenialByGRPCWeb(t *testing.T, r *filterRig) {
	r.start(t, "")
	r.answers = []wire.Answer{deniedResult()}
	id := r.sendAsked(t, "/api/x", "content-type", "application/grpc-web+proto")
	r.answerCalls(t)
	local := r.host.GetSentLocalResponse(id)
	r.host.CallOnResponseHeaders(id, append([][2]string{{":status", "200"}}, local.Headers...), true)
	got := headerOf(r.host.GetCurrentResponseHeaders(id))
	r.equal(t, "answered", []string{got.Get("Content-Type"), got.Get("Grpc-Status")}, []string{"application/grpc-web", "8"})
}

func callsAreShared(t *testing.T, r *filterRig) {
	r.start(t, "")
	first := r.sendAsked(t, "/api/1")
	r.worker.wake(t) // the call of the first request is in flight
	rest := []uint32{r.sendAsked(t, "/api/2"), r.sendAsked(t, "/api/3"), r.sendAsked(t, "/api/4")}
	r.answers = []wire.Answer{{Results: []corecounter.Result{{Granted: 1, Remaining: 8}}}, {Status: wire.StatusUnavailable}, deniedResult()}
	r.answerCalls(t)
	r.equal(t, "calls", r.calls, []int{1, 3})
	for _, id := range []uint32{first, rest[0], rest[2]} {
		if r.host.GetCurrentHttpStreamAction(id) != types.ActionContinue || r.host.GetSentLocalResponse(id) != nil {
			t.Errorf("stream %d is not let go on", id)
		}
	}
	if r.host.GetSentLocalResponse(rest[1]) == nil {
		t.Error("the third is not refused")
	}
	r.equal(t, "store unavailable", r.count(t, "store_unavailable"), 1)
}

// startReserving starts the filter with a rule whose cost depends on the response.
func (r *filterRig) startReserving(t *testing.T, cost policy.CostAfter) (id uint32) {
	t.Helper()
	limit, err := corecounter.ParseLimit("100/1m")
	if err != nil {
		t.Fatal(err)
	}
	r.policy = policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "llm", Limits: []corecounter.Limit{limit}, CostAfter: &cost}}}
	r.start(t, "")
	r.answers = []wire.Answer{{Results: []corecounter.Result{{Granted: 10, Remaining: 90}}, Receipt: "sealed"}}
	id = r.sendAdmitted(t, "/v1/chat")
	r.items = nil
	return id
}

// wantSettled checks the settlement that the bridge receives.
func (r *filterRig) wantSettled(t *testing.T, want wire.Settle) {
	t.Helper()
	r.answerCalls(t)
	if len(r.items) != 1 || r.items[0].Kind != wire.KindSettle {
		t.Fatalf("the bridge is told %+v", r.items)
	}
	want.Receipt = "sealed"
	r.equal(t, "settled", r.items[0].Settle, want)
}

func aCostInTheBody(t *testing.T, r *filterRig) {
	id := r.startReserving(t, policy.CostAfter{JSON: "usage.total_tokens", Estimate: 10})
	r.host.CallOnResponseHeaders(id, [][2]string{{":status", "200"}, {"content-type", "application/json"}}, false)
	for i, piece := range []string{`{"usage":{"tot`, `al_tokens":`, `7}}`} {
		if r.host.CallOnResponseBody(id, []byte(piece), i == 2) != types.ActionContinue {
			t.Error("the body is held back")
		}
		if got := string(r.host.GetCurrentResponseBody(id)); got != piece {
			t.Errorf("%q is sent on instead of %q", got, piece)
		}
	}
	r.wantSettled(t, wire.Settle{Status: 200, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: "7"}}})
	r.host.CompleteHttpContext(id)
	r.answerCalls(t)
	r.equal(t, "told", len(r.items), 1)
}

func aCostInATrailer(t *testing.T, r *filterRig) {
	id := r.startReserving(t, policy.CostAfter{Header: "X-Cost", Estimate: 10})
	r.host.CallOnResponseHeaders(id, [][2]string{{":status", "200"}}, false)
	r.host.CallOnResponseBody(id, []byte("ok"), false)
	r.host.CallOnResponseTrailers(id, [][2]string{{"x-cost", "4"}})
	r.wantSettled(t, wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "4"}}})
}

func aResponseWithoutACost(t *testing.T, r *filterRig) {
	id := r.startReserving(t, policy.CostAfter{Header: "X-Cost", Estimate: 10, Default: 20})
	r.host.CallOnResponseHeaders(id, text200, false)
	got := headerOf(r.host.GetCurrentResponseHeaders(id))
	r.equal(t, "the cost", got.Get("X-RateLimit-Cost"), "20")
	r.wantSettled(t, wire.Settle{Status: 200})
	r.equal(t, "unreadable", r.count(t, "unreadable_costs"), 1)
}

// throttledRequest: a request's second call belongs to the plugin, even if another request was
// resumed just before that call. So the answer to the second call arrives.
func throttledRequest(t *testing.T, r *filterRig) {
	limit, err := corecounter.ParseLimit("100/1m")
	if err != nil {
		t.Fatal(err)
	}
	r.policy = policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "slow", Limits: []corecounter.Limit{limit}, Action: policy.ActionThrottle,
		Throttle: &policy.Throttle{MaxDelay: corecounter.Second, MaxWaiting: 9}}}}
	r.start(t, "")
	first := r.sendAsked(t, "/1")
	r.worker.wake(t)
	second, third := r.sendAsked(t, "/2"), r.sendAsked(t, "/3")
	wait := wire.Answer{Results: []corecounter.Result{{Denied: true, Wait: corecounter.Second}}}
	r.answers = []wire.Answer{{Results: []corecounter.Result{{Granted: 1}}}, {Results: []corecounter.Result{{Granted: 1}}}, wait}
	r.answerCalls(t)
	for _, id := range []uint32{first, second, third} {
		if r.host.GetCurrentHttpStreamAction(id) != types.ActionContinue {
			t.Errorf("stream %d waits for ever", id)
		}
	}
	if last := r.items[len(r.items)-1]; len(r.items) != 4 || last.Kind != wire.KindWait || last.Ask.Path != "/3" {
		t.Errorf("asked %+v", r.items)
	}
	r.equal(t, "delayed", r.count(t, "delayed"), 1)
}

func aStreamThatIsGone(t *testing.T, r *filterRig) {
	r.start(t, "")
	gone := r.sendAsked(t, "/api/1")
	r.worker.wake(t)
	r.host.CompleteHttpContext(gone)
	r.sendAdmitted(t, "/api/2")
	r.equal(t, "allowed", r.count(t, "allowed"), 1)
}

func aDeadline(t *testing.T, r *filterRig) {
	r.start(t, "deadline: 1ms")
	id := r.sendAsked(t, "/api/1")
	r.worker.wake(t)
	for end := time.Now().Add(10 * time.Second); r.host.GetCurrentHttpStreamAction(id) == types.ActionPause; r.host.Tick() {
		if time.Now().After(end) {
			t.Fatal("it waits for ever")
		}
	}
	r.answerCalls(t) // late
	r.equal(t, "timed out", r.count(t, "bridge_timeout"), 1)
	r.equal(t, "ticks every", int(r.host.GetTickPeriod()), 10)
}

func anInternalRedirect(t *testing.T, r *filterRig) {
	r.start(t, "")
	first := r.sendAdmitted(t, "/api/1", "x-request-id", "a")
	r.host.CompleteHttpContext(first)
	r.set(t, "1", "filter_state", "num_internal_redirects")
	id, action := r.send("/api/2", "x-request-id", "a")
	if action != types.ActionContinue || len(r.items) != 1 {
		t.Fatal("asked about again")
	}
	r.host.CallOnResponseHeaders(id, text200, false)
	r.equal(t, "told", headerOf(r.host.GetCurrentResponseHeaders(id)).Get("X-RateLimit-Remaining"), "9")
}

func answersThatAreNone(t *testing.T, r *filterRig) {
	r.start(t, "")
	for status, counter := range map[int]string{500: "bridge_unanswered", 503: "bridge_unreachable", 504: "bridge_unreachable"} {
		before := r.count(t, counter)
		r.status = status
		r.sendAdmitted(t, "/api/x")
		r.status = 0
		r.equal(t, strconv.Itoa(status), r.count(t, counter)-before, 1)
		r.sendAdmitted(t, "/api/x")
	}
}

func policies(t *testing.T, r *filterRig) {
	limit, err := corecounter.ParseLimit("100/1m")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 { // half a megabyte
		r.policy.Rules = append(r.policy.Rules, policy.Rule{Name: "rule-" + strconv.Itoa(i), Limits: []corecounter.Limit{limit},
			Match: policy.Match{Path: []string{"/" + strings.Repeat("long/", 10) + strconv.Itoa(i)}}})
	}
	r.policy.Name = "large"
	r.start(t, "poll: 100ms")
	r.sendAdmitted(t, "/"+strings.Repeat("long/", 10)+"4999")
	for end := time.Now().Add(10 * time.Second); r.called < 3; r.answerCalls(t) {
		if time.Now().After(end) {
			t.Fatal("it does not ask for another policy")
		}
		r.host.Tick()
	}
	call := r.host.GetCalloutAttributesFromContext(proxytest.PluginContextID)[2]
	r.equal(t, "the poll", []string{pseudo(call.Headers, ":path"), pseudo(call.Headers, "if-none-match")}, []string{"/v1/policy", `"v1"`})
	r.equal(t, "loaded", r.count(t, "policy_loaded"), 1)
}

// configurations: an invalid configuration is rejected with a message, and an empty configuration
// means the default.
func configurations(t *testing.T, r *filterRig) {
	for settings, want := range map[string]types.OnPluginStartStatus{"": types.OnPluginStartStatusOK,
		`{"cluster": "b", "deadline": "1s"}`: types.OnPluginStartStatusOK, "deadlin: 1s": types.OnPluginStartStatusFailed,
		"policy: AAAA": types.OnPluginStartStatusFailed} {
		option := proxytest.NewEmulatorOption().WithVMContext(r.vm)
		if settings != "" {
			option = option.WithPluginConfiguration([]byte(settings))
		}
		host, reset := proxytest.NewHostEmulator(option)
		if host.StartVM() != types.OnVMStartStatusOK || host.StartPlugin() != want || (len(host.GetCriticalLogs()) == 1) == bool(want) {
			t.Errorf("%q: %q", settings, host.GetCriticalLogs())
		}
		reset()
	}
}

func propertiesOfSeveralKinds(t *testing.T, r *filterRig) {
	r.policy.Identify = []policy.Identify{{Kind: policy.IdentifyAttr, Name: "connection.id"},
		{Kind: policy.IdentifyAttr, Name: "connection.mtls"}, {Kind: policy.IdentifyAttr, Name: "missing"}}
	r.start(t, "")
	r.set(t, "\x07\x00\x00\x00\x00\x00\x00\x00", "connection", "id")
	r.set(t, "\x01", "connection", "mtls")
	r.sendAdmitted(t, "/api/x")
	r.equal(t, "attributes", r.items[0].Ask.Attrs, []wire.Value{{Text: "7", Given: true}, {Text: "true", Given: true}, {}})
}
