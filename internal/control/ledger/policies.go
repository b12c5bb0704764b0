// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/policyfile"
)

// Policy is a policy with its publication.
type Policy struct {
	Policy      string `json:"policy"`
	Head        int64  `json:"head" doc:"the latest revision"`
	Publication `json:"publication"`
	// Only [Ledger.Promotion] fills in Promotion.
	Promotion *Promotion `json:"promotion,omitempty" doc:"the promotion of a candidate that is to be published to all nodes automatically"`

	promoteHead int64 // the latest revision when the candidate was published; 0 without a promotion
}

// Publication states which revisions of a policy the proxies enforce.
type Publication struct {
	Generation int64 `json:"generation" doc:"a number that rises with each publication; 0 before the first"`
	Revision   int64 `json:"revision" doc:"the revision in force on all nodes and for all clients, or for those that do not have the candidate; 0 before the first publication"`
	Candidate  int64 `json:"candidate,omitempty" doc:"the revision in shadow, or in force for a share of the nodes or of the clients"`
	Step       Step  `json:"step,omitempty" enum:"shadow,share"`
	Share      Parts `json:"share_percent,omitempty" doc:"the share of the nodes, for the step share"`
	// A publication has a share of the nodes or a share of the clients, never both.
	ClientShare Parts `json:"client_share_percent,omitempty" doc:"the share of the clients on all nodes, for the step share"`
	DenialsMax  Parts `json:"denials_max_percent,omitempty" doc:"the candidate is withdrawn if it denies a greater share of requests"`
	// PromoteAfterSeconds is 0 for a candidate that remains a candidate until an operator takes the
	// next step.
	PromoteAfterSeconds int64 `json:"promote_after_seconds,omitempty" doc:"the candidate is published to all nodes automatically when it has been observed for this time within its bound on denials"`
}

// Step is a step of a publication.
type Step string

// The steps. The last two leave no candidate.
const (
	StepShadow   Step = "shadow"   // nodes compare the candidate with the policy in force
	StepShare    Step = "share"    // a share of the nodes, or all nodes for a share of the clients, enforce the candidate
	StepAll      Step = "all"      // all nodes enforce the revision
	StepWithdraw Step = "withdraw" // no node enforces or tries the candidate any more
)

// Parts is a fraction in ten-thousandths. In JSON, it is a percentage.
type Parts int32

// partsAll is the fraction 1.
const partsAll = 10_000

// Percent converts a percentage to Parts.
func Percent(p float64) Parts { return Parts(p*100 + 0.5) }

func (p Parts) String() string { return fmt.Sprintf("%g%%", float64(p)/100) }

// MarshalJSON writes a percentage.
func (p Parts) MarshalJSON() ([]byte, error) { return json.Marshal(float64(p) / 100) }

// Schema implements [huma.SchemaProvider].
func (Parts) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: "number", Format: "double"}
}

// UnmarshalJSON reads a percentage.
func (p *Parts) UnmarshalJSON(text []byte) error {
	var percent float64
	err := json.Unmarshal(text, &percent)
	*p = Percent(percent)
	return err
}

// Revision is a revision of a policy.
type Revision struct {
	Policy    string               `json:"policy"`
	Revision  int64                `json:"revision"`
	Version   string               `json:"version" doc:"a hash of the content, as nodes report it"`
	At        time.Time            `json:"at"`
	Actor     string               `json:"actor"`
	Action    string               `json:"action"`
	Reason    string               `json:"reason"`
	Document  *policyfile.Document `json:"-"`
	Unchanged bool                 `json:"unchanged,omitempty" doc:"the write has the content of this revision, which was the latest already"`
}

// Revision.text returns the form of a revision in the audit trail.
func (r *Revision) text() *string {
	if r == nil {
		return nil
	}
	s := jsonText(struct {
		Revision int64  `json:"revision"`
		SHA256   string `json:"sha256"`
	}{r.Revision, r.Document.Hash()})
	return &s
}

// jsonText returns a struct of words and numbers as JSON, which cannot fail.
func jsonText(of any) string {
	text, _ := json.Marshal(of)
	return string(text)
}

