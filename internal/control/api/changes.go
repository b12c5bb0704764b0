// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/hex"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
)

// ChangesQuery selects a page of changes.
type ChangesQuery struct {
	Before int64 `query:"before" minimum:"1" doc:"the field next of the previous page's answer"`
	Limit  int   `query:"limit" default:"100" minimum:"1" maximum:"1000"`
}

type clientChangesQuery struct {
	ClientPath
	ChangesQuery
}

type changesAnswer struct {
	Body struct {
		Changes []ledger.Change `json:"changes" doc:"the newest first"`
		Next    int64           `json:"next,omitempty" doc:"pass it as the parameter before to get the next page; absent on the last page"`
	}
}

type verifiedAnswer struct {
	Body struct {
		Whole   bool   `json:"whole"`
		Changes int64  `json:"changes" doc:"how many changes are as they were written"`
		Hash    string `json:"hash" doc:"the hash of the last change; keep it in another place, to notice if the history was written anew"`
		Problem string `json:"problem,omitempty" doc:"the first change that is not as it was written"`
	}
}

// changeOperations registers the operations that read the audit trail.
func (a *API) changeOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/changes", "list-changes", "List all changes", ledger.Viewer),
		func(ctx context.Context, in *ChangesQuery) (*changesAnswer, error) {
			return a.changes(ctx, "", "", *in)
		})
	huma.Register(a.huma, operation(http.MethodGet, clientPathText+"/changes", "list-client-changes", "List the changes of a client", ledger.Viewer),
		func(ctx context.Context, in *clientChangesQuery) (*changesAnswer, error) {
			name, err := ledger.Name(in.Client)
			if err != nil {
				return nil, a.problem(err)
			}
			return a.changes(ctx, ledger.WhatClient, name.String(), in.ChangesQuery)
		})
	huma.Register(a.huma, operation(http.MethodPost, "/v1/changes/verification", "verify-changes", "Read the whole audit trail and check its hashes", ledger.Admin),
		func(ctx context.Context, _ *struct{}) (*verifiedAnswer, error) {
			v, broken, err := a.o.Ledger.Verify(ctx)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(verifiedAnswer)
			answer.Body.Whole, answer.Body.Problem = broken == "", broken
			answer.Body.Changes, answer.Body.Hash = v.Changes, hex.EncodeToString(v.Hash)
			return answer, nil
		})
}

func (a *API) changes(ctx context.Context, what, subject string, q ChangesQuery) (*changesAnswer, error) {
	found, err := a.o.Ledger.History(ctx, what, subject, q.Before, q.Limit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(changesAnswer)
	answer.Body.Changes = append([]ledger.Change{}, found...)
	if len(found) == q.Limit {
		answer.Body.Next = found[len(found)-1].Number
	}
	return answer, nil
}
