// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/policy"
)

// keysWait is how long explain waits for the keys of a URL: a token could not be told good or bad before.
const keysWait = 5 * time.Second

// question is the request that explain is asked about, as it stands in the flags.
type question struct {
	policy, method, target, host string
	client, remote, now          string
	headers, attrs               []string
}

func newExplain() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain --policy FILE",
		Short: "Say who a request counts for, which rules are for it, and what would be asked of the store",
		Long: "Say who a request counts for and why, which rules match and which lost to which, and the keys and numbers that the\n" +
			"store would be asked. The code is that of a request, tokens and keys are verified; only nothing is counted.",
		Example: "  penstock explain --policy policy.yaml --method GET --path /api/search --header 'X-API-Key: pk_…' --ip 192.0.2.7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.explain(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.policy, "policy", "", "the policy file")
	flags.StringVar(&q.method, "method", http.MethodGet, "the request's method")
	flags.StringVar(&q.target, "path", "/", "the request's path, with its query if there is one")
	flags.StringVar(&q.host, "host", "localhost", "the request's host")
	flags.StringVar(&q.client, "ip", "", "the client's address, as the proxy tells it")
	flags.StringVar(&q.remote, "remote", "", "the address of the connection, if a proxy is in front (default: the client's)")
	flags.StringArrayVar(&q.headers, "header", nil, "a request header, as 'Name: value'; may be given several times")
	flags.StringArrayVar(&q.attrs, "attr", nil, "a value that the proxy knows, as NAME=VALUE; may be given several times")
	flags.StringVar(&q.now, "now", "", "the instant, such as 2026-12-01T00:00:00Z (default: now)")
	if err := cmd.MarkFlagRequired("policy"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func (q *question) explain(out, diagnostics io.Writer) error {
	asked, now, err := q.read()
	if err != nil {
		return err
	}
	document, err := policy.Load(q.policy)
	if err != nil {
		return err
	}
	verifiers, closer, err := identity.OpenAll(document, identity.OpenOptions{Folder: filepath.Dir(q.policy), Wait: keysWait,
		Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(diagnostics, nil))})
	if err != nil {
		return err
	}
	defer closer.Close()
	rules, err := document.CompileWith(verifiers)
	if err != nil {
		return err
	}
	var plan core.Plan
	plan.Trace()
	plan.Add(rules, asked)
	for _, e := range plan.Explain() {
		printExplanation(out, &e)
	}
	return nil
}

// read turns the flags into a request.
func (q *question) read() (*asked, time.Time, error) {
	now := time.Now()
	if q.now != "" {
		var err error
		if now, err = time.Parse(time.RFC3339, q.now); err != nil {
			return nil, now, fmt.Errorf("--now %q is no instant; write 2026-12-01T00:00:00Z", q.now)
		}
	}
	path, query, _ := strings.Cut(q.target, "?")
	if !strings.HasPrefix(path, "/") {
		return nil, now, fmt.Errorf("--path %q does not begin with a slash; write /api/search", q.target)
	}
	a := &asked{method: q.method, path: path, query: query, host: q.host, now: core.Micros(now.UnixMicro()),
		headers: http.Header{}, attrs: map[string]string{}}
	for flag, text := range map[string]string{"ip": q.client, "remote": cmp.Or(q.remote, q.client)} {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, now, fmt.Errorf("--%s %q is no address; write 192.0.2.7 or 2001:db8::7", flag, text)
		}
		if flag == "ip" {
			a.peer = addr
		} else {
			a.remote = addr
		}
	}
	for _, text := range q.headers {
		name, value, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, now, fmt.Errorf("--header %q has no colon; write 'X-API-Key: value'", text)
		}
		a.headers.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	for _, text := range q.attrs {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, now, fmt.Errorf("--attr %q has no value; write NAME=VALUE", text)
		}
		a.attrs[name] = value
	}
	return a, now, nil
}

// asked is the request of the flags, as core sees one.
type asked struct {
	method, path, query, host string
	headers                   http.Header
	attrs                     map[string]string
	peer, remote              netip.Addr
	now                       core.Micros
}

func (a *asked) Path() string       { return (&url.URL{Path: a.path, RawPath: a.path}).EscapedPath() }
func (a *asked) Method() string     { return a.method }
func (a *asked) Host() string       { return a.host }
func (a *asked) Query() string      { return a.query }
func (a *asked) Peer() netip.Addr   { return a.peer }
func (a *asked) Remote() netip.Addr { return a.remote }
func (a *asked) Now() core.Micros   { return a.now }

func (a *asked) Header(name string) (string, bool) {
	values := a.headers.Values(name)
	return strings.Join(values, ", "), len(values) > 0
}

func (a *asked) Attr(name string) (string, bool) {
	value, ok := a.attrs[name]
	return value, ok && value != ""
}

var _ core.Attributes = (*asked)(nil)
