// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestOneLineLimitsAClient(t *testing.T) {
	s := start(t, `:PORT {
		penstock 3/30d
		respond "ok"
	}`)
	for _, remaining := range []string{"2", "1", "0"} {
		r := s.get("/")
		equal(t, "status", strconv.Itoa(r.StatusCode), "200")
		r.wantField(t, "X-RateLimit-Limit", "3")
		r.wantField(t, "X-RateLimit-Remaining", remaining)
		r.wantField(t, "RateLimit-Policy", `"default";q=3;w=2592000`)
		if got := r.Header.Get("RateLimit"); !strings.HasPrefix(got, `"default";r=`+remaining+`;t=`) {
			t.Errorf("RateLimit: got %q", got)
		}
		if reset, err := strconv.ParseInt(r.Header.Get("X-RateLimit-Reset"), 10, 64); err != nil || reset <= time.Now().Unix() {
			t.Errorf("X-RateLimit-Reset: got %q, want an instant to come", r.Header.Get("X-RateLimit-Reset"))
		}
	}
	r := s.get("/")
	equal(t, "status", strconv.Itoa(r.StatusCode), "429")
	r.wantField(t, "Content-Type", "application/problem+json")
	r.wantField(t, "X-RateLimit-Remaining", "0")
	if wait, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || wait < 1 {
		t.Errorf("Retry-After: got %q, want whole seconds", r.Header.Get("Retry-After"))
	}
	var problem struct {
		Type     string
		Status   int
		Error    string
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
		t.Fatalf("the body is no JSON: %v: %s", err, r.body)
	}
	if !strings.HasSuffix(problem.Type, "#quota-exceeded") || problem.Status != 429 ||
		problem.Error != "Rate limit exceeded" || len(problem.Violated) != 1 || problem.Violated[0] != "default" {
		t.Errorf("body: %s", r.body)
	}
}

func TestADeniedHeadHasNoBody(t *testing.T) {
	s := start(t, `:PORT {
		penstock 1/30d
		respond "ok"
	}`)
	s.get("/")
	r := s.do(http.MethodHead, "/")
	equal(t, "status", strconv.Itoa(r.StatusCode), "429")
	equal(t, "body", r.body, "")
	if r.ContentLength < 100 {
		t.Errorf("Content-Length: got %d, want that of the body GET would get", r.ContentLength)
	}
}

func TestErrorsCarryTheFields(t *testing.T) {
	s := start(t, `:PORT {
		penstock 100/30d
		error /teapot 418
		reverse_proxy /down 127.0.0.1:1
		error /missing 404
	}`)
	for path, status := range map[string]string{"/missing": "404", "/down": "502", "/teapot": "418"} {
		r := s.get(path)
		equal(t, path, strconv.Itoa(r.StatusCode), status)
		r.wantField(t, "X-RateLimit-Limit", "100")
		r.wantField(t, "RateLimit-Policy", `"default";q=100;w=2592000`)
	}
}

func TestMatcherAndASecondLine(t *testing.T) {
	s := start(t, `:PORT {
		penstock 100/30d
		penstock /api/* 2/30d
		respond "ok"
	}`)
	equal(t, "api", s.statuses(3, "/api/x"), "200 200 429")
	r := s.get("/api/x")
	if !strings.Contains(r.body, `"violated-policies":["default-2"]`) {
		t.Errorf("the second line's rule is default-2: %s", r.body)
	}
	r = s.get("/")
	r.wantField(t, "X-RateLimit-Limit", "100")
	// A denied request charges neither rule, so default has more room than default-2 had.
	r.wantField(t, "RateLimit-Policy", `"default";q=100;w=2592000`)
}

