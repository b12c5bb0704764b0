// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/controlclient"
	"github.com/penstock/penstock/internal/control/ledger"
)

// recorder records the operations that succeed.
type recorder struct {
	api  *API
	mu   sync.Mutex
	seen map[string]bool // METHOD TEMPLATE
}

// RoundTrip implements [http.RoundTripper].
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(request)
	if err == nil && response.StatusCode < 300 {
		_, pattern := r.api.mux.Handler(request)
		r.mu.Lock()
		r.seen[pattern] = true
		r.mu.Unlock()
	}
	return response, err
}

// generatedCaller calls the API with the generated client.
type generatedCaller struct {
	*controlclient.Client
	t   *testing.T
	url string
}

func (s *served) generated(role ledger.Role, r *recorder) *generatedCaller {
	s.t.Helper()
	c, err := controlclient.New(s.url, controlclient.Options{Token: s.tokens[role], HTTP: &http.Client{Transport: r}})
	if err != nil {
		s.t.Fatal(err)
	}
	return &generatedCaller{c, s.t, s.url}
}

// failed returns the status of an error of the API, or 0 for any other error.
func failed(err error) int {
	var e *controlclient.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func must[T any](t *testing.T) func(answer T, err error) T {
	return func(answer T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
}

// TestTheClientCallsEveryOperation calls every operation of the document with the generated client.
func TestTheClientCallsEveryOperation(t *testing.T) {
	t.Parallel()
	s := serve(t)
	r := &recorder{api: s.api, seen: map[string]bool{}}
	c := s.generated(ledger.Admin, r)
	ctx := t.Context()
	c.callClients(ctx)
	c.callPolicies(ctx)
	c.callReports(ctx)
	c.callTokens(ctx)
	c.callKeys(ctx)
	if regions, err := c.ListRegions(ctx); err != nil || len(regions.Regions) != 1 {
		t.Errorf("the regions are %+v, %v", regions, err)
	}
	node := s.generated(ledger.Node, r)
	line := fmt.Sprintf(`{"time":%q,"kind":"denied","policy":"shop","rule":"api","client":"user:a","status":429}`+"\n", time.Now().UTC().Format(time.RFC3339Nano))
	must[*controlclient.BatchAnswer](t)(node.PutBatch(ctx, strings.Repeat("0", 32), 1, controlclient.PutBatchOptions{PenstockNode: "n"}, strings.NewReader(line)))
	for path, item := range s.api.OpenAPI().Paths {
		for _, o := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if o != nil && !r.seen[o.Method+" "+path] {
				t.Errorf("%s %s is not called: call its method of controlclient in this test", o.Method, path)
			}
		}
	}
}

func (c *generatedCaller) callClients(ctx context.Context) {
	t := c.t
	t.Helper()
	must[*controlclient.Tier](t)(c.PutTier(ctx, "gold", controlclient.PutTier{Note: "sold", Reason: "a test"}))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	record := controlclient.Record{Tier: "gold", Block: &controlclient.Mark{Until: until, Reason: "late"},
		Limits: map[string]controlclient.Limits{"api": {Limits: []string{"9/1s"}}}}
	absent := controlclient.Condition{Absent: true}
	_, made, err := c.PutClient(ctx, "ip:192.0.2.0/24", absent, controlclient.PutClient{Record: record, Reason: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.PutClient(ctx, "ip:192.0.2.0/24", absent, controlclient.PutClient{Record: record, Reason: "a test"}); failed(err) != 412 {
		t.Errorf("a second record is made: %v", err)
	}
	read, tag, err := c.GetClient(ctx, "ip:192.0.2.0/24")
	if err != nil || tag != made || read.Record.Block == nil || !read.Record.Block.Until.Equal(until) || read.Record.Limits["api"].Limits[0] != "9/1s" {
		t.Errorf("%+v %s is read, %v; %s was made", read, tag, err, made)
	}
	empty := ""
	changed, _, err := c.PatchClient(ctx, "ip:192.0.2.0/24", controlclient.Condition{Match: tag}, controlclient.PatchClient{Tier: &empty, Reason: "a test"})
	if err != nil || changed.After.Tier != "" || changed.After.Block == nil {
		t.Errorf("%+v, %v", changed, err)
	}
	if _, _, err := c.PatchClient(ctx, "ip:192.0.2.0/24", controlclient.Condition{Match: tag}, controlclient.PatchClient{Note: &empty, Reason: "a test"}); failed(err) != 412 {
		t.Errorf("a write after another is made: %v", err)
	}
	for _, name := range []string{"user:a", "user:b/../c", "user:%2e?#"} {
		if _, _, err := c.EditClient(ctx, name, controlclient.Condition{}, controlclient.EditClient{Action: "block", Reason: "a test"}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	var e *controlclient.Error
	if _, _, err := c.EditClient(ctx, "user:a", controlclient.Condition{}, controlclient.EditClient{Action: "set-limit", Rule: "api",
		Limits: []string{"5/bogus"}, Reason: "a test"}); !errors.As(err, &e) || e.Status != 422 || len(e.Problems) != 1 ||
		e.Problems[0].Place != "body.limits" || string(e.Problems[0].Value) != `["5/bogus"]` || !strings.Contains(e.Problems[0].Remedy, "is not a duration") {
		t.Errorf("%+v", err)
	}
	var names []string
	for one, err := range c.AllClients(ctx, controlclient.ListClientsOptions{Limit: 1, Blocked: true}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, one.Client)
	}
	if want := []string{"ip:192.0.2.0/24", "user:%2e?#", "user:a", "user:b/../c"}; !slices.Equal(names, want) {
		t.Errorf("pages have %q, want %q", names, want)
	}
	changes := 0
	for _, err := range c.AllClientChanges(ctx, "ip:192.0.2.0/24", controlclient.ListClientChangesOptions{Limit: 1}) {
		if changes++; err != nil {
			t.Fatal(err)
		}
	}
	if changes != 2 {
		t.Errorf("%d changes, want 2", changes)
	}
	must[*controlclient.ChangesAnswer](t)(c.ListChanges(ctx, controlclient.ListChangesOptions{Limit: 5}))
	must[*controlclient.Forgotten](t)(c.ForgetUsage(ctx, "user:a", controlclient.ForgetClient{Reason: "a test"}))
	if v := must[*controlclient.VerifiedAnswer](t)(c.VerifyChanges(ctx)); !v.Whole {
		t.Errorf("%+v", v)
	}
	must[*controlclient.TiersAnswer](t)(c.ListTiers(ctx, controlclient.ListTiersOptions{}))
	if err := c.DeleteTier(ctx, "gold", "a test"); err != nil {
		t.Error(err)
	}
	if _, _, err := c.GetClient(ctx, ""); err == nil || failed(err) != 0 {
		t.Errorf("an empty name is sent: %v", err)
	}
}

func (c *generatedCaller) callPolicies(ctx context.Context) {
	t := c.t
	t.Helper()
	put := controlclient.PutPolicy{Format: "yaml", Text: "rules: [{name: api, limit: 3/1m}]", Reason: "a test"}
	_, tag, err := c.PutPolicy(ctx, "shop", controlclient.Condition{Absent: true}, put)
	if err != nil {
		t.Fatal(err)
	}
	put.Text = "rules: [{name: api, limit: 4/1m}]"
	if _, _, err := c.PutPolicy(ctx, "shop", controlclient.Condition{Match: tag}, put); err != nil {
		t.Fatal(err)
	}
	if p, _, err := c.GetPolicy(ctx, "shop", controlclient.GetPolicyOptions{}); err != nil || p.Head != 2 || !strings.Contains(string(p.Document), "4/1m") {
		t.Errorf("%+v, %v", p, err)
	}
	must[*controlclient.PoliciesAnswer](t)(c.ListPolicies(ctx, controlclient.ListPoliciesOptions{}))
	if d := must[*controlclient.DiffAnswer](t)(c.DiffPolicy(ctx, "shop", 1, controlclient.DiffPolicyOptions{To: 2})); len(d.Changed) != 1 {
		t.Errorf("%+v", d)
	}
	must[*controlclient.RevisionsAnswer](t)(c.ListRevisions(ctx, "shop", controlclient.ListRevisionsOptions{}))
	if _, _, err := c.RollBackPolicy(ctx, "shop", controlclient.Condition{}, controlclient.RollBack{Revision: 1, Reason: "a test"}); err != nil {
		t.Error(err)
	}
	must[*controlclient.Policy](t)(c.PublishPolicy(ctx, "shop", controlclient.PublishPolicy{Step: "all", Reason: "a test"}))
	text, known, err := c.GetPublishedPolicy(ctx, "shop", "")
	if err != nil || !strings.HasSuffix(string(text), "signed") {
		t.Errorf("%q, %v", text, err)
	}
	if _, _, err := c.GetPublishedPolicy(ctx, "shop", known); failed(err) != http.StatusNotModified {
		t.Error(err)
	}
	told := must[*controlclient.ExplanationAnswer](t)(c.ExplainRequest(ctx, "shop", controlclient.ExplainRequest{Path: "/", IP: "198.51.100.7"}))
	if len(told.Rules) != 1 || told.Rules[0].Checks[0].Limit != "3/1m" || told.Client.ID != "198.51.100.7" {
		t.Errorf("%+v", told)
	}
	if left := must[*controlclient.RemainingAnswer](t)(c.GetRemaining(ctx, "ip:198.51.100.7", controlclient.GetRemainingOptions{})); left.Counters[0].Remaining != 3 {
		t.Errorf("%+v", left)
	}
	promoted := controlclient.PublishPolicy{Step: "share", Revision: 2, SharePercent: 10, DenialsMaxPercent: 5, PromoteAfterSeconds: 3600, Reason: "a test"}
	if p := must[*controlclient.Policy](t)(c.PublishPolicy(ctx, "shop", promoted)); p.Publication.PromoteAfterSeconds != 3600 {
		t.Errorf("%+v", p)
	}
	if all := must[*controlclient.PoliciesAnswer](t)(c.ListPolicies(ctx, controlclient.ListPoliciesOptions{})); all.Policies[0].Promotion == nil {
		t.Errorf("%+v", all)
	}
	must[*controlclient.Threshold](t)(c.PutThreshold(ctx, "quota", controlclient.PutThreshold{Policy: "shop", Rule: "api", Units: 100, Percents: []int64{80},
		URL: "https://receiver.example", Reason: "a test"}))
	must[*controlclient.ThresholdsAnswer](t)(c.ListThresholds(ctx, controlclient.ListThresholdsOptions{}))
	must[*controlclient.NoticesAnswer](t)(c.ListNotices(ctx, "quota", controlclient.ListNoticesOptions{}))
	if err := c.DeleteThreshold(ctx, "quota", "a test"); err != nil {
		t.Error(err)
	}
}

func (c *generatedCaller) callReports(ctx context.Context) {
	t := c.t
	t.Helper()
	from := time.Now().Add(-time.Hour)
	must[*controlclient.UsageAnswer](t)(c.ListUsage(ctx, controlclient.ListUsageOptions{Policy: "shop"}))
	must[*controlclient.TopAnswer](t)(c.TopViolators(ctx, controlclient.TopViolatorsOptions{From: from}))
	must[*controlclient.EventsAnswer](t)(c.ListEvents(ctx, controlclient.ListEventsOptions{From: from, Kind: "denied"}))
	must[*controlclient.MetricsAnswer](t)(c.ListMetrics(ctx, controlclient.ListMetricsOptions{Granularity: "minute"}))
	must[*controlclient.EndpointsAnswer](t)(c.ListEndpoints(ctx, controlclient.ListEndpointsOptions{Granularity: "minute", Policy: "shop"}))
	must[*controlclient.ActiveAnswer](t)(c.ListActiveClients(ctx, controlclient.ListActiveClientsOptions{From: from, Client: "user:a"}))
	must[*controlclient.UnpublishedAnswer](t)(c.ListUnpublished(ctx, controlclient.ListUnpublishedOptions{Limit: 1}))
}

func (c *generatedCaller) callTokens(ctx context.Context) {
	t := c.t
	t.Helper()
	made := must[*controlclient.NewTokenAnswer](t)(c.NewToken(ctx, controlclient.NewToken{Name: "n", Role: "viewer", ExpiresAt: time.Now().Add(time.Hour), Reason: "a test"}))
	other, err := controlclient.New(c.url, controlclient.Options{TokenSource: func(context.Context) (string, error) { return made.Secret, nil }})
	if err != nil {
		t.Fatal(err)
	}
	must[*controlclient.TiersAnswer](t)(other.ListTiers(ctx, controlclient.ListTiersOptions{}))
	if err := other.DeleteTier(ctx, "gold", "a test"); failed(err) != http.StatusForbidden {
		t.Errorf("a viewer removes a tier: %v", err)
	}
	must[*controlclient.TokensAnswer](t)(c.ListTokens(ctx, controlclient.ListTokensOptions{}))
	if err := c.RevokeToken(ctx, made.Token, "a test"); err != nil {
		t.Error(err)
	}
	if _, err := other.ListTiers(ctx, controlclient.ListTiersOptions{}); failed(err) != http.StatusUnauthorized {
		t.Errorf("a revoked token reads tiers: %v", err)
	}
	failing, err := controlclient.New(c.url, controlclient.Options{TokenSource: func(context.Context) (string, error) { return "", io.EOF }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := failing.ListTiers(ctx, controlclient.ListTiersOptions{}); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func (c *generatedCaller) callKeys(ctx context.Context) {
	t := c.t
	t.Helper()
	made := must[*controlclient.EditedKeysAnswer](t)(c.CreateKey(ctx, controlclient.CreateKey{Reason: "a test",
		Record: controlclient.KeyRecord{Name: "ci", Client: "user:ann", Limits: map[string][]string{"api": {"9/1s"}}}}))
	if made.Key == "" || len(made.Keys) != 1 || made.Keys[0].Record.Name != "ci" {
		t.Errorf("%+v", made)
	}
	must[*controlclient.NamedKeysAnswer](t)(c.GetKeys(ctx, "ci"))
	must[*controlclient.KeysAnswer](t)(c.ListKeys(ctx, controlclient.ListKeysOptions{Client: "user:ann"}))
	must[*controlclient.ChangesAnswer](t)(c.ListKeyChanges(ctx, "ci", controlclient.ListKeyChangesOptions{}))
	if edited := must[*controlclient.EditedKeysAnswer](t)(c.EditKeys(ctx, "ci", controlclient.EditKeys{Action: "revoke", Reason: "a test"})); edited.Keys[0].State != "revoked" {
		t.Errorf("%+v", edited)
	}
}
