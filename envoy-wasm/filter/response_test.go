// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/response"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// admitted sends a request that the bridge admits.
func admitted(t *testing.T, e *fakeEnvoy, f *Filter, id uint32, answer wire.Answer, headers [][2]string) *Stream {
	t.Helper()
	s := f.NewStream(id)
	if s.RequestHeaders(headers) != Pause {
		t.Fatal("not asked about")
	}
	f.Flush()
	c, _, _ := e.check()
	c.answer(replyWith(answer))
	if !slices.Contains(e.resumed, id) {
		t.Fatalf("not let go on: %v %v", e.responses, e.count())
	}
	return s
}

// okHeaders returns the headers of a response.
func okHeaders(status string, fields ...string) [][2]string {
	headers := [][2]string{{":status", status}}
	for i := 0; i < len(fields); i += 2 {
		headers = append(headers, [2]string{fields[i], fields[i+1]})
	}
	return headers
}

// TestTheUpstreamsFields: the upstream's own limit headers are merged as in Caddy. The rules are
// tested in package core.
func TestTheUpstreamsFields(t *testing.T) {
	ours := [][2]string{{"x-ratelimit-limit", "10"}, {"x-ratelimit-remaining", "9"}, {"x-ratelimit-reset", "61"}}
	policy := [2]string{"ratelimit-policy", `"api";q=10;w=60`}
	for name, c := range map[string]struct{ response, want [][2]string }{
		"none": {okHeaders("200"), append(slices.Clone(ours), [2]string{"ratelimit", `"api";r=9;t=1`}, policy)},
		"a smaller remaining": {okHeaders("200", "x-ratelimit-remaining", "3", "x-ratelimit-limit", "5", "retry-after", "7"),
			[][2]string{{"ratelimit", `"api";r=9;t=1`}, policy}},
		"a larger one": {okHeaders("200", "x-ratelimit-remaining", "30"), append(slices.Clone(ours), [2]string{"ratelimit", `"api";r=9;t=1`}, policy)},
		"two lines of a list": {okHeaders("200", "ratelimit", `"a";r=1`, "x", "y", "ratelimit", `"b";r=2`),
			append(slices.Clone(ours), [2]string{"ratelimit", `"api";r=9;t=1, "a";r=1, "b";r=2`}, policy)},
		"what Envoy answers itself": {okHeaders("503"), append(slices.Clone(ours), [2]string{"ratelimit", `"api";r=9;t=1`}, policy)},
		"an interim response":       {okHeaders("103", "link", "</x>"), nil},
		"another protocol":          {okHeaders("101"), append(slices.Clone(ours), [2]string{"ratelimit", `"api";r=9;t=1`}, policy)},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"))
		s := admitted(t, e, f, 1, admittedWith(9), get("/api/x"))
		if diff := cmp.Diff(c.want, s.ResponseHeaders(c.response, false)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestInterimResponses(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := admitted(t, e, f, 1, admittedWith(9), get("/api/x"))
	if s.ResponseHeaders(okHeaders("103"), false) != nil || len(s.ResponseHeaders(okHeaders("200"), true)) != 5 {
		t.Error("the fields go with the interim response, or not with the last")
	}
}

// denialResponse returns the response to a request that the rule denies.
func denialResponse(t *testing.T, response *corepolicy.Response, headers ...string) (Response, *Stream) {
	t.Helper()
	e := newEnvoy(t)
	p := shopPolicy(t, "10/1m")
	p.Rules[0].Response = response
	f := withPolicy(t, e, p)
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x", headers...))
	f.Flush()
	c, _, _ := e.check()
	c.answer(replyWith(denialOver()))
	return e.responses[1], s
}

func fieldOf(headers [][2]string, name string) string {
	if values := response.Lines(headers, name); len(values) == 1 {
		return values[0]
	} else if len(values) > 1 {
		return "twice"
	}
	return ""
}

func TestARulesOwnAnswer(t *testing.T) {
	r, _ := denialResponse(t, &corepolicy.Response{Status: 403, Body: "[1]", Headers: []corepolicy.Field{{Name: "X-A", Value: "b"},
		{Name: "Retry-After", Value: "5"}, {Name: "Content-Type", Value: "x"}, {Name: "X-RateLimit-Remaining", Value: "-"}}})
	want := map[string]string{"x-a": "b", "retry-after": "30", "content-type": "application/json", "x-ratelimit-remaining": "0"}
	for name, value := range want {
		if got := fieldOf(r.Headers, name); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	if r.Status != 403 || string(r.Body) != "[1]" || r.GRPCStatus != -1 {
		t.Errorf("%+v", r)
	}
}

// TestGRPCDenials: Envoy converts status and body to trailers for requests that it considers gRPC,
// but it does not recognize all kinds of gRPC.
func TestGRPCDenials(t *testing.T) {
	message := &corepolicy.Response{Message: "50% of Ümlaut"}
	for asked, c := range map[string]struct {
		kind string // content type of the filter's own answer
		grpc int32
	}{
		"application/grpc":                {"", 8},
		"application/grpc+proto":          {"", 8},
		"application/grpc; charset=utf-8": {"application/grpc", -1},
		"application/grpc-web+proto":      {"application/grpc-web", -1},
		"application/grpc-web-text":       {"application/grpc-web-text", -1},
	} {
		r, s := denialResponse(t, message, "content-type", asked)
		if r.GRPCStatus != c.grpc || fieldOf(r.Headers, "retry-after") != "30" || fieldOf(r.Headers, "content-type") != "" {
			t.Errorf("%s: %+v", asked, r)
		}
		if c.kind == "" {
			if string(r.Body) != "50% of Ümlaut" || s.Responds() {
				t.Errorf("%s: the message is %q", asked, r.Body)
			}
			continue
		}
		if r.Status != 200 || len(r.Body) > 0 || fieldOf(r.Headers, "grpc-status") != "8" ||
			fieldOf(r.Headers, "grpc-message") != "50%25 of %C3%9Cmlaut" {
			t.Errorf("%s: %+v", asked, r)
		}
		if got := s.ResponseHeaders(okHeaders("200"), true); !s.Responds() || !slices.Equal(got, [][2]string{{"content-type", c.kind}}) {
			t.Errorf("%s: %v is put back", asked, got)
		}
	}
	for _, asked := range []string{"application/grpcx", "application/json"} {
		if r, _ := denialResponse(t, nil, "content-type", asked); r.Status != 429 || r.GRPCStatus != -1 || len(r.Body) == 0 {
			t.Errorf("%s: %+v", asked, r)
		}
	}
}

func TestABadCredentialIsChallenged(t *testing.T) {
	e := newEnvoy(t)
	p := withKeys(t)
	p.Identify[0].DenyInvalid = true
	f := withPolicy(t, e, p)
	f.NewStream(1).RequestHeaders(get("/api/x", "x-api-key", "wrong"))
	f.Flush()
	c, _, _ := e.check()
	answer := withVerdict(wire.Answer{}, corepolicy.CredentialUnknown, counter.Minute)
	c.answer(replyWith(answer))
	r := e.responses[1]
	if r.Status != 401 || fieldOf(r.Headers, "www-authenticate") != `Bearer error="invalid_token"` {
		t.Errorf("%+v, %v", r, e.count())
	}
}
