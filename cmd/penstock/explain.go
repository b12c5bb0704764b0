// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// keysWait is how long explain waits for keys from a URL: without them it cannot check a token.
const keysWait = 5 * time.Second

// question is the request to explain, as given in the flags.
type question struct {
	policy, name, method, target, host string
	client, remote, now                string
	headers, attrs                     []string
	named                              operator.Words
	region                             regionFlag
	store                              storeFlags
	asJSON                             bool
}

func newExplain() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain --policy FILE",
		Short: "Explain a request: its client, the rules that match, and the decision",
		Long: "Explain a request: its client, the rules that match and the rules they lost to, the keys and numbers of its\n" +
			"counters, and the decision. The request is decided by the same code as in a proxy, and tokens and keys are verified.\n" +
			"Nothing is charged: with --redis the counters are read, without it they count as unused.\n\n" +
			"What is explained is the policy file. What a Caddyfile says around it (identify, exempt, a name, rules of its own)\n" +
			"is not known here. With --client no token or key is needed: the client is taken to have shown a good one.\n" +
			"The exit status is 0 whether the request would go on or not, 1 if that cannot be said, and 3 if the policy can have\n" +
			"no client of that name.",
		Example: "  penstock explain --policy policy.yaml --method GET --path /api/search --header 'X-API-Key: pk_…' --ip 192.0.2.7\n" +
			"  penstock explain --policy policy.yaml --path /api/search --ip 192.0.2.7 --redis 'redis://limiter:{env.REDIS_PASSWORD}@redis.internal:6379/0'",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.explain(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.policy, "policy", "", "the policy file; - is YAML on the standard input")
	flags.StringVar(&q.name, "name", "", "the namespace of counters, if the policy file does not name it but the Caddyfile does")
	q.register(flags)
	return cmd
}

// question.register registers the flags that describe the request, its instant and the store.
func (q *question) register(flags *pflag.FlagSet) {
	q.registerRequest(flags)
	flags.StringVar(&q.now, "now", "", "the instant, such as 2026-12-01T00:00:00Z (default: now)")
	q.store.register(flags, "the Redis to read counters from")
}

// registerRequest registers the flags that describe the request.
func (q *question) registerRequest(flags *pflag.FlagSet) {
	flags.StringVar(&q.method, "method", http.MethodGet, "the request's method")
	flags.StringVar(&q.target, "path", "/", "the request's path, with its query if there is one")
	flags.StringVar(&q.host, "host", "localhost", "the request's host")
	flags.StringVar(&q.client, "ip", "", "the client's address, as the proxy reports it")
	flags.StringVar(&q.remote, "remote", "", "the address of the connection, if a proxy is in front (default: the client's)")
	flags.StringArrayVar(&q.headers, "header", nil, "a request header, as 'Name: value'; may be given several times")
	flags.StringArrayVar(&q.attrs, "attr", nil, "an attribute of the proxy, as NAME=VALUE; may be given several times")
	flags.StringVar(&q.named.Client, "client", "", "the client, instead of a token or key: KIND:ID, such as user:u_42 or api_key:acme")
	flags.StringVar(&q.named.User, "user", "", "the user of the --client, if its token or key names one")
	flags.StringVar(&q.named.Tier, "tier", "", "the tier of the --client, if no keys file contains it")
	flags.StringVar(&q.named.Tenant, "tenant", "", "the tenant of the --client")
	flags.BoolVar(&q.asJSON, "json", false, "print JSON")
	q.region.register(flags)
}