const selectPolicies = `SELECT policy, policies.head, generation, coalesce(revision, 0), coalesce(candidate, 0), coalesce(step, ''),
	CASE WHEN share_of_clients THEN 0 ELSE coalesce(share, 0) END, CASE WHEN share_of_clients THEN share ELSE 0 END, coalesce(denials_max, 0),
	coalesce(m.after_seconds, 0), coalesce(m.head, 0) FROM policies LEFT JOIN promotions m USING (policy, generation) `

func scanPolicy(row pgx.CollectableRow) (p Policy, err error) {
	err = row.Scan(&p.Policy, &p.Head, &p.Generation, &p.Revision, &p.Candidate, &p.Step, &p.Share, &p.ClientShare, &p.DenialsMax,
		&p.PromoteAfterSeconds, &p.promoteHead)
	return p, err
}

// Policies returns the next n policies after the given one, sorted by name.
func (l *Ledger) Policies(ctx context.Context, after string, n int) ([]Policy, error) {
	rows, err := l.Pool.Query(ctx, selectPolicies+"WHERE policy > $1 ORDER BY policy LIMIT $2", after, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanPolicy)
}

// policyOf returns a policy, or nil if there is none.
func policyOf(ctx context.Context, q querier, name string) (*Policy, error) {
	rows, err := q.Query(ctx, selectPolicies+"WHERE policy = $1", name)
	if err != nil {
		return nil, err
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPolicy)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &p, err
}

// Policy returns a policy. The error is [ErrNone] if there is none.
func (l *Ledger) Policy(ctx context.Context, name string) (*Policy, error) {
	p, err := policyOf(ctx, l.Pool, name)
	if err == nil && p == nil {
		err = ErrNone
	}
	return p, err
}

const selectRevisions = `SELECT v.policy, v.revision, v.version, c.at, c.actor, c.action, c.reason, v.settings FROM policy_revisions v JOIN changes c USING (change) `

// ErrRows is wrapped by the error for rows that are not a valid policy.
var ErrRows = errors.New("the rows are no valid policy")

// scanRevision reads a revision with its settings, without its rules.
func scanRevision(row pgx.CollectableRow) (r Revision, err error) {
	var settings []byte
	if err := row.Scan(&r.Policy, &r.Revision, &r.Version, &r.At, &r.Actor, &r.Action, &r.Reason, &settings); err != nil {
		return r, err
	}
	r.At = r.At.UTC()
	if r.Document, err = documentOf(settings, nil); err != nil {
		err = fmt.Errorf("%w: %w", ErrRows, err)
	}
	return r, err
}

// Revisions returns at most n revisions, the latest first, without their rules. Their numbers are
// less than the parameter before, unless that is 0, which stands for no bound.
func (l *Ledger) Revisions(ctx context.Context, name string, before int64, n int) ([]Revision, error) {
	if before <= 0 {
		before = 1<<63 - 1
	}
	rows, err := l.Pool.Query(ctx, selectRevisions+"WHERE policy = $1 AND revision < $2 ORDER BY revision DESC LIMIT $3", name, before, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanRevision)
}

// Revision returns a revision with its document; 0 stands for the latest. The error is [ErrNone] if
// there is none.
func (l *Ledger) Revision(ctx context.Context, name string, revision int64) (*Revision, error) {
	if revision == 0 {
		p, err := l.Policy(ctx, name)
		if err != nil {
			return nil, err
		}
		revision = p.Head
	}
	return revisionOf(ctx, l.Pool, name, revision)
}

func revisionOf(ctx context.Context, q querier, name string, revision int64) (*Revision, error) {
	rows, err := q.Query(ctx, selectRevisions+"WHERE policy = $1 AND revision = $2", name, revision)
	if err != nil {
		return nil, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRevision)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	if rows, err = q.Query(ctx, "SELECT rule_name, priority, enabled, subject, endpoints, http_methods, ip_ranges, plan_tiers, limits, action, "+
		"retry_after, more FROM rate_limit_rules WHERE policy = $1 AND revision = $2 ORDER BY position", name, revision); err != nil {
		return nil, err
	}
	rules, err := pgx.CollectRows(rows, scanRule)
	if err != nil {
		return nil, err
	}
	if len(rules) > 0 {
		r.Document.Rules = rules
	}
	if version := r.Document.Version(); version != r.Version {
		return nil, fmt.Errorf("%w: revision %d of policy %q has the version %s, and its rows %s: they were changed by SQL; roll back to another",
			ErrRows, revision, name, r.Version, version)
	}
	return &r, nil
}

