// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const answeringRules = `:PORT {
	penstock {
		name answers
		rule json 1/30d {
			match path /json
			response {
				status 420
				body "{\"error\":\"calm down\"}"
				header X-Extra yes
			}
			retry_after 45d
		}
		rule text 1/30d {
			match path /text
			response {
				body "calm down"
			}
		}
		rule long 1/30d {
			match path /long
			response {
				body "` + "LONG" + `"
				content_type text/x-calm
			}
		}
		rule message 1/30d {
			match path /message
			response {
				message "50% \"calm\" ☕"
			}
		}
		rule forbidden {
			match path /forbidden
			action block
		}
	}
	respond "ok"
}`

// startExhausted starts a server and exhausts every rule on it.
func startExhausted(t *testing.T, more string) *server {
	t.Helper()
	s := start(t, more+strings.Replace(answeringRules, "LONG", strings.Repeat("calm ", 2000), 1))
	for _, path := range []string{"/json", "/text", "/long", "/message"} {
		equal(t, path, s.statuses(1, path), "200")
	}
	return s
}

func TestARulesOwnResponse(t *testing.T) {
	s := startExhausted(t, "")
	r := s.get("/json")
	equal(t, "status", strconv.Itoa(r.StatusCode), "420")
	r.wantField(t, "Content-Type", "application/json")
	r.wantField(t, "X-Extra", "yes")
	r.wantField(t, "X-RateLimit-Remaining", "0")
	equal(t, "body", r.body, `{"error":"calm down"}`)
	if wait, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || wait < 45*86400 {
		t.Errorf("Retry-After %q, want at least 45 days", r.Header.Get("Retry-After"))
	}
	r = s.get("/text")
	equal(t, "status", strconv.Itoa(r.StatusCode), "429")
	r.wantField(t, "Content-Type", "text/plain; charset=utf-8")
	equal(t, "body", r.body, "calm down")
	r = s.get("/message")
	r.wantField(t, "Content-Type", "application/problem+json")
	var problem struct{ Detail string }
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil || problem.Detail != `50% "calm" ☕` {
		t.Errorf("detail %q: %v: %s", problem.Detail, err, r.body)
	}
}

// TestAnAnswersFieldsAreItsOwn: the header handler replaces field values in place. The race
// detector therefore finds responses that share a value.
func TestAnAnswersFieldsAreItsOwn(t *testing.T) {
	s := start(t, `:PORT {
		route {
			header /renamed >Content-Type problem trouble
			header /kept >Content-Type trouble problem
			penstock 1/30d
			respond "ok"
		}
	}`)
	s.get("/")
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range 20 {
				s.get("/kept").wantField(t, "Content-Type", "application/problem+json")
			}
		})
	}
	asking.Wait()
	s.get("/renamed").wantField(t, "Content-Type", "application/trouble+json")
	s.get("/").wantField(t, "Content-Type", "application/problem+json")
}

func TestHeadGetsNoBodyHoweverLong(t *testing.T) {
	s := startExhausted(t, "")
	for path, length := range map[string]int64{"/json": 21, "/long": 10000} {
		r := s.do(http.MethodHead, path)
		if r.body != "" || r.ContentLength != length {
			t.Errorf("%s: body %q, Content-Length %d, want none and %d", path, r.body, r.ContentLength, length)
		}
	}
	s.get("/long").wantField(t, "Content-Type", "text/x-calm")
}

// TestGRPCIsDeniedInItsOwnForm: the response is HTTP 200 with a single header block that carries
// the gRPC status.
func TestGRPCIsDeniedInItsOwnForm(t *testing.T) {
	s := startExhausted(t, `{
		servers {
			protocols h1 h2c
		}
	}
	`)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	for _, c := range []struct{ path, asked, answered, status, message string }{
		{path: "/json", asked: "application/grpc", answered: "application/grpc", status: "8", message: "Too many requests"},
		{path: "/message", asked: "application/grpc+proto", answered: "application/grpc", status: "8", message: "50%25 \"calm\" %E2%98%95"},
		{path: "/text", asked: "application/grpc-web+proto", answered: "application/grpc-web", status: "8", message: "Too many requests"},
		{path: "/forbidden", asked: "application/grpc", answered: "application/grpc", status: "7", message: "The request is not allowed."},
	} {
		request, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:"+strconv.Itoa(s.port)+c.path, strings.NewReader("message"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", c.asked)
		r, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > 0 || len(r.Trailer) > 0 || r.StatusCode != 200 || r.ProtoMajor != 2 {
			t.Errorf("%s: %s %d, body %q, trailers %v, %v; want HTTP/2 200 and the header alone", c.path, r.Proto, r.StatusCode, body,
				r.Trailer, err)
		}
		answer := reply{Response: r}
		answer.wantField(t, "Content-Type", c.answered)
		answer.wantField(t, "Grpc-Status", c.status)
		answer.wantField(t, "Cache-Control", "no-store")
		if got := r.Header.Get("Grpc-Message"); !strings.HasPrefix(got, c.message) {
			t.Errorf("%s: grpc-message %q, want %q", c.path, got, c.message)
		}
	}
	equal(t, "what only looks like it", strconv.Itoa(s.get("/json", "Content-Type", "application/grpcx").StatusCode), "420")
}

func TestErrorRoutesSeeTheRulesStatus(t *testing.T) {
	s := start(t, `:PORT {
		penstock {
			name routes
			rule json 1/30d {
				response {
					status 420
					body "{}"
				}
			}
		}
		handle_errors 420 {
			header X-Seen {err.status_code}
		}
		respond "ok"
	}`)
	s.get("/")
	r := s.get("/")
	r.wantField(t, "X-Seen", "420")
	r.wantField(t, "Content-Type", "application/json")
	equal(t, "body", r.body, "{}")
	r = s.do(http.MethodPost, "/", "Content-Type", "application/grpc")
	r.wantField(t, "X-Seen", "420")
	r.wantField(t, "Grpc-Status", "8")
}

// twoSites is a configuration of two sites that share the app's policy and have one policy each.
const twoSites = `{
		penstock {
			name quotas
			rule everyone 1000/30d {
				per []
			}
			rule all 10/29d
		}
	}
	http://a.test:PORT {
		penstock {
			name site-a
			rule api 3/30d 20/31d {
				match path /api/*
			}
			rule watched 5/30d {
				action log_only
			}
		}
		penstock_status /quota
		respond "ok"
	}
	http://b.test:PORT {
		penstock {
			name site-b
			rule other 7/30d
		}
		penstock_status /quota
		respond "ok"
	}`

func TestStatusShowsWhatIsLeftAndSpendsNothing(t *testing.T) {
	s := start(t, twoSites)
	type limit struct {
		Policy                  string
		Limit, Remaining, Reset int64
		Window                  string
		RetryAfter              int64 `json:"retry_after"`
	}
	ask := func(host string) (told struct {
		Client, Identity string
		Limits           []limit
	}) {
		t.Helper()
		r := s.get("/quota", "Host", host)
		equal(t, "status", strconv.Itoa(r.StatusCode), "200")
		r.wantField(t, "Cache-Control", "no-store")
		r.wantField(t, "Content-Type", "application/json")
		if err := json.Unmarshal([]byte(r.body), &told); err != nil {
			t.Fatalf("%v: %s", err, r.body)
		}
		return told
	}
	left := func(host string) string {
		var all []string
		for _, l := range ask(host).Limits {
			if l.Reset < time.Now().Unix() || (l.Remaining == 0) != (l.RetryAfter > 0) {
				t.Errorf("%+v: the reset is to come, and a wait for what is used up", l)
			}
			all = append(all, l.Policy+" "+strconv.FormatInt(l.Remaining, 10)+"/"+strconv.FormatInt(l.Limit, 10)+" in "+l.Window)
		}
		return strings.Join(all, ", ")
	}
	for range 3 { // a status request charges nothing
		equal(t, "a", left("a.test"), "all 10/10 in 2505600s, api-30d 3/3 in 2592000s, api-31d 20/20 in 2678400s")
	}
	equal(t, "requests", s.statuses(4, "/api/x", "Host", "a.test"), "200 200 200 429")
	equal(t, "a", left("a.test"), "all 7/10 in 2505600s, api-30d 0/3 in 2592000s, api-31d 17/20 in 2678400s")
	equal(t, "b", left("b.test"), "all 7/10 in 2505600s, other 7/7 in 2592000s")
	if told := ask("a.test"); told.Client != "127.0.0.1" || told.Identity != "ip" {
		t.Errorf("client %q by %q", told.Client, told.Identity)
	}
}
