// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// TestReceiversThatMayNotBeCalled tests that a receiver is not called if its address is not public,
// such as an address of this machine, unless the address is in an allowed network. The address that
// would be called decides this, not the name in the URL.
func TestReceiversThatMayNotBeCalled(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	unencrypted := context.WithValue(ctx, plainKey{}, true)
	own := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for _, c := range []struct {
		ctx     context.Context
		address string
		allowed []netip.Prefix
		may     bool
	}{
		{ctx, "93.184.216.34:443", nil, true},
		{ctx, "[2606:4700::1]:443", nil, true},
		{unencrypted, "93.184.216.34:80", nil, false},
		{unencrypted, "127.0.0.1:80", nil, false},
		{ctx, "127.0.0.1:443", nil, false},
		{ctx, "[::1]:443", nil, false},
		{ctx, "[::ffff:127.0.0.1]:443", nil, false},
		{unencrypted, "127.0.0.1:80", machine, true},
		{unencrypted, "[::1]:80", machine, true},
		{ctx, "10.1.2.3:443", nil, false},
		{ctx, "10.1.2.3:443", own, true},
		{unencrypted, "10.1.2.3:80", own, true},
		{ctx, "10.2.2.3:443", own, false},
		{ctx, "169.254.169.254:443", nil, false},
		{ctx, "[::ffff:169.254.169.254]:443", nil, false},
		{ctx, "[fd00:ec2::254]:443", nil, false},
		{ctx, "[fe80::1]:443", nil, false},
		{ctx, "[64:ff9b::a9fe:a9fe]:443", nil, false},
		{ctx, "100.100.100.200:443", nil, false},
		{ctx, "192.168.0.1:443", nil, false},
		{ctx, "0.0.0.0:443", nil, false},
		{ctx, "224.0.0.1:443", nil, false},
		{ctx, "[::127.0.0.1]:443", nil, false},
		{ctx, "[fec0::1]:443", nil, false},
		{ctx, "[2001:0:4136:e378:8000:63bf:3fff:fdd2]:443", nil, false},
	} {
		if err := mayCall(c.ctx, c.address, c.allowed); (err == nil) != c.may || err != nil && !errors.Is(err, errNetwork) {
			t.Errorf("%s, without TLS %v: %v; want %v", c.address, c.ctx == unencrypted, err, c.may)
		}
	}
	keys, err := ParseSecrets(secrets)
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://169.254.169.254/latest/meta-data", "https://10.255.255.1/", "http://0x7f000001.example.invalid/"} {
		if err := NewCaller(keys, nil).call(ctx, &notice{id: "x", url: url, used: "1"}, start); err == nil {
			t.Errorf("%s was called", url)
		}
	}
	r := newReceiver(t)
	if err := NewCaller(keys, nil).call(ctx, &notice{id: "x", url: r.URL, used: "1"}, start); !errors.Is(err, errNetwork) || len(r.ids) != 0 {
		t.Errorf("a receiver of this machine was called: %v", err)
	}
	name := strings.Replace(r.URL, "127.0.0.1", "localhost", 1)
	if err := NewCaller(keys, machine).call(ctx, &notice{id: "x", url: name, used: "1"}, start); err != nil {
		t.Errorf("a receiver of this machine by its name: %v", err)
	}
	r.answer = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusTeapot); return true }
	if err := NewCaller(keys, machine).call(ctx, &notice{id: "x", url: r.URL, used: "1"}, start); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("an answer 418: %v", err)
	}
}

// TestSecrets tests that an invalid secret is an error with a remedy, and that a new secret can be
// parsed.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_!", strings.Repeat(NewSecret()+"\n", 5)} {
		if _, err := ParseSecrets(text); err == nil || !strings.Contains(err.Error(), "write") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if keys, err := ParseSecrets(NewSecret() + "\n" + NewSecret()); err != nil || len(keys) != 2 {
		t.Errorf("%d secrets, %v", len(keys), err)
	}
}

// TestAReplayIsDenied tests the checks that the guide recommends to receivers. A message that
// somebody sends again counts once. An old message is rejected, and so is a message whose body,
// time or identifier was changed.
func TestAReplayIsDenied(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	keys, err := ParseSecrets(secrets)
	if err != nil {
		t.Fatal(err)
	}
	c := NewCaller(keys, nil)
	ask := func(id, at, signature, body string) int {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Webhook-Id", id)
		q.Header.Set("Webhook-Timestamp", at)
		q.Header.Set("Webhook-Signature", signature)
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	const id, at, body = "msg_1", "1795435200", `{"type":"usage.threshold"}` // the current time is start
	signature := c.sign(id, at, []byte(body))
	for range 2 {
		if status := ask(id, at, signature, body); status != http.StatusOK {
			t.Errorf("a message is answered %d", status)
		}
	}
	if len(r.messages) != 1 {
		t.Errorf("%d messages count", len(r.messages))
	}
	for _, other := range [][3]string{{"msg_2", at, body}, {id, "1795435201", body}, {id, at, body + " "}} {
		if status := ask(other[0], other[1], signature, other[2]); status != http.StatusForbidden {
			t.Errorf("%q: %d", other, status)
		}
	}
	r.now = r.now.Add(6 * 60e9)
	if status := ask(id, at, signature, body); status != http.StatusForbidden {
		t.Errorf("an old message is answered %d", status)
	}
}
