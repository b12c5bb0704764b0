// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// ClientPath is the parameter of each path that names a client.
type ClientPath struct {
	Client string `path:"client" maxLength:"9000" doc:"KIND:ID, such as user:u_42, api_key:acme, tenant:t_1, or ip:192.0.2.0%2F24"`
}

// Conditions are the header fields of a conditional write.
type Conditions struct {
	IfMatch     string `header:"If-Match" doc:"the ETag of the revision that was read; the write is answered 412 if there is a later one by now"`
	IfNoneMatch string `header:"If-None-Match" doc:"* if there must be no record yet"`
}

// Resolve implements [huma.Resolver]. A condition without a value is an error: a caller whose ETag
// is empty by mistake would otherwise write without a condition.
func (*Conditions) Resolve(ctx huma.Context) (problems []error) {
	ctx.EachHeader(func(name, value string) {
		if value == "" && (strings.EqualFold(name, "If-Match") || strings.EqualFold(name, "If-None-Match")) {
			problems = append(problems, &huma.ErrorDetail{Message: "write a value, or leave the header out",
				Location: "header." + name, Value: value})
		}
	})
	return problems
}

// Conditions.require converts the header fields to the condition under which a write is made.
func (c Conditions) require() (require ledger.If, err error) {
	if c.IfNoneMatch != "" && c.IfNoneMatch != "*" {
		return require, headerError("If-None-Match", c.IfNoneMatch, "write *, or leave it out")
	}
	require.Absent = c.IfNoneMatch == "*"
	if c.IfMatch == "" {
		return require, nil
	}
	text, quoted := strings.CutPrefix(c.IfMatch, `"`)
	text, ended := strings.CutSuffix(text, `"`)
	require.Revision, err = strconv.ParseInt(text, 10, 64)
	if !quoted || !ended || err != nil || require.Revision < 1 {
		return require, headerError("If-Match", c.IfMatch, `write the ETag of an answer, such as "17"`)
	}
	return require, nil
}

func headerError(name, value, remedy string) error {
	return huma.Error422UnprocessableEntity("the header "+name+" is not valid",
		&huma.ErrorDetail{Message: remedy, Location: "header." + name, Value: value})
}

func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// clientAnswer is a client with its ETag.
type clientAnswer struct {
	ETag string `header:"ETag" doc:"the revision, for If-Match"`
	Body *ledger.Client
}

// changedAnswer is the result of a write.
type changedAnswer struct {
	ETag string `header:"ETag" doc:"the revision, for If-Match"`
	Body *ledger.Changed
}

func (a *API) answerChange(c *ledger.Changed, err error) (*changedAnswer, error) {
	if err != nil {
		return nil, a.problem(err)
	}
	return &changedAnswer{etag(c.Revision), c}, nil
}

