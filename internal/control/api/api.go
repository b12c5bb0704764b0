// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/listen"
)

// Bounds of the API.
const (
	bodyBytesMax = 64 << 10
	requestsMax  = 64
	requestTime  = 10 * time.Second
	pageDefault  = "100"
)

// Options configures the API.
type Options struct {
	Ledger *ledger.Ledger
	// Ingester stores what nodes send, and Reports reads it.
	Ingester *ingest.Ingester
	Reports  *reports.Reports
	Logger   *slog.Logger
	// Ready returns the state of the servers that the process needs, for /readyz.
	Ready func(context.Context) Readiness
	// Encode returns the reason why a publication of a policy cannot be published, or nil.
	Encode func(p *ledger.Publication, now, candidate *ledger.Revision) error
	// ByClient returns an error if nodes enforce a policy but cannot enforce it for a share of the
	// clients. The error names such nodes.
	ByClient func(ctx context.Context, policy string) error
	// Notifies says that the process signs and sends notices of usage.
	Notifies bool
	// People verifies the tokens of people; nil if there is no issuer for them.
	People People
	// Regions are the regions whose counters the process can read.
	Regions []Region
	// PolicyKeys are the keys with which policies may be signed, as far as the process knows them.
	PolicyKeys []ed25519.PublicKey
}

// API is the handler of all paths.
type API struct {
	o          Options
	huma       huma.API
	gate       *gate
	looks      looks
	explaining *explaining
	published  *publishedTexts
	time       time.Duration // bounds a request
	mux        *http.ServeMux
}

// init requires that bodies spell the names of fields exactly as the document does. Package
// encoding/json ignores case in names. So a body that has a field in two spellings could pass the
// validation with the value of one and be used with the value of the other.
func init() { huma.ValidateStrictCasing = true }

// New returns the handler.
func New(o Options) *API {
	a := &API{o: o, time: requestTime, mux: http.NewServeMux(), explaining: newExplaining(), published: newPublishedTexts(&o)}
	a.gate = newGate(a.identify)
	config := huma.DefaultConfig("Penstock control", "1")
	config.Info.Description = "Clients, API keys, tiers, policies, usage, thresholds and tokens of a Penstock control plane."
	config.CreateHooks, config.DocsPath, config.SchemasPath = nil, "", ""
	config.RejectUnknownQueryParameters = true
	config.Formats = map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	a.huma = humago.New(a.mux, config)
	a.huma.UseMiddleware(a.authorize)
	a.clientOperations()
	a.keyOperations()
	a.changeOperations()
	a.tierOperations()
	a.tokenOperations()
	a.policyOperations()
	a.publishedOperation()
	a.explainOperations()
	a.regionOperations()
	a.batchOperations()
	a.reportOperations()
	a.metricOperations()
	a.unpublishedOperations()
	a.thresholdOperations()
	a.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	a.mux.HandleFunc("GET /readyz", a.readyz)
	a.mux.HandleFunc("GET /metrics", a.metricsText)
	return a
}

// OpenAPI returns the description of the API.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ctx, cancel := context.WithTimeout(r.Context(), a.time)
	defer cancel()
	r = r.WithContext(ctx)
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		by, leave, no := a.gate.enter(r)
		if no != nil {
			a.refuse(w, no)
			return
		}
		defer leave()
		listen.Called(ctx, true)
		r = r.WithContext(context.WithValue(ctx, caller{}, by))
	} else {
		listen.Called(ctx, false)
	}
	a.mux.ServeHTTP(w, r)
}

// refusal is the answer to a caller who may not call an operation.
type refusal struct {
	status int
	text   string
}

// refuse answers before the body is read. It closes the connection, because the next bytes on it
// are the body.
func (a *API) refuse(w http.ResponseWriter, no *refusal) {
	h := w.Header()
	switch no.status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", "1")
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Connection", "close")
	w.WriteHeader(no.status)
	text, err := json.Marshal(huma.ErrorModel{Title: http.StatusText(no.status), Status: no.status, Detail: no.text})
	if err != nil {
		panic(err) // texts and numbers can be marshaled
	}
	_, _ = w.Write(append(text, '\n')) // the caller may have left
}

// Keys of an operation's metadata: the least role that may call it, and whether nodes may call it
// as well.
const (
	roleKey  = "role"
	nodesKey = "nodes"
)

