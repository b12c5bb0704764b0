// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// respond returns a client of a server with the given handler.
func respond(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := New(server.URL+"/", Options{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAnswersThatAreNotOfAControlPlane tests that an answer from another kind of server becomes an
// error of bounded length.
func TestAnswersThatAreNotOfAControlPlane(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do    http.HandlerFunc
		wants string
	}{
		"a page": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "is not that of a control plane"},
		"a page of an error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			fmt.Fprint(w, strings.Repeat("x", 1<<20))
		}, "the control plane answered 502 Bad Gateway: xxx"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }, "answered 302 Found"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			for range answerBytesMax>>20 + 1 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		}, "more than 16777216 bytes"},
		"no end": {func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, "asking the control plane"},
	} {
		_, err := respond(t, c.do).ListTiers(t.Context(), ListTiersOptions{})
		if err == nil || !strings.Contains(err.Error(), c.wants) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.2000v; want %q", name, err, c.wants)
		}
	}
	c := respond(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
	})
	var e *Error
	if _, err := c.ListTiers(t.Context(), ListTiersOptions{}); !errors.As(err, &e) || e.RetryAfter != 7*time.Second {
		t.Errorf("%+v", e)
	}
	if c := respond(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }); c.DeleteTier(t.Context(), "x", "y") != nil {
		t.Error("no content is an error")
	}
}

// TestPagesEnd tests that a loop over pages ends if a page names itself as the next one, and that a
// loop may end early.
func TestPagesEnd(t *testing.T) {
	t.Parallel()
	c := respond(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"tiers":[{"tier":"a"}],"next":"a"}`) })
	seen, failed := 0, error(nil)
	for _, err := range c.AllTiers(t.Context(), ListTiersOptions{}) {
		if seen++; err != nil {
			failed = err
		}
	}
	if seen != 2 || failed == nil || !strings.Contains(failed.Error(), "as the one after itself") {
		t.Errorf("%d items, %v", seen, failed)
	}
	for range c.AllTiers(t.Context(), ListTiersOptions{}) {
		break
	}
}

// TestParametersAreSentAsTheyAre tests that no parameter can change the path or the query.
func TestParametersAreSentAsTheyAre(t *testing.T) {
	t.Parallel()
	var got string
	c := respond(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.EscapedPath() + " " + r.URL.RawQuery + " " + r.Header.Get("Authorization") + " " + r.Header.Get("If-Match")
		fmt.Fprint(w, "{}")
	})
	call := func(want string, do func(ctx context.Context) error) {
		t.Helper()
		got = ""
		if err := do(t.Context()); err != nil || got != want {
			t.Errorf("%q is sent, want %q; %v", got, want, err)
		}
	}
	call("GET /v1/clients/user:a%2F..%2Fb%3Fc%23d  Bearer secret ", func(ctx context.Context) error {
		_, _, err := c.GetClient(ctx, "user:a/../b?c#d")
		return err
	})
	call("DELETE /v1/tiers/gold reason=a%26b%3Dc%0A Bearer secret ", func(ctx context.Context) error { return c.DeleteTier(ctx, "gold", "a&b=c\n") })
	call(`POST /v1/policies/shop/rollback  Bearer secret "7"`, func(ctx context.Context) error {
		_, _, err := c.RollBackPolicy(ctx, "shop", Condition{Match: `"7"`}, RollBack{Revision: 1})
		return err
	})
	call("GET /v1/new limit=1 Bearer secret ", func(ctx context.Context) error { return c.Do(ctx, "GET", "/v1/new?limit=1", nil, nil, nil) })
	for _, name := range []string{"", ".", ".."} {
		if got = ""; c.DeleteTier(t.Context(), name, "x") == nil || got != "" {
			t.Errorf("the name %q is sent: %s", name, got)
		}
	}
	if _, _, err := c.RollBackPolicy(t.Context(), "shop", Condition{Match: "7\r\nX: y"}, RollBack{}); err == nil {
		t.Error("a header field of two lines is sent")
	}
}

// TestNewNamesWhatIsWrong tests the errors of New.
func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "control.example.com", "ftp://control.example.com", "https://", "https://c.example.com?x=1", "https://c.example.com#x", "://"} {
		if _, err := New(address, Options{Token: "x"}); err == nil || !strings.Contains(err.Error(), "write https://HOST:PORT") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := New("https://me:hush@c.example.com", Options{}); err == nil || !strings.Contains(err.Error(), "no token") || strings.Contains(err.Error(), "hush") {
		t.Error(err)
	}
}
