// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// Region is a Redis of proxies that has counters.
type Region struct {
	Name     string // "" for the only one of a control plane without regions
	Counters counter.Store
	// Published returns the signed text of a policy in the region's Redis; nil if there is none.
	Published func(ctx context.Context, policy string) ([]byte, error)
}

// recordsWait bounds a read of records of an explanation.
const recordsWait = 5 * time.Second

type explainRequest struct {
	PolicyPath
	Body struct {
		Revision int64               `json:"revision,omitempty" minimum:"1" doc:"default: the revision in force on all nodes, or the latest if none is in force"`
		Region   string              `json:"region,omitempty" maxLength:"64" doc:"the region whose limits and counters are meant, if there are regions"`
		Method   string              `json:"method,omitempty" maxLength:"32" default:"GET"`
		Path     string              `json:"path" maxLength:"8192" pattern:"^/" doc:"the path with its query, if it has one"`
		Host     string              `json:"host,omitempty" maxLength:"255" default:"localhost"`
		IP       string              `json:"ip,omitempty" maxLength:"64" doc:"the client's address, as the proxy reports it"`
		Remote   string              `json:"remote,omitempty" maxLength:"64" doc:"the address of the connection; default: the client's"`
		Headers  map[string][]string `json:"headers,omitempty"`
		Attrs    map[string]string   `json:"attributes,omitempty" doc:"attributes of the proxy"`
		Client   string              `json:"client,omitempty" maxLength:"600" doc:"KIND:ID, instead of a token or an API key in the headers"`
		User     string              `json:"user,omitempty" maxLength:"255" doc:"the user whom the client's token or key names, if it names one"`
		Tier     string              `json:"tier,omitempty" maxLength:"255" doc:"the tier of the client, by its token or key"`
		Tenant   string              `json:"tenant,omitempty" maxLength:"255" doc:"the tenant of the client, by its token or key"`
		Counters bool                `json:"counters,omitempty" doc:"read the counters in Redis, without charging"`
	}
}

type explanationAnswer struct {
	Body struct {
		explain.Explanation
		Revision int64         `json:"revision" doc:"the revision of the policy"`
		Records  []foundRecord `json:"records" doc:"the records of the request's client and networks, and of its API key"`
		Unknown  []string      `json:"unknown,omitempty" doc:"what cannot be known of a named client, with the reason"`
	}
}

// explainOperations registers the operations that show which limits apply to a client, and what is
// left of them.
func (a *API) explainOperations() {
	explained := operation(http.MethodPost, policyPathText+"/explanation", "explain-request", "Explain which rules apply to a request, without charging", ledger.Viewer, 404)
	huma.Register(a.huma, explained, a.explain)
	remaining := operation(http.MethodGet, clientPathText+"/remaining", "get-remaining", "Get what a client has left of its limits, without charging", ledger.Viewer, 404)
	huma.Register(a.huma, remaining, a.remaining)
}

// API.explain explains a request under a revision of a policy.
func (a *API) explain(ctx context.Context, in *explainRequest) (*explanationAnswer, error) {
	revision, err := a.explained(ctx, in.Policy, in.Body.Revision)
	if err != nil {
		return nil, a.problem(err)
	}
	asked, err := in.read()
	if err != nil {
		return nil, err
	}
	d := documentOf(revision)
	region, err := a.chooseRegion(d, in.Body.Region, in.Body.Counters)
	if err != nil {
		return nil, err
	}
	leave, err := a.explaining.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	records := &recordSource{ledger: a.o.Ledger}
	p, unknown, err := a.compile(ctx, d, in, asked, records)
	if err != nil {
		return nil, err
	}
	records.addresses = []netip.Addr{asked.Description.Peer, asked.Description.Remote}
	empty, err := memstore.New(memstore.Options{CountersMax: 1 << 10})
	if err != nil {
		return nil, err
	}
	defer empty.Close() //nolint:errcheck // nothing was written
	q := &explain.Question{Rules: p.Ruleset, Request: asked, Records: records, Store: empty, Wait: recordsWait}
	if in.Body.Counters {
		q.Store, q.StoreName = region.Counters, cmp.Or(region.Name, "Redis")
	}
	told, err := explain.Run(ctx, q)
	if err != nil {
		return nil, a.problemOfLook(err, region)
	}
	describeUnverified(d, told)
	answer := new(explanationAnswer)
	answer.Body.Explanation, answer.Body.Revision = *told, revision.Revision
	answer.Body.Records, answer.Body.Unknown = records.list(), unknown
	return answer, nil
}