type clientsAnswer struct {
	Body struct {
		Clients []ledger.Client `json:"clients"`
		Next    string          `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type clientsQuery struct {
	After   string `query:"after" maxLength:"600" doc:"the field next of the previous page's answer"`
	Limit   int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
	Kind    string `query:"kind" maxLength:"300" example:"user"`
	Tier    string `query:"tier" maxLength:"255"`
	Blocked bool   `query:"blocked" doc:"only those that are blocked now"`
	Exempt  bool   `query:"exempt" doc:"only those that are exempt now"`
}

// Resolve implements [huma.Resolver].
func (q *clientsQuery) Resolve(huma.Context) []error {
	return append(checkStorable("kind", q.Kind), checkStorable("tier", q.Tier)...)
}

const clientPathText = "/v1/clients/{client}"

// clientOperations registers the operations that read clients, or replace parts of a record.
func (a *API) clientOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/clients", "list-clients", "List clients that have a record", ledger.Viewer), a.listClients)
	huma.Register(a.huma, operation(http.MethodGet, clientPathText, "get-client", "Get a client's record", ledger.Viewer, 404),
		func(ctx context.Context, in *ClientPath) (*clientAnswer, error) {
			found, err := a.o.Ledger.Client(ctx, in.Client)
			if err != nil {
				return nil, a.problem(err)
			}
			return &clientAnswer{etag(found.Revision), found}, nil
		})
	put := operation(http.MethodPut, clientPathText, "put-client", "Replace a client's record", ledger.Editor, 412, 428)
	put.Description += wideNeeds
	huma.Register(a.huma, put, a.putClient)
	huma.Register(a.huma, operation(http.MethodPatch, clientPathText, "patch-client", "Replace tier, tenant or note of a client", ledger.Editor, 412), a.patchClient)
	edit := operation(http.MethodPost, clientPathText+"/edits", "edit-client", "Make one edit of a client, as penstock client does", ledger.Support, 412)
	edit.Description += wideNeeds
	huma.Register(a.huma, edit, a.editClient)
}

func (a *API) listClients(ctx context.Context, in *clientsQuery) (*clientsAnswer, error) {
	var after policy.ClientName
	if in.After != "" {
		kind, id, ok := strings.Cut(in.After, ":")
		if _, err := ledger.Name(in.After); !ok || err != nil {
			return nil, huma.Error422UnprocessableEntity("the query is not valid",
				&huma.ErrorDetail{Message: "write the next of the page before, which is KIND:ID", Location: "query.after", Value: in.After})
		}
		after = policy.ClientName{Kind: kind, ID: id}
	}
	found, err := a.o.Ledger.Clients(ctx, ledger.Filter{Kind: in.Kind, Tier: in.Tier, Blocked: in.Blocked, Exempt: in.Exempt}, after, in.Limit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(clientsAnswer)
	answer.Body.Clients = append([]ledger.Client{}, found...)
	if len(found) == in.Limit {
		answer.Body.Next = found[len(found)-1].Client
	}
	return answer, nil
}

type putClient struct {
	ClientPath
	Conditions
	Body struct {
		Record directory.Record `json:"record" doc:"the whole record, as it is in Redis"`
		Reason string           `json:"reason" doc:"why, for the history"`
	}
}

func (a *API) putClient(ctx context.Context, in *putClient) (*changedAnswer, error) {
	require, err := in.require()
	if err != nil {
		return nil, err
	}
	if require == (ledger.If{}) {
		return nil, huma.NewError(http.StatusPreconditionRequired, `replacing a record needs If-Match: "REVISION", or If-None-Match: * if there is none yet`)
	}
	by := callerOf(ctx)
	if record := &in.Body.Record; record.Block != nil || record.Exempt != nil {
		if err := checkConcern(by, in.Client); err != nil {
			return nil, err
		}
	}
	return a.answerChange(a.o.Ledger.Replace(ctx, by.actor, in.Client, &in.Body.Record, in.Body.Reason, require))
}

type patchClient struct {
	ClientPath
	Conditions
	Body struct {
		Tier   *string `json:"tier,omitempty" doc:"empty removes it"`
		Tenant *string `json:"tenant,omitempty" doc:"empty removes it"`
		Note   *string `json:"note,omitempty" doc:"empty removes it"`
		Reason string  `json:"reason" doc:"why, for the history"`
	}
}

func (a *API) patchClient(ctx context.Context, in *patchClient) (*changedAnswer, error) {
	require, err := in.require()
	if err != nil {
		return nil, err
	}
	part := ledger.Part{Tier: in.Body.Tier, Tenant: in.Body.Tenant, Note: in.Body.Note}
	return a.answerChange(a.o.Ledger.Patch(ctx, callerOf(ctx).actor, in.Client, part, in.Body.Reason, require))
}

type editClient struct {
	ClientPath
	Conditions
	Body struct {
		Action directory.Action `json:"action" enum:"set-tier,unset-tier,set-tenant,set-limit,unset-limit,grant,ungrant,block,unblock,exempt,unexempt,note,forget"`
		Reason string           `json:"reason" doc:"why, for the history"`
		Tier   string           `json:"tier,omitempty" doc:"for set-tier"`
		Tenant string           `json:"tenant,omitempty" doc:"for set-tenant"`
		Rule   string           `json:"rule,omitempty" doc:"for set-limit, unset-limit, grant and ungrant: the name of a rule; for limits also *"`
		Limits []string         `json:"limits,omitempty" maxItems:"64" doc:"for set-limit: as in a policy, or only unlimited" example:"[\"500/1h\"]"`
		Units  int64            `json:"units,omitempty" minimum:"0" doc:"for grant: how many units the client may use once, beyond its limit"`
		Window string           `json:"window,omitempty" maxLength:"100" doc:"for grant: the window of the limit, such as 1h or month; absent for the longest"`
		Note   string           `json:"note,omitempty" doc:"for note; empty removes it"`
		Until  time.Time        `json:"until,omitempty" doc:"for set-limit, block and exempt: the end; absent for none"`
	}
}

// supportSpan is how far ahead the support role may set the end of an exemption or a limit.
const supportSpan = 31 * 24 * time.Hour

// The edits that the support role may make. Those in the second list need an end within
// supportSpan.
var (
	supported = []directory.Action{directory.ActionBlock, directory.ActionUnblock, directory.ActionUnexempt, directory.ActionUnsetLimits,
		directory.ActionGrant, directory.ActionUngrant, directory.ActionNote}
	supportedWithEnd = []directory.Action{directory.ActionExempt, directory.ActionSetLimits}
)

func (a *API) editClient(ctx context.Context, in *editClient) (*changedAnswer, error) {
	require, err := in.require()
	if err != nil {
		return nil, err
	}
	b, by := &in.Body, callerOf(ctx)
	if why := supportProblem(b.Action, b.Until, time.Now()); why != "" && !by.role.May(ledger.Editor) {
		return nil, huma.Error403Forbidden(describeDenial(by.role, ledger.Editor) + why)
	}
	if b.Action == directory.ActionBlock || b.Action == directory.ActionExempt {
		if err := checkConcern(by, in.Client); err != nil {
			return nil, err
		}
	}
	if len(b.Limits) > 0 {
		if _, err := policy.ParseLimitSet(b.Limits); err != nil {
			return nil, a.problem(&ledger.Invalid{Place: "limits", Value: b.Limits, Text: err.Error()})
		}
	}
	edit := directory.Edit{Client: in.Client, Action: b.Action, Reason: b.Reason, Tier: b.Tier, Tenant: b.Tenant, Rule: b.Rule, Limits: b.Limits,
		Units: b.Units, Window: b.Window, Note: b.Note, Until: b.Until}
	return a.answerChange(a.o.Ledger.Edit(ctx, by.actor, edit, require))
}

// supportProblem returns the reason why the support role may not make an edit, or "" if it may.
func supportProblem(action directory.Action, until, now time.Time) string {
	for _, may := range supported {
		if action == may {
			return ""
		}
	}
	for _, may := range supportedWithEnd {
		switch {
		case action != may:
		case until.IsZero() || until.After(now.Add(supportSpan)):
			return "; with an end within 31 days, the role support is enough"
		default:
			return ""
		}
	}
	return "; " + string(action) + " is for editors"
}
