// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// policyBodyBytesMax bounds a body with a policy. In JSON, the text of the policy may be escaped.
const policyBodyBytesMax = 2*syntax.SizeMax + 4<<10

// PolicyPath is the parameter of each path that names a policy.
type PolicyPath struct {
	Policy string `path:"policy" maxLength:"64" example:"shop"`
}

// policyName is the pattern of the name of a policy, which is a part of keys and of file names.
var policyName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Resolve implements [huma.Resolver].
func (p *PolicyPath) Resolve(huma.Context) []error {
	if !policyName.MatchString(p.Policy) {
		return []error{&huma.ErrorDetail{Message: "the name of a policy has 1 to 64 letters, digits, dots, dashes and underscores", Location: "path.policy",
			Value: strings.ToValidUTF8(p.Policy, "�")}}
	}
	return nil
}

type policiesAnswer struct {
	Body struct {
		Policies []ledger.Policy `json:"policies"`
		Next     string          `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

// policyAnswer is a revision with its document.
type policyAnswer struct {
	ETag string `header:"ETag" doc:"the latest revision, for If-Match"`
	Body struct {
		ledger.Revision
		Head        int64              `json:"head" doc:"the latest revision"`
		Publication ledger.Publication `json:"publication"`
		Document    json.RawMessage    `json:"document" doc:"the policy, in the form of a policy file in JSON"`
	}
}

type revisionsAnswer struct {
	Body struct {
		Revisions []ledger.Revision `json:"revisions" doc:"the latest first"`
		Next      int64             `json:"next,omitempty" doc:"pass it as the parameter before to get the next page; absent on the last page"`
	}
}

type revisionAnswer struct {
	ETag string `header:"ETag" doc:"the revision, for If-Match"`
	Body ledger.Revision
}

type putPolicy struct {
	PolicyPath
	Conditions
	Body struct {
		Text   string `json:"text" doc:"the policy, as in a policy file"`
		Format string `json:"format" enum:"yaml,toml,json"`
		File   string `json:"file,omitempty" maxLength:"255" doc:"the name of the file, for the positions of problems"`
		Reason string `json:"reason" doc:"why, for the history"`
	}
}

type rollBack struct {
	PolicyPath
	Conditions
	Body struct {
		Revision int64  `json:"revision" minimum:"1"`
		Reason   string `json:"reason" doc:"why, for the history"`
	}
}

type publishPolicy struct {
	PolicyPath
	Body struct {
		Step     ledger.Step `json:"step" enum:"shadow,share,all,withdraw"`
		Revision int64       `json:"revision,omitempty" minimum:"1" doc:"default: the latest"`
		Share    float64     `json:"share_percent,omitempty" minimum:"0.01" maximum:"99.99" doc:"the share of the nodes, for the step share"`
		// ClientShare is given in place of Share.
		ClientShare  float64 `json:"client_share_percent,omitempty" minimum:"0.01" maximum:"99.99" doc:"the share of the clients on all nodes, for the step share; it replaces share_percent; an answer 422 names nodes that cannot decide by the client"`
		DenialsMax   float64 `json:"denials_max_percent,omitempty" minimum:"0.01" maximum:"99.99" doc:"for the step share: withdraw the candidate if it denies a greater share of requests"`
		PromoteAfter int64   `json:"promote_after_seconds,omitempty" doc:"for the step share with denials_max_percent, from 60 to 2678400: publish the candidate to all nodes automatically when each region that serves the policy has observed it for this time within its bound on denials"`
		Generation   int64   `json:"generation,omitempty" minimum:"1" doc:"the generation that must be present; otherwise the answer is 412"`
		Reason       string  `json:"reason" doc:"why, for the history"`
	}
}

type publicationAnswer struct{ Body ledger.Policy }

type diffAnswer struct {
	Body struct {
		From    int64    `json:"from"`
		To      int64    `json:"to"`
		Words   []string `json:"words" doc:"fields of the policy itself that differ"`
		Added   []string `json:"added" doc:"names of rules"`
		Removed []string `json:"removed" doc:"names of rules"`
		Changed []string `json:"changed" doc:"rules with the fields that differ"`
		Anew    []string `json:"anew" doc:"counters that start at zero, with the reason"`
	}
}

const policyPathText = "/v1/policies/{policy}"

// policyOperations registers the operations on policies.
func (a *API) policyOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/policies", "list-policies", "List policies with their publication", ledger.Viewer),
		func(ctx context.Context, in *pageQuery) (*policiesAnswer, error) {
			found, err := a.o.Ledger.Policies(ctx, in.After, in.Limit)
			if err != nil {
				return nil, a.problem(err)
			}
			for i := range found {
				if found[i].Promotion, err = a.o.Ledger.Promotion(ctx, &found[i]); err != nil {
					return nil, a.problem(err)
				}
			}
			answer := new(policiesAnswer)
			answer.Body.Policies = append([]ledger.Policy{}, found...)
			if len(found) == in.Limit {
				answer.Body.Next = found[len(found)-1].Policy
			}
			return answer, nil
		})
	huma.Register(a.huma, operation(http.MethodGet, policyPathText, "get-policy", "Get a revision of a policy", ledger.Viewer, 404), a.getPolicy)
	huma.Register(a.huma, operation(http.MethodGet, policyPathText+"/revisions", "list-revisions", "List the revisions of a policy", ledger.Viewer), a.listRevisions)
	huma.Register(a.huma, operation(http.MethodGet, policyPathText+"/diff", "diff-policy", "Compare two revisions of a policy", ledger.Viewer, 404), a.diffPolicy)
	put := operation(http.MethodPut, policyPathText, "put-policy", "Write a revision of a policy, without publishing it", ledger.Editor, 412, 428)
	put.MaxBodyBytes = policyBodyBytesMax
	huma.Register(a.huma, put, a.putPolicy)
	huma.Register(a.huma, operation(http.MethodPost, policyPathText+"/rollback", "roll-back-policy", "Write a revision with the content of an earlier one, without publishing it",
		ledger.Editor, 404, 412), a.rollBack)
	huma.Register(a.huma, operation(http.MethodPost, policyPathText+"/publication", "publish-policy", "Publish a revision to nodes, or withdraw the candidate", ledger.Editor, 404, 412),
		a.publishPolicy)
}

func (a *API) getPolicy(ctx context.Context, in *struct {
	PolicyPath
	Revision int64 `query:"revision" minimum:"1" doc:"default: the latest"`
},
) (*policyAnswer, error) {
	p, err := a.o.Ledger.Policy(ctx, in.Policy)
	if err != nil {
		return nil, a.problem(err)
	}
	revision := p.Head
	if in.Revision != 0 {
		revision = in.Revision
	}
	found, err := a.o.Ledger.Revision(ctx, in.Policy, revision)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := &policyAnswer{ETag: etag(p.Head)}
	answer.Body.Revision, answer.Body.Head, answer.Body.Publication = *found, p.Head, p.Publication
	answer.Body.Document, err = json.Marshal(found.Document)
	return answer, err
}

func (a *API) listRevisions(ctx context.Context, in *struct {
	PolicyPath
	ChangesQuery
},
) (*revisionsAnswer, error) {
	found, err := a.o.Ledger.Revisions(ctx, in.Policy, in.Before, in.Limit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(revisionsAnswer)
	answer.Body.Revisions = append([]ledger.Revision{}, found...)
	if len(found) == in.Limit {
		answer.Body.Next = found[len(found)-1].Revision
	}
	return answer, nil
}

func (a *API) diffPolicy(ctx context.Context, in *struct {
	PolicyPath
	From int64 `query:"from" required:"true" minimum:"1"`
	To   int64 `query:"to" minimum:"1" doc:"default: the latest"`
},
) (*diffAnswer, error) {
	from, err := a.o.Ledger.Revision(ctx, in.Policy, in.From)
	if err != nil {
		return nil, a.problem(err)
	}
	to, err := a.o.Ledger.Revision(ctx, in.Policy, in.To)
	if err != nil {
		return nil, a.problem(err)
	}
	list := func(of []string) []string { return append([]string{}, of...) }
	changes, answer := lint.Diff(from.Document, to.Document), new(diffAnswer)
	answer.Body.From, answer.Body.To = from.Revision, to.Revision
	answer.Body.Words, answer.Body.Added, answer.Body.Removed = list(changes.Words), list(changes.Added), list(changes.Removed)
	answer.Body.Changed, answer.Body.Anew = list(changes.Changed), list(changes.Anew)
	return answer, nil
}

func (a *API) putPolicy(ctx context.Context, in *putPolicy) (*revisionAnswer, error) {
	require, err := in.require()
	if err != nil {
		return nil, err
	}
	if require == (ledger.If{}) {
		return nil, huma.NewError(http.StatusPreconditionRequired, `writing a policy needs If-Match: "REVISION", or If-None-Match: * if there is none yet`)
	}
	b := &in.Body
	file := b.File
	if file == "" {
		file = "policy." + b.Format
	}
	d, err := policyfile.Decode(file, map[string]policyfile.Format{"yaml": policyfile.YAML, "toml": policyfile.TOML, "json": policyfile.JSON}[b.Format], []byte(b.Text))
	if err != nil {
		return nil, a.problem(err)
	}
	if d.Name == "" {
		d.Name = in.Policy
	}
	if d.Name != in.Policy {
		return nil, a.problem(&ledger.Invalid{Place: "text", Value: d.Name,
			Text: fmt.Sprintf("the policy's name is %q, and it is written to %q: use one name", d.Name, in.Policy)})
	}
	put, err := a.o.Ledger.PutPolicy(ctx, callerOf(ctx).actor, d, b.Reason, require)
	if err != nil {
		return nil, a.lateProblem(ctx, err)
	}
	return &revisionAnswer{etag(put.Revision), *put}, nil
}

// lateProblem is like the method problem, for a write of a policy. If the time of the request has
// ended, and at least half of that time had passed before the database was asked, the answer says
// so.
func (a *API) lateProblem(ctx context.Context, err error) error {
	late, isLate := errors.AsType[*ledger.LateError](err)
	deadline, has := ctx.Deadline()
	if !isLate || !has {
		return a.problem(err)
	}
	took := late.Checked.Sub(deadline.Add(-a.time))
	if took < a.time/2 {
		return a.problem(err)
	}
	a.o.Logger.Warn("a policy was checked too late", "took", took, "error", err)
	return unavailable(fmt.Sprintf("receiving and checking the policy took %v, and a request has %v: the database was not asked in time; "+
		"try again when the control plane is less busy, or write fewer rules", took.Round(time.Millisecond), a.time))
}

func (a *API) rollBack(ctx context.Context, in *rollBack) (*revisionAnswer, error) {
	require, err := in.require()
	if err != nil {
		return nil, err
	}
	put, err := a.o.Ledger.RollBack(ctx, callerOf(ctx).actor, in.Policy, in.Body.Revision, in.Body.Reason, require)
	if err != nil {
		return nil, a.problem(err)
	}
	return &revisionAnswer{etag(put.Revision), *put}, nil
}

func (a *API) publishPolicy(ctx context.Context, in *publishPolicy) (*publicationAnswer, error) {
	b := &in.Body
	if b.ClientShare != 0 {
		if err := a.o.ByClient(ctx, in.Policy); err != nil {
			return nil, a.problem(err)
		}
	}
	after, err := a.o.Ledger.Publish(ctx, callerOf(ctx).actor, in.Policy, ledger.Publish{Step: b.Step, Revision: b.Revision, Share: ledger.Percent(b.Share),
		ClientShare: ledger.Percent(b.ClientShare), DenialsMax: ledger.Percent(b.DenialsMax), PromoteAfterSeconds: b.PromoteAfter, Generation: b.Generation}, b.Reason, a.o.Encode)
	if err != nil {
		return nil, a.problem(err)
	}
	return &publicationAnswer{*after}, nil
}