// operation returns the description of an operation. Each operation may also answer 401, 403, 422,
// 429 and 503. An operation with a body may also answer 400, 408, 413 and 415.
func operation(method, path, id, summary string, role ledger.Role, statuses ...int) huma.Operation {
	statuses = append(statuses, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
		http.StatusServiceUnavailable)
	if method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		statuses = append(statuses, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return huma.Operation{Method: method, Path: path, OperationID: id, Summary: summary,
		Description: needs(role), MaxBodyBytes: bodyBytesMax,
		Errors:   append([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable}, statuses...),
		Metadata: map[string]any{roleKey: role}}
}

// needs returns a text that says who may call an operation.
func needs(role ledger.Role) string {
	if role == ledger.Node {
		return "Needs a token of the role node."
	}
	return "Needs the role " + string(role) + " or one above."
}

// forNodesToo lets nodes call an operation of people.
func forNodesToo(o huma.Operation) huma.Operation {
	needed := o.Metadata[roleKey].(ledger.Role)
	o.Description = "Needs the role " + string(needed) + " or one above, or a token of the role node."
	o.Metadata[nodesKey] = true
	return o
}

// caller is the context key of the requester of a call.
type caller struct{}

// requester identifies the caller of a request.
type requester struct {
	actor ledger.Actor
	role  ledger.Role
}

func callerOf(ctx context.Context) requester {
	c, _ := ctx.Value(caller{}).(requester)
	return c
}

// authorize admits a request if its caller has the role that the operation needs.
func (a *API) authorize(ctx huma.Context, next func(huma.Context)) {
	needed, _ := ctx.Operation().Metadata[roleKey].(ledger.Role)
	nodes, _ := ctx.Operation().Metadata[nodesKey].(bool)
	if has := callerOf(ctx.Context()).role; !has.May(needed) && !(nodes && has == ledger.Node) {
		_ = huma.WriteErr(a.huma, ctx, http.StatusForbidden, describeDenial(has, needed))
		return
	}
	next(ctx)
}

// identify returns the caller that a value of the header Authorization identifies.
func (a *API) identify(ctx context.Context, remote, authorization string) (by requester, no *refusal) {
	host, _, err := net.SplitHostPort(remote)
	if err != nil { // a Unix socket
		host = "local"
	}
	scheme, secret, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		secret = ""
	}
	if a.o.People != nil && secret != "" && !strings.HasPrefix(secret, ledger.TokenPrefix) {
		return a.person(host, secret)
	}
	token, err := a.o.Ledger.Bearer(ctx, secret)
	switch {
	case errors.Is(err, ledger.ErrNone):
		text := "send a token as \"Authorization: Bearer pst_…\"; this one is missing, unknown, expired or revoked"
		if a.o.People != nil {
			text = "send a token of the control plane (pst_…) or of the issuer as \"Authorization: Bearer …\"; this one is missing, unknown, expired or revoked"
		}
		return by, &refusal{http.StatusUnauthorized, text}
	case err != nil:
		return by, &refusal{http.StatusServiceUnavailable, a.databaseMessage(err)}
	}
	return requester{ledger.Actor{Name: token.Name, Origin: host}, token.Role}, nil
}

func describeDenial(has, needed ledger.Role) string {
	return "this needs a token of the role " + string(needed) + ", and the token has the role " + string(has)
}

// databaseMessage logs an error of the database, and returns the message for the caller.
func (a *API) databaseMessage(err error) string {
	a.o.Logger.Warn("the database does not answer", "error", err)
	return "the database does not answer; proxies continue with the records that they have; try again"
}

// API.problem returns the answer to an error of the ledger.
func (a *API) problem(err error) error {
	invalid, problems := (*ledger.Invalid)(nil), policy.Problems(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problems):
		details := make([]error, len(problems))
		for i, p := range problems {
			details[i] = &huma.ErrorDetail{Message: p.String(), Location: "body.text." + p.Path}
			if p.Value != "" {
				details[i].(*huma.ErrorDetail).Value = p.Value
			}
		}
		return huma.Error422UnprocessableEntity("the policy is not valid, and nothing has changed", details...)
	case errors.As(err, &invalid):
		location := "body"
		if invalid.Place == "client" {
			location = "path.client"
		} else if invalid.Place != "" {
			location += "." + invalid.Place
		}
		return huma.Error422UnprocessableEntity("the write is not valid, and changes nothing",
			&huma.ErrorDetail{Message: invalid.Text, Location: location, Value: invalid.Value})
	case errors.Is(err, ledger.ErrNone):
		return huma.Error404NotFound("there is none of this name")
	case errors.Is(err, ledger.ErrChanged):
		return huma.Error412PreconditionFailed(err.Error())
	}
	return unavailable(a.databaseMessage(err))
}

// unavailable returns an answer after which the caller may try again.
func unavailable(text string) error {
	return huma.ErrorWithHeaders(huma.Error503ServiceUnavailable(text), http.Header{"Retry-After": {"1"}})
}