func (q *question) explain(cmd *cobra.Command) error {
	asked, now, err := q.read()
	if err != nil {
		return err
	}
	document, err := readPolicy(q.policy, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := errors.Join(setName(document, q.name, q.store.given()), q.region.choose(document)); err != nil {
		return err
	}
	store, err := q.store.open(asked.Description.Now)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	reasons := make([]string, len(document.Identify))
	rules, closer, err := q.compile(cmd, document, asked, now, reasons)
	if err != nil {
		return err
	}
	defer closer.Close() //nolint:errcheck // nothing was written
	records, unread := q.records(document, store)
	told, err := explain.Run(cmd.Context(), &explain.Question{Rules: rules, Request: asked, Records: records, Store: store, StoreName: store.name, Wait: lookTimeout})
	if err != nil {
		return fmt.Errorf("%w%s", err, otherMode(err))
	}
	told.RecordsUnread = unread
	for i, reason := range reasons {
		if reason != "" {
			told.Methods[i].Reason = reason
		}
	}
	if !q.asJSON {
		return printExplanation(cmd.OutOrStdout(), told, "--redis URL")
	}
	return printJSON(cmd.OutOrStdout(), told)
}

// question.compile compiles the policy. If the client is named, it needs no credential. The slice
// reasons receives, for each entry of identify, why an API key is no longer valid. The caller
// closes the closer.
func (q *question) compile(cmd *cobra.Command, d *policyfile.Document, a *explain.Request, now time.Time, reasons []string) (
	*core.Ruleset, io.Closer, error) {
	if q.named != (operator.Words{}) {
		return q.compileNamed(cmd, d, a)
	}
	verifiers, closer, err := credential.OpenAll(d, credential.OpenOptions{Folder: filepath.Dir(q.policy),
		Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))})
	if err != nil {
		return nil, nil, err
	}
	for i, v := range verifiers {
		switch v := v.(type) {
		case *credential.JWT:
			verifiers[i] = patient{v}
		case *credential.Keys:
			verifiers[i] = reasoning{v, &reasons[i]}
		}
	}
	rules, err := d.CompileWith(verifiers)
	if err != nil {
		_ = closer.Close() // nothing was written
	}
	return rules, closer, err
}

// patient is a token verifier that waits for its keys.
type patient struct{ *credential.JWT }

func (p patient) Verify(credential string) (*policy.Identity, policy.CredentialState) {
	select {
	case <-p.Ready():
	case <-time.After(keysWait):
	}
	return p.JWT.Verify(credential)
}

// VerifyFor implements [policy.CostlyVerifier]. VerifyFor replaces the JWT's method, which limits
// the cost that one client may cause: explain verifies only one token.
func (p patient) VerifyFor(_ *policy.Asker, credential string) (*policy.Identity, policy.CredentialState) {
	return p.Verify(credential)
}

// reasoning is a verifier of API keys that records why a key is no longer valid.
type reasoning struct {
	*credential.Keys
	reason *string
}

// VerifyFor implements [policy.CostlyVerifier].
func (r reasoning) VerifyFor(asker *policy.Asker, credential string) (*policy.Identity, policy.CredentialState) {
	*r.reason = r.Reason(credential)
	return r.Keys.VerifyFor(asker, credential)
}

// question.read converts the flags to a request.
func (q *question) read() (*explain.Request, time.Time, error) {
	now := time.Now()
	if q.now != "" {
		if q.store.given() {
			return nil, now, errors.New("--now does not go with --redis: its counters are read as they are now; leave one out")
		}
		var err error
		if now, err = time.Parse(time.RFC3339, q.now); err != nil {
			return nil, now, fmt.Errorf("--now %q is not a time; write 2026-12-01T00:00:00Z", q.now)
		}
	}
	path, query, _ := strings.Cut(q.target, "?")
	if !strings.HasPrefix(path, "/") {
		return nil, now, fmt.Errorf("--path %q does not begin with a slash; write /api/search", q.target)
	}
	r := &explain.Request{Description: explain.Description{Method: q.method, Path: path, Query: query, Host: q.host, Now: counter.Micros(now.UnixMicro()),
		Headers: http.Header{}, Attrs: map[string]string{}}}
	a := &r.Description
	for _, flag := range []struct {
		name, text string
		to         *netip.Addr
	}{{"ip", q.client, &a.Peer}, {"remote", cmp.Or(q.remote, q.client), &a.Remote}} {
		if flag.text == "" {
			continue
		}
		var err error
		if *flag.to, err = netip.ParseAddr(flag.text); err != nil {
			return nil, now, fmt.Errorf("--%s %q is not an address; write 192.0.2.7 or 2001:db8::7", flag.name, flag.text)
		}
	}
	for i, text := range q.headers {
		name, value, ok := strings.Cut(text, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, now, fmt.Errorf("--header number %d has no name and colon (it is not repeated here, since it may hold a "+
				"key); write 'X-API-Key: value'", i+1)
		}
		if strings.EqualFold(name, "Host") { // a server does not get Host as a header
			a.Host = strings.TrimSpace(value)
			continue
		}
		a.Headers.Add(name, strings.TrimSpace(value))
	}
	for _, text := range q.attrs {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, now, fmt.Errorf("--attr %q has no name or no value; write NAME=VALUE", text)
		}
		a.Attrs[name] = value
	}
	return r, now, nil
}
