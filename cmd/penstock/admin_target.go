// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/operator"
)

// Limits for requests of operators. The target is on this machine or near it, and its replies are
// short, because people read them.
const (
	adminTimeout       = 10 * time.Second
	adminReplyBytesMax = 16 << 20
)

// The flag --admin.
const (
	adminDefault = "localhost:2019"
	adminUsage   = "the admin endpoint of Caddy: host:port, or unix//path/to/socket"
)

// admin is the target of a command: a running Caddy, a running bridge, or Redis itself.
type admin struct {
	address string
	bridge  bridgeTarget
	direct  directTarget
}

func (a *admin) register(flags *pflag.FlagSet) {
	a.registerTargets(flags)
	a.direct.registerPolicy(flags)
}

// registerTargets adds the flags that name the target, for commands that concern no counters.
func (a *admin) registerTargets(flags *pflag.FlagSet) {
	flags.StringVar(&a.address, "admin", adminDefault, adminUsage)
	a.bridge.register(flags)
	a.direct.redis.register(flags, "ask this Redis in place of a Caddy")
}

// admin.check returns an error if the flags name several targets, or if a flag belongs to a target
// that is not named.
func (a *admin) check() error {
	var named []string
	for _, target := range []struct {
		flag  string
		given bool
	}{{"--admin", a.address != adminDefault}, {"--bridge", a.bridge.url != ""}, {"--redis", a.direct.redis.given()}} {
		if target.given {
			named = append(named, target.flag)
		}
	}
	if len(named) > 1 {
		return fmt.Errorf("%s are given, and each names a target; keep one", strings.Join(named, " and "))
	}
	return errors.Join(a.bridge.check(), a.direct.check())
}

// keepOpen checks the flags, and makes further calls share their connections to Redis until the
// returned function done is called. If Redis is not the target, keepOpen opens nothing.
func (a *admin) keepOpen(ctx context.Context) (done func(), err error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	if !a.direct.redis.given() {
		return func() {}, nil
	}
	a.direct.kept, done, err = a.direct.open(ctx)
	return done, err
}

// admin.ask sends a request to the target and returns the reply as indented JSON.
func (a *admin) ask(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	return a.send(ctx, method, path, query, http.NoBody)
}

// admin.post calls a POST route with a body in JSON.
func (a *admin) post(ctx context.Context, path string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return a.send(ctx, http.MethodPost, path, nil, bytes.NewReader(text))
}

// decodeReply decodes the JSON reply of a call, or returns the error of the call.
func decodeReply[T any](reply []byte, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := json.Unmarshal(reply, value); err != nil {
		return nil, fmt.Errorf("the answer cannot be read, perhaps because it is of another release: %w", err)
	}
	return value, nil
}

// admin.send is like ask, for a request with a body.
func (a *admin) send(ctx context.Context, method, path string, query url.Values, sent io.Reader) ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	if a.direct.redis.given() {
		return a.direct.ask(ctx, method, path, query, sent)
	}
	t, err := a.running()
	if err != nil {
		return nil, err
	}
	t.base.Path, t.base.RawQuery = operator.Prefix+path, query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, t.base.String(), sent)
	if err != nil {
		return nil, fmt.Errorf("%s %q is no address; write %s: %w", t.flag, t.at, t.takes, err)
	}
	if t.token != "" {
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	response, err := t.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w; %s", t.name, err, t.remedy)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, adminReplyBytesMax))
	if err != nil {
		return nil, fmt.Errorf("reading the response of %s: %w", t.name, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, t.failure(response.Status, body)
	}
	return t.indented(body)
}

// process is a running process to which a command sends its request.
type process struct {
	name, flag, at string // at is the value of the flag
	is, takes      string // what must be at the address, and which address the flag takes
	remedy         string // what to do if the process does not answer
	base           url.URL
	client         *http.Client
	token          string // "" for none
}

// admin.running returns the running process that the flags name.
func (a *admin) running() (*process, error) {
	if a.bridge.url != "" {
		return a.bridge.process()
	}
	if scheme, rest, ok := strings.Cut(a.address, "://"); ok {
		return nil, fmt.Errorf("--admin %q begins with %s://, but it must be host:port or unix//path; write --admin %s", a.address, scheme,
			strings.TrimSuffix(rest, "/"))
	}
	p := &process{name: "Caddy", flag: "--admin", at: a.address, is: "Caddy's admin endpoint",
		takes: `the host:port or unix//path that "admin" has in the Caddyfile`, remedy: "is it running, and is its admin endpoint on?",
		base: url.URL{Scheme: "http", Host: a.address}, client: new(http.Client)}
	if socket, ok := strings.CutPrefix(a.address, "unix/"); ok {
		p.base.Host, p.client = "localhost", overSocket(socket)
	}
	return p, nil
}

// overSocket returns a client that connects to a Unix socket.
func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// process.failure returns the error for an answer whose status is not 200.
func (p *process) failure(status string, body []byte) error {
	var denial struct{ Error, Reason string }
	if json.Unmarshal(body, &denial) != nil || denial.Error == "" {
		denial.Error = strings.TrimSpace(string(body))
	}
	if denial.Reason == operator.ReasonNobody {
		return &nobodyError{denial.Error}
	}
	return fmt.Errorf("%s at %s answered %s: %s", strings.ToLower(p.name), p.at, status, denial.Error)
}

// process.indented returns an answer as JSON for people.
func (p *process) indented(body []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
		return nil, fmt.Errorf("the response from %s is not JSON, so it is not %s: %w; %s takes %s", p.at, p.is, err, p.flag, p.takes)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