// API.explained returns a revision of a policy. The number 0 stands for the revision in force, or
// for the latest one if none is in force.
func (a *API) explained(ctx context.Context, name string, revision int64) (*ledger.Revision, error) {
	if revision == 0 {
		p, err := a.o.Ledger.Policy(ctx, name)
		if err != nil {
			return nil, err
		}
		revision = cmp.Or(p.Revision, p.Head)
	}
	return a.o.Ledger.Revision(ctx, name, revision)
}

// documentOf returns the document of a revision as nodes with a directory apply it.
func documentOf(r *ledger.Revision) *policyfile.Document {
	d := *r.Document
	d.Name, d.Directory = cmp.Or(d.Name, r.Policy), true
	return &d
}

// methodForm matches the methods that RFC 9110 allows, which are tokens.
var methodForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// explainRequest.read returns the described request.
func (in *explainRequest) read() (*explain.Request, error) {
	if !methodForm.MatchString(in.Body.Method) {
		return nil, invalidField("method", in.Body.Method, "no server accepts this method: write for example GET")
	}
	path, query, _ := strings.Cut(in.Body.Path, "?")
	of := explain.Description{Method: in.Body.Method, Path: path, Query: query, Host: in.Body.Host, Headers: http.Header{},
		Attrs: in.Body.Attrs, Now: counter.Micros(time.Now().UnixMicro())}
	if of.Attrs == nil {
		of.Attrs = map[string]string{}
	}
	// Names are sorted, so that the order of values of X-A and x-a is the same each time.
	for _, name := range slices.Sorted(maps.Keys(in.Body.Headers)) {
		for _, value := range in.Body.Headers[name] {
			if strings.EqualFold(name, "Host") { // a server does not get Host as a header
				of.Host = value
				continue
			}
			of.Headers.Add(name, value)
		}
	}
	if !of.ServesTarget() {
		return nil, invalidField("host", of.Host, "proxies answer 400 to a request with such a host, whatever the rules are: "+
			"write a name or an address, with or without a port")
	}
	for _, field := range []struct {
		name, text string
		to         *netip.Addr
	}{{"ip", in.Body.IP, &of.Peer}, {"remote", cmp.Or(in.Body.Remote, in.Body.IP), &of.Remote}} {
		if field.text == "" {
			continue
		}
		var err error
		if *field.to, err = netip.ParseAddr(field.text); err != nil {
			return nil, invalidField(field.name, field.text, "write an address, such as 192.0.2.7")
		}
	}
	return &explain.Request{Description: of}, nil
}

// invalidField returns the answer to a field of a body that is not valid.
func invalidField(name string, value any, text string) error {
	return huma.Error422UnprocessableEntity("the question is not valid", &huma.ErrorDetail{Message: text, Location: "body." + name, Value: value})
}

// invalidQuery returns the answer to a parameter that is not valid.
func invalidQuery(location, value, text string) error {
	return huma.Error422UnprocessableEntity("the question is not valid", &huma.ErrorDetail{Message: text, Location: location, Value: value})
}

// compile compiles a policy. Of credentials, it can verify only API keys of the directory, so the
// question must name a client that has another credential. The result unknown says what cannot be
// known of a named client.
func (a *API) compile(ctx context.Context, d *policyfile.Document, in *explainRequest, asked *explain.Request, records *recordSource) (
	p *operator.Policy, unknown []string, err error) {
	words := operator.Words{Client: in.Body.Client, User: in.Body.User, Tier: in.Body.Tier, Tenant: in.Body.Tenant}
	if words.Client == "" {
		if cmp.Or(words.User, words.Tier, words.Tenant) != "" {
			return nil, nil, invalidField("client", "", "user, tier and tenant are those of a client: name it")
		}
		if p, err = policyOf(d); err != nil {
			return nil, nil, a.problem(fmt.Errorf("%w: %w", ledger.ErrRows, err))
		}
		return p, nil, nil
	}
	client, err := operator.Parse(words)
	if err != nil {
		return nil, nil, invalidField("client", words.Client, err.Error())
	}
	verifiers, err := verifiersOf(d)
	if err != nil {
		return nil, nil, err
	}
	named, err := explain.Compile(d, verifiers)
	if err != nil {
		return nil, nil, a.problem(fmt.Errorf("%w: %w", ledger.ErrRows, err))
	}
	clients, err := records.open()
	if err != nil {
		return nil, nil, err
	}
	defer clients.Close() //nolint:errcheck // nothing was written
	client = (&operator.Desk{Directory: clients}).WithKey(ctx, client, []operator.Policy{named.Policy})
	if err := records.failure(); err != nil {
		return nil, nil, a.problem(err)
	}
	profile, err := asked.Name(named, client, words)
	if err != nil {
		return nil, nil, invalidField("client", words.Client, err.Error())
	}
	for _, gap := range profile.Unknown {
		unknown = append(unknown, gap.What+": "+gap.Why)
	}
	return &named.Policy, unknown, nil
}