// PutPolicy makes a revision of a policy. The error is [policy.Problems] if the document does not
// compile. A document that equals the latest revision changes nothing.
func (l *Ledger) PutPolicy(ctx context.Context, actor Actor, d *policyfile.Document, reason string, require If) (put *Revision, err error) {
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	if err := d.Check(); err != nil {
		return nil, err
	}
	rows, err := rowsOf(d)
	if err != nil {
		return nil, err
	}
	put = &Revision{Policy: d.Name, Version: d.Version(), Actor: actor.Name, Action: "put", Reason: reason, Document: d}
	checked := time.Now()
	err = l.write(ctx, func(w *writeTx) error { return w.putRevision(ctx, actor, put, rows, require) })
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = &LateError{checked, err}
	}
	return put, err
}

// LateError is the error of a write that did not finish before its deadline.
type LateError struct {
	Checked time.Time // when the document had been checked, before the database was asked
	err     error
}

func (e *LateError) Error() string { return e.err.Error() }

// Unwrap returns the error of the database.
func (e *LateError) Unwrap() error { return e.err }

// RollBack makes a revision with the content of an earlier one.
func (l *Ledger) RollBack(ctx context.Context, actor Actor, name string, revision int64, reason string, require If) (*Revision, error) {
	old, err := l.Revision(ctx, name, revision)
	if err != nil {
		return nil, err
	}
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	if err := old.Document.Check(); err != nil { // an earlier release may have allowed what this one rejects
		return nil, err
	}
	rows, err := rowsOf(old.Document)
	if err != nil {
		return nil, err
	}
	put := &Revision{Policy: name, Version: old.Version, Actor: actor.Name, Action: fmt.Sprintf("rollback to %d", revision), Reason: reason,
		Document: old.Document}
	return put, l.write(ctx, func(w *writeTx) error { return w.putRevision(ctx, actor, put, rows, require) })
}

// putRevision writes the next revision of a policy, and sets its number and instant.
func (w *writeTx) putRevision(ctx context.Context, actor Actor, r *Revision, rows *policyRows, require If) error {
	present, err := policyOf(ctx, w.tx, r.Policy)
	if err != nil {
		return err
	}
	var before *Revision
	if r.Revision = 1; present != nil {
		if before, err = revisionOf(ctx, w.tx, r.Policy, present.Head); err != nil {
			return err
		}
		r.Revision = present.Head + 1
		err = require.check(present.Head)
	} else {
		err = require.check(0)
	}
	if err != nil {
		return err
	}
	if before != nil && before.Version == r.Version {
		*r = *before
		r.Unchanged = true
		return nil
	}
	if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatPolicy, Subject: r.Policy, Action: r.Action, Reason: r.Reason,
		Before: before.text(), After: r.text()}); err != nil {
		return err
	}
	r.At = w.now
	if _, err := w.tx.Exec(ctx, "INSERT INTO policies (policy, head) VALUES ($1, $2) ON CONFLICT (policy) DO UPDATE SET head = excluded.head",
		r.Policy, r.Revision); err != nil {
		return err
	}
	if _, err := w.tx.Exec(ctx, "INSERT INTO policy_revisions (policy, revision, version, settings, change) VALUES ($1, $2, $3, $4, $5)",
		r.Policy, r.Revision, r.Version, rows.settings, w.last); err != nil {
		return err
	}
	_, err = w.tx.CopyFrom(ctx, pgx.Identifier{"rate_limit_rules"}, ruleColumns, pgx.CopyFromSlice(len(rows.rules), func(i int) ([]any, error) {
		return rows.rules[i].values(r.Policy, r.Revision, i), nil
	}))
	return err
}