func TestBlockWithActionsAndExempt(t *testing.T) {
	s := start(t, `:PORT {
		penstock {
			name shop
			rule admin {
				match path /admin/*
				action block
			}
			rule watched {
				match path /watched
				limit 1/30d
				action log_only
			}
			rule search {
				match {
					path /search
					method GET
				}
				limit 5/30d 7/29d
				cost 5 {
					header X-Deep 1
				}
				cost 2
			}
		}
		respond "ok"
	}`)
	seen := s.counts()
	r := s.get("/admin/x")
	equal(t, "block", strconv.Itoa(r.StatusCode), "403")
	r.wantField(t, "X-RateLimit-Limit", "")
	equal(t, "log_only", s.statuses(3, "/watched"), "200 200 200")
	equal(t, "no rule", s.statuses(2, "/other"), "200 200")
	equal(t, "cost 2 of 5", s.statuses(3, "/search"), "200 200 429")
	r = s.get("/search")
	if !strings.Contains(r.Header.Get("RateLimit-Policy"), `"search-30d";q=5`) ||
		!strings.Contains(r.Header.Get("RateLimit-Policy"), `"search-29d";q=7`) {
		t.Errorf("RateLimit-Policy: %q", r.Header.Get("RateLimit-Policy"))
	}
	seen.wantGrown(t, map[string]float64{
		`penstock_requests_total{outcome="blocked",policy="shop",rule="admin"}`:         1,
		`penstock_requests_total{outcome="allowed",policy="shop",rule="watched"}`:       1,
		`penstock_requests_total{outcome="shadow_denied",policy="shop",rule="watched"}`: 2,
		`penstock_requests_total{outcome="denied",policy="shop",rule="search"}`:         2,
	})
	metrics := s.metrics()
	for _, line := range []string{
		`penstock_counters 3`,
		`penstock_check_duration_seconds_count`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

func TestExemptClientsAreNeitherChargedNorInformed(t *testing.T) {
	s := start(t, `:PORT {
		penstock 1/30d {
			exempt ip 127.0.0.0/8
		}
		respond "{http.penstock.decision}"
	}`)
	equal(t, "exempt", s.statuses(3, "/"), "200 200 200")
	r := s.get("/")
	equal(t, "decision", r.body, "exempt")
	r.wantField(t, "X-RateLimit-Limit", "")
	r.wantField(t, "RateLimit", "")
}

func TestSeveralHandlersChargeOnce(t *testing.T) {
	s := start(t, `{
		penstock {
			name several
			rule everyone 10/30d {
				per []
				expose
			}
		}
	}
	:PORT {
		penstock 5/30d
		penstock /twice 6/30d
		rewrite /rewritten /twice
		handle_errors {
			penstock 7/30d
			respond "{err.status_code}"
		}
		respond /twice "ok"
		error /missing 404
	}`)
	seen := s.counts()
	r := s.get("/twice")
	// The app's policy is in both handlers, but only the first charges it.
	if got := r.Header.Get("RateLimit"); strings.Count(got, `"everyone"`) > 1 {
		t.Errorf("RateLimit: %q", got)
	}
	s.get("/rewritten")
	r = s.get("/missing")
	equal(t, "error route", r.body, "404")
	// Three requests are charged three times.
	seen.wantGrown(t, map[string]float64{`penstock_requests_total{outcome="allowed",policy="several",rule="everyone"}`: 3})
}

func TestVariablesDoNotMakeARequestNew(t *testing.T) {
	s := start(t, `{
		penstock {
			name shop
			rule everyone 10/30d
		}
	}
	:PORT {
		route {
			penstock
			vars penstock x
			penstock
			respond "{http.vars.penstock}"
		}
	}`)
	r := s.get("/")
	equal(t, "the variable", r.body, "x")
	r.wantField(t, "X-RateLimit-Remaining", "9")
}

func TestUpstreamFields(t *testing.T) {
	for name, c := range map[string]struct {
		fields             http.Header
		limit, remaining   string
		rateLimit, headers string
	}{
		"none":       {fields: http.Header{}, limit: "10", remaining: "9", rateLimit: `"default";r=9;t=`},
		"larger":     {fields: http.Header{"X-Ratelimit-Limit": {"50"}, "X-Ratelimit-Remaining": {"40"}}, limit: "10", remaining: "9", rateLimit: `"default";r=9;t=`},
		"smaller":    {fields: http.Header{"X-Ratelimit-Limit": {"50"}, "X-Ratelimit-Remaining": {"4"}}, limit: "50", remaining: "4", rateLimit: `"default";r=9;t=`},
		"not number": {fields: http.Header{"X-Ratelimit-Limit": {"a"}, "X-Ratelimit-Remaining": {"b"}}, limit: "10", remaining: "9", rateLimit: `"default";r=9;t=`},
		"ietf":       {fields: http.Header{"Ratelimit": {`"up";r=1`}}, limit: "10", remaining: "9", rateLimit: `"default";r=9;t=`, headers: `, "up";r=1`},
	} {
		t.Run(name, func(t *testing.T) {
			address := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
				for field, values := range c.fields {
					w.Header()[field] = values
				}
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(http.StatusAccepted)
			})
			s := start(t, `:PORT {
				penstock 10/30d
				reverse_proxy `+address+`
			}`)
			r := s.get("/")
			equal(t, "status", strconv.Itoa(r.StatusCode), "202")
			r.wantField(t, "X-RateLimit-Limit", c.limit)
			r.wantField(t, "X-RateLimit-Remaining", c.remaining)
			if got := r.Header.Get("RateLimit"); !strings.HasPrefix(got, c.rateLimit) || !strings.HasSuffix(got, c.headers) {
				t.Errorf("RateLimit: %q", got)
			}
		})
	}
}

func grep(text, word string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestInterceptReplacesTheBody(t *testing.T) {
	s := start(t, `:PORT {
		route {
			intercept {
				@refused status 429
				handle_response @refused {
					respond "come back later" 429
				}
			}
			penstock 1/30d
			respond "ok"
		}
	}`)
	equal(t, "statuses", s.statuses(1, "/"), "200")
	r := s.get("/")
	equal(t, "status", strconv.Itoa(r.StatusCode), "429")
	equal(t, "body", r.body, "come back later")
}