// verifiersOf returns verifiers that know the API keys of the directory.
func verifiersOf(d *policyfile.Document) ([]policy.Verifier, error) {
	verifiers := make([]policy.Verifier, len(d.Identify))
	for i := range d.Identify {
		switch entry := &d.Identify[i]; {
		case entry.APIKey != nil && entry.APIKey.InDirectory() && entry.APIKey.KeysFile == "":
			keys, err := credential.NewKeys(credential.KeysOptions{Directory: true})
			if err != nil {
				return nil, err
			}
			verifiers[i] = keys
		case entry.APIKey != nil || entry.JWT != nil:
			verifiers[i] = explain.Unknowing{}
		}
	}
	return verifiers, nil
}

// policyOf returns the policy of a document, for questions about its clients.
func policyOf(d *policyfile.Document) (*operator.Policy, error) {
	verifiers, err := verifiersOf(d)
	if err != nil {
		return nil, err
	}
	p := &operator.Policy{Document: d, Verifiers: verifiers}
	p.Ruleset, err = d.CompileWith(verifiers)
	return p, err
}

// describeUnverified adds the reason to each method whose credentials the control plane cannot
// verify.
func describeUnverified(d *policyfile.Document, told *explain.Explanation) {
	for i := range told.Methods {
		if i < len(d.Identify) && strings.Contains(told.Methods[i].Fate, "unknown") {
			switch entry := &d.Identify[i]; {
			case entry.JWT != nil:
				told.Methods[i].Reason = "the control plane does not verify tokens: name the client"
			case entry.APIKey != nil && !entry.APIKey.InDirectory():
				told.Methods[i].Reason = "the control plane does not have the keys file: name the client"
			}
		}
	}
}

// chooseRegion selects the parts of the limits that belong to a region, and returns the region. If
// the region's counters are to be read, this process must be able to read the region's Redis.
func (a *API) chooseRegion(d *policyfile.Document, name string, counters bool) (region Region, err error) {
	names := d.RegionNames()
	if len(names) > 0 && name == "" {
		return region, invalidField("region", name, "the policy has regions, each with its part of the limits: write "+strings.Join(names, " or "))
	}
	if len(names) > 0 {
		if err := d.InRegion(name); err != nil {
			return region, invalidField("region", name, err.Error())
		}
	}
	if !counters {
		return Region{Name: name}, nil
	}
	region, err = a.regionOf(name)
	return region, err
}

// regionOf returns a region with counters; "" stands for the only one.
func (a *API) regionOf(name string) (region Region, err error) {
	have := []string{}
	for _, r := range a.o.Regions {
		if r.Name == name || name == "" && len(a.o.Regions) == 1 {
			return r, nil
		}
		if r.Name != "" {
			have = append(have, r.Name)
		}
	}
	message := "this control plane has no regions: leave region out"
	if len(have) > 0 {
		message = fmt.Sprintf("this process has the Redis of the regions %s: name one, or ask the process of the region", strings.Join(have, ", "))
	}
	return region, huma.Error422UnprocessableEntity("the region is not known", &huma.ErrorDetail{Location: "region", Value: name, Message: message})
}

// problemOfLook returns the answer to an error of reading records or counters.
func (a *API) problemOfLook(err error, region Region) error {
	if errors.Is(err, explain.ErrStore) || errors.Is(err, operator.ErrStore) {
		a.o.Logger.Warn("the counters could not be read", "region", region.Name, "error", err)
		return huma.ErrorWithHeaders(huma.Error503ServiceUnavailable("the counters in Redis could not be read, so what is left is not known; "+
			"/readyz reports the state of Redis, and the log of the control plane the reason; try again"), http.Header{"Retry-After": {"1"}})
	}
	return a.problem(err)
}
