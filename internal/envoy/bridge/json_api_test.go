// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestJSONAPI: curl -d describes a request and gets a decision.
func TestJSONAPI(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		say := func(body string) (text string) {
			w := h.post([]byte(body), "application/x-www-form-urlencoded")
			if w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
			text = strings.TrimSpace(w.Body.String())
			return regexp.MustCompile(`,"policy_version":"[0-9a-f]{12}"`).ReplaceAllString(text, "")
		}
		const ask = `{"method":"GET","path":"/api/x?a=b","ip":"192.0.2.7"}`
		say(ask)
		for _, c := range []struct{ body, want string }{
			{ask, `{"outcome":"allowed","rule":"api","limit":2,"remaining":0,"reset":"RESET","client":{"kind":"ip","id":"192.0.2.7"},` +
				`"headers":{"RateLimit":"\"api\";r=0;t=3600","RateLimit-Policy":"\"api\";q=2;w=3600","X-RateLimit-Limit":"2",` +
				`"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"RESET"}}`},
			{`{"path":"/api/x","ip":"192.0.2.8","remote":"10.0.0.1"}`, `{"outcome":"allowed","rule":"api","limit":2,"remaining":1,"reset":"RESET",` +
				`"client":{"kind":"ip","id":"192.0.2.8"},"headers":{"RateLimit":"\"api\";r=1;t=3600","RateLimit-Policy":"\"api\";q=2;w=3600",` +
				`"X-RateLimit-Limit":"2","X-RateLimit-Remaining":"1","X-RateLimit-Reset":"RESET"}}`},
			{`{"path":"/","ip":"192.0.2.8"}`, `{"outcome":"none","client":{"kind":"ip","id":"192.0.2.8"}}`},
			{`{"path":"/who","ip":"192.0.2.8"}`, `{"outcome":"none","client":{"kind":"ip","id":"192.0.2.8"}}`},
		} {
			got := regexp.MustCompile(`"[0-9]{9,10}"`).ReplaceAllString(say(c.body), `"RESET"`)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s\n%s", c.body, diff)
			}
		}
		if got := say(ask); !strings.Contains(got, `"outcome":"denied","status":429`) || !strings.Contains(got, `"retry_after":"3600"`) ||
			!strings.Contains(got, `"body":{"type":`) || !strings.Contains(got, `"Content-Type":"application/problem+json"`) {
			t.Error(got)
		}
		if got := say(`{"path":"/who","headers":{"x-plan":"gold"},"ip":"192.0.2.7"}`); !strings.Contains(got, `"rule":"who"`) {
			t.Error("header names are not those of HTTP:", got)
		}
		say(`{"path":"/slow"}`)
		if got := say(`{"path":"/slow"}`); !strings.Contains(got, `"wait":"100ms"`) {
			t.Error(got)
		}
		h.store.fails = errors.New("away")
		if got := say(ask); !strings.Contains(got, `"outcome":"degraded_allowed"`) || !strings.Contains(got, `"degraded":true`) {
			t.Error(got)
		}
	})
}

// TestJSONAPIErrors: errors of the JSON API name the mistake.
func TestJSONAPIErrors(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		for body, want := range map[string]string{
			``:                                "empty",
			`x`:                               "cannot be read",
			`[]`:                              "cannot be read",
			`{"pth":"/api/x"}`:                `unknown field "pth"`,
			`{"path":"api/x"}`:                "slash",
			`{"ip":"192.0.2.300"}`:            "192.0.2.300",
			`{} {}`:                           "data after",
			`{"headers":{"a-b":"","A-b":""}}`: "twice",
			`{"headers":{"a":["b"]}}`:         "headers",
		} {
			w := h.post([]byte(body), "application/json")
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), `"path":"/api/x"`) {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
	})
}
