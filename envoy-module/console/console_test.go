// SPDX-License-Identifier: Apache-2.0

package console

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

const token, scraperToken = "0123456789abcdef", "fedcba9876543210"

func newConsole(t *testing.T, logger *slog.Logger) *Console {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "of_the_test_total"}))
	return New(Options{Metrics: registry, Panicked: func(reason any) { t.Errorf("panic: %v", reason) }, Logger: logger})
}

// newNamedAPI returns an API for a configuration. The errors of the API contain the given name.
func newNamedAPI(name string) func() *operator.API {
	return func() *operator.API { return &operator.API{Desk: new(operator.Desk), Front: name} }
}

func (c *Console) mustClaim(t *testing.T, s *Settings, name string) (release func()) {
	t.Helper()
	release, err := c.Claim(s, newNamedAPI(name))
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// ask sends a request, and returns the status and the body of the response. The status is 0 if
// nobody listens at the address.
func ask(t *testing.T, address, path string, fields ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// isServed reports whether the operators of a configuration are served at an address.
func isServed(t *testing.T, address, name string) bool {
	t.Helper()
	status, body := ask(t, address, "/penstock/record?client=user:ann")
	return status == http.StatusNotFound && strings.Contains(body, "this "+name+" has no directory")
}

// TestTheLatestClaimIsServed tests an edit of Envoy's configuration, which makes the next claim
// before it ends the previous one. There is always one listener, and none after the last claim has
// ended.
func TestTheLatestClaimIsServed(t *testing.T) {
	c := newConsole(t, slog.New(slog.DiscardHandler))
	one, two := freeport.Address(t), freeport.Address(t)
	first := c.mustClaim(t, &Settings{Listen: one}, "first")
	if !isServed(t, one, "first") {
		t.Error("the first claim is not served")
	}
	same := c.mustClaim(t, &Settings{Listen: one}, "second")
	if !isServed(t, one, "second") {
		t.Error("a claim of the same address does not replace the one before")
	}
	first()
	if !isServed(t, one, "second") {
		t.Error("the end of the replaced claim has ended the other one")
	}
	moved := c.mustClaim(t, &Settings{Listen: two}, "third")
	if status, _ := ask(t, one, "/metrics"); !isServed(t, two, "third") || status != 0 {
		t.Errorf("after a claim of another address, the address before answers %d", status)
	}
	moved()
	if status, _ := ask(t, two, "/metrics"); !isServed(t, one, "second") || status != 0 {
		t.Errorf("after the end of the latest claim, its address answers %d", status)
	}
	same()
	same()
	if status, _ := ask(t, one, "/metrics"); status != 0 {
		t.Errorf("after all claims have ended: %d", status)
	}
	socket := filepath.Join(t.TempDir(), "s")
	release := c.mustClaim(t, &Settings{Listen: "unix:" + socket, SocketMode: "0600"}, "fourth")
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	release()
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left")
	}
}

// TestAnAddressOfAnotherProcess tests a hot restart, during which the previous process still uses
// the address. The claim stays in force, the log names the address, and the console serves the
// address as soon as it is free.
func TestAnAddressOfAnotherProcess(t *testing.T) {
	said := new(eventually.Journal)
	c := newConsole(t, said.Logger())
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	release := c.mustClaim(t, &Settings{Listen: address}, "next")
	defer release()
	if text := said.String(); strings.Count(text, "another process has the address") != 1 || !strings.Contains(text, address) {
		t.Errorf("the log: %s", text)
	}
	other.Close()
	eventually.Until(t, time.Minute, "the address is served", func() bool { return isServed(t, address, "next") })
	if n := strings.Count(said.String(), "another process has the address"); n != 1 {
		t.Errorf("%d lines about the address", n)
	}
}

// TestAnAddressKeepsItsToken tests two configurations, of which only the first requires a token.
// The address of the second is in use by another process, so the address of the first stays open.
// It must not serve the second configuration without a token, so nobody is admitted there.
func TestAnAddressKeepsItsToken(t *testing.T) {
	c := newConsole(t, slog.New(slog.DiscardHandler))
	public, local := freeport.Address(t), freeport.Address(t)
	_, port, _ := net.SplitHostPort(public)
	defer c.mustClaim(t, &Settings{Listen: "0.0.0.0:" + port, Token: token}, "first")()
	other, err := net.Listen("tcp", local)
	if err != nil {
		t.Fatal(err)
	}
	release := c.mustClaim(t, &Settings{Listen: local}, "second")
	for _, path := range []string{"/metrics", "/penstock/record?client=user:ann"} {
		for _, shown := range []string{"", token} {
			if status, body := askWith(t, public, path, shown); status != http.StatusServiceUnavailable {
				t.Errorf("%s with %q at the address before: %d %s", path, shown, status, body)
			}
		}
	}
	release()
	if status, _ := askWith(t, public, "/metrics", ""); status != http.StatusUnauthorized {
		t.Errorf("without the token, after the end of the second claim: %d", status)
	}
	if status, _ := askWith(t, public, "/metrics", token); status != http.StatusOK {
		t.Errorf("with the token, after the end of the second claim: %d", status)
	}
	other.Close()
	defer c.mustClaim(t, &Settings{Listen: local}, "third")()
	defer c.mustClaim(t, &Settings{Listen: local, Token: token}, "fourth")()
	if status, _ := askWith(t, local, "/metrics", ""); status != http.StatusUnauthorized {
		t.Errorf("a token for an address that had none: %d without it", status)
	}
}

// TestAnAddressThatCannotBe tests that a claim fails if its address can never be opened, and that
// the previous claim stays in force.
func TestAnAddressThatCannotBe(t *testing.T) {
	c := newConsole(t, slog.New(slog.DiscardHandler))
	address := freeport.Address(t)
	defer c.mustClaim(t, &Settings{Listen: address}, "first")()
	if _, err := c.Claim(&Settings{Listen: "unix:" + filepath.Join(t.TempDir(), "none", "s")}, newNamedAPI("second")); err == nil ||
		!strings.Contains(err.Error(), "write another address") {
		t.Errorf("a socket in a folder that does not exist: %v", err)
	}
	if !isServed(t, address, "first") {
		t.Error("the claim before is gone")
	}
}

// TestWhoIsServed tests that operators need their token, that scrapers need one of the two tokens,
// and that requests of web pages are never served.
func TestWhoIsServed(t *testing.T) {
	c := newConsole(t, slog.New(slog.DiscardHandler))
	address := freeport.Address(t)
	defer c.mustClaim(t, &Settings{Listen: address, Token: token, MetricsToken: scraperToken}, "module")()
	for _, one := range []struct {
		path, token      string
		status, fromPage int
	}{
		{"/penstock/record?client=user:ann", token, 404, 403}, {"/penstock/rules", scraperToken, 401, 403}, {"/penstock/rules", "", 401, 403},
		{"/metrics", token, 200, 403}, {"/metrics", scraperToken, 200, 403}, {"/metrics", "", 401, 403}, {"/metrics", token + "x", 401, 403},
		{"/", token, 404, 403},
	} {
		status, body := askWith(t, address, one.path, one.token)
		if status != one.status {
			t.Errorf("%s with %q: %d, want %d: %s", one.path, one.token, status, one.status, body)
		}
		if status, _ := askWith(t, address, one.path, one.token, "Origin", "https://evil.example"); status != one.fromPage {
			t.Errorf("%s with %q from a page: %d", one.path, one.token, status)
		}
	}
	open := freeport.Address(t)
	defer c.mustClaim(t, &Settings{Listen: open}, "module")()
	_, port, _ := net.SplitHostPort(open)
	if status, _ := ask(t, open, "/metrics"); status != 200 {
		t.Errorf("without a token: %d", status)
	}
	r, _ := http.NewRequest(http.MethodGet, "http://"+open+"/metrics", nil)
	r.Host = "evil.example:" + port
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("by a name of somebody else's: %d", response.StatusCode)
	}
}

