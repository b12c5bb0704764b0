// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/status"
)

// lookUpLimits sends a request for a client's own limits. The argument fields alternates names and
// values.
func lookUpLimits(handler http.Handler, fields ...string) (int, status.Answer, string) {
	r := httptest.NewRequest(http.MethodGet, StatusPath, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	var answer status.Answer
	_ = json.Unmarshal(w.Body.Bytes(), &answer)
	return w.Code, answer, w.Body.String()
}

// TestClientsSeeTheirOwnLimits: the answer is about the same client as a check of that request, and
// nothing is charged.
func TestClientsSeeTheirOwnLimits(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		h.ask(h.question("/api/x", "192.0.2.7"))
		handler := h.b.Handler()
		for range 3 {
			code, answer, text := lookUpLimits(handler, statusPeerField, "192.0.2.7:4711", "Origin", "https://shop.example", "Sec-Fetch-Site", "same-origin")
			if code != 200 || answer.Identity != "ip" || answer.Client != "192.0.2.7" || len(answer.Limits) == 0 || answer.Limits[0].Remaining != 1 {
				t.Fatalf("%d %s", code, text)
			}
		}
		if used := h.readUsed("/api/x", "192.0.2.7"); used != 1 {
			t.Errorf("%d are used, after one request", used)
		}
	})
}

// TestStatusAwaitsNoBody: a request for limits is answered before its body arrives. A client can
// hold the body back, and the connection cannot carry another call before the answer.
func TestStatusAwaitsNoBody(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.Token = filterToken })
	server := httptest.NewServer(h.b.Handler())
	defer server.Close()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		connection, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
		head := method + " " + StatusPath + " HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n" + statusPeerField + ": 192.0.2.7:4711\r\n" +
			statusTokenField + ": " + filterToken + "\r\n\r\n"
		if _, err := io.WriteString(connection, head); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if want := map[string]int{http.MethodGet: 200, http.MethodPost: 405}[method]; answer.StatusCode != want {
			t.Errorf("%s: status %d, want %d", method, answer.StatusCode, want)
		}
	}
}

// TestStatusIsForEnvoy: a request is rejected if it lacks Envoy's header fields, or if a client has
// set them too.
func TestStatusIsForEnvoy(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.Token = filterToken })
	bare := open(t, shop, nil)
	tcp := httptest.NewServer(bare.b.Handler())
	defer tcp.Close()
	const peer = "192.0.2.7:4711"
	for _, c := range []struct {
		name   string
		on     *testBridge
		fields []string
		code   int
		says   string
	}{
		{"a token", h, []string{statusPeerField, peer, statusTokenField, filterToken}, 200, `"limits"`},
		{"a page, through Envoy", h, []string{statusPeerField, peer, statusTokenField, filterToken, "Origin", "https://a.example"}, 200, `"limits"`},
		{"no token", h, []string{statusPeerField, peer}, 401, statusTokenField},
		{"a page that asks the bridge", h, []string{statusPeerField, peer, "Origin", "https://a.example"}, 403, "browser pages"},
		{"the token of filters where a client's is", h, []string{statusPeerField, peer, "Authorization", "Bearer " + filterToken}, 401, statusTokenField},
		{"no address", bare, nil, 400, "%DOWNSTREAM_REMOTE_ADDRESS%"},
		{"an address of the client's own", bare, []string{statusPeerField, "10.0.0.1:1", statusPeerField, peer}, 400, "OVERWRITE_IF_EXISTS_OR_ADD"},
		{"an attribute of the client's own", bare, []string{statusPeerField, peer, statusAttrField, "a=1", statusAttrField, "a=2"}, 400, "NAME=VALUE"},
		{"an attribute without a value", bare, []string{statusPeerField, peer, statusAttrField, "a"}, 400, "NAME=VALUE"},
		{"a Unix socket", bare, []string{statusPeerField, "/run/envoy.sock"}, 200, `"limits":[`},
		{"garbage", bare, []string{statusPeerField, strings.Repeat("\xff", 255), "X-Forwarded-For", strings.Repeat(",", 255)}, 200, `"limits":[`},
	} {
		if code, _, text := lookUpLimits(c.on.b.Handler(), c.fields...); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", c.name, code, text, c.code, c.says)
		}
	}
	for field, value := range map[string]string{"Origin": "https://evil.example", "Host": "evil.example"} {
		r, err := http.NewRequest(http.MethodGet, tcp.URL+StatusPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(statusPeerField, peer)
		if field == "Host" {
			r.Host = value
		}
		r.Header.Set(field, value)
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != 403 && w.StatusCode != 421 {
			t.Errorf("over TCP without a token, %s %s: %d", field, value, w.StatusCode)
		}
	}
}

// TestStatusIsBounded: one address gets a bounded number of answers in a second, and does not
// affect other addresses. If the store fails, the answer is an error.
func TestStatusIsBounded(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		handler := h.b.Handler()
		ask := func(peer string) int {
			code, _, _ := lookUpLimits(handler, statusPeerField, peer)
			return code
		}
		for i := range status.EachMax + 5 {
			if code := ask("[2001:db8::" + string(rune('a'+i%6)) + "]:1"); (code == 200) != (i < status.EachMax) || code != 200 && code != 429 {
				t.Fatalf("request %d of one network: %d", i+1, code)
			}
		}
		others := 0
		for _, peer := range []string{"192.0.2.9:1", "192.0.2.12:1", "192.0.2.13:1"} { // addresses can share a bound, but few do
			if ask(peer) == 200 {
				others++
			}
		}
		if others < 2 {
			t.Errorf("%d of 3 other addresses are answered", others)
		}
		h.b.statuses = status.NewBounds()
		for i := range status.UnderMax {
			h.b.statuses.Enter(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), time.Now())
		}
		if code := ask("192.0.2.10:1"); code != 503 {
			t.Errorf("with too many under way: %d", code)
		}
		for range status.UnderMax {
			h.b.statuses.Leave()
		}
		h.store.fails = counter.ErrUnavailable
		if code := ask("192.0.2.11:1"); code != 503 {
			t.Errorf("without a store: %d", code)
		}
	})
}

// FuzzStatus: no request makes the route panic.
func FuzzStatus(f *testing.F) {
	h := open(f, "name: shop\nidentify: [{attr: envoy.id}, {header: {name: X-User, unverified: true}}, {cookie: {name: c, unverified: true}}, ip: {}]\n"+
		"trusted_proxies: [10.0.0.0/8]\nrules: [{name: api, limit: 5/1h}, {name: host, per: [host], limit: 5/1h}]\n", nil)
	f.Add("/a?b", "10.0.0.1:1", "192.0.2.1, 10.0.0.2", "envoy.id=x", "ann", "c=1; c=2", "shop.example")
	f.Fuzz(func(t *testing.T, path, peer, chain, attr, user, cookie, host string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL, r.Host = &url.URL{Path: StatusPath}, host
		r.Header = http.Header{statusPeerField: {peer}, "X-Forwarded-For": {chain}, statusAttrField: {attr, "a=" + attr}, "X-User": {user}, "Cookie": {cookie},
			originalPath: {path}}
		h.b.statuses = status.NewBounds()
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, r)
		if w.Code != 200 && w.Code != 400 && w.Code != 401 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