func askWith(t *testing.T, address, path, token string, fields ...string) (int, string) {
	t.Helper()
	if token != "" {
		fields = append(fields, "Authorization", "Bearer "+token)
	}
	return ask(t, address, path, fields...)
}

// TestSettingsAreChecked tests settings that are unsafe or have no effect. Each is an error that
// names the remedy.
func TestSettingsAreChecked(t *testing.T) {
	for want, s := range map[string]Settings{
		"listen is missing":             {},
		"write host:port, or unix:PATH": {Listen: "nonsense"},
		"has no path":                   {Listen: "unix:"},
		"everyone that reaches it can reset any client's limits": {Listen: "0.0.0.0:8442"},
		"can be guessed":               {Listen: "127.0.0.1:1", Token: "short"},
		"are both given":               {Listen: "127.0.0.1:1", Token: token, TokenFile: "x"},
		"metrics_token has no effect":  {Listen: "127.0.0.1:1", MetricsToken: token},
		"is the same as the token":     {Listen: "127.0.0.1:1", Token: token, MetricsToken: token},
		"cert and key belong together": {Listen: "127.0.0.1:1", Cert: "x"},
		"a Unix socket has no TLS":     {Listen: "unix:x", Cert: "x", Key: "y"},
		"socket_mode is for":           {Listen: "127.0.0.1:1", SocketMode: "0600"},
		"is not an octal mode":         {Listen: "unix:x", SocketMode: "0999"},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
