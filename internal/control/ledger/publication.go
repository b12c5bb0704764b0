// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
)

// Publish is a request for a step of a publication.
type Publish struct {
	Step     Step
	Revision int64 // 0 stands for the latest; ignored by StepWithdraw
	// Share is a share of the nodes, and ClientShare a share of the clients. StepShare needs one of
	// them. DenialsMax applies only to StepShare, and 0 means no bound.
	Share, ClientShare, DenialsMax Parts
	// PromoteAfterSeconds, if not 0, publishes the candidate to all nodes automatically: see
	// [Promotion]. The field applies only to StepShare, and needs a DenialsMax.
	PromoteAfterSeconds int64
	// Generation, if not 0, must be the current generation.
	Generation int64
}

// Publish.check returns an [Invalid] if the step itself is not valid.
func (p *Publish) check() error {
	switch {
	case p.Step != StepShadow && p.Step != StepShare && p.Step != StepAll && p.Step != StepWithdraw:
		return &Invalid{Place: "step", Value: p.Step, Text: fmt.Sprintf("step %q is none: write shadow, share, all or withdraw", p.Step)}
	case p.Share != 0 && p.ClientShare != 0:
		return &Invalid{Place: "client_share_percent", Value: p.ClientShare, Text: "a candidate has a share of the nodes or one of the clients: leave share_percent out, " +
			"or client_share_percent"}
	case (p.Step == StepShare) != (p.share() != 0):
		return &Invalid{Place: "share_percent", Value: p.share(), Text: "the step share needs a share of the nodes or of the clients, and no other step has one: " +
			"write share_percent 10 or client_share_percent 10"}
	case p.Step == StepShare && (p.share() < 1 || p.share() >= partsAll):
		return &Invalid{Place: p.sharePlace(), Value: p.share(),
			Text: fmt.Sprintf("a share of %v is not between 0.01%% and 99.99%%: write 10, or the step all", p.share())}
	case p.DenialsMax != 0 && p.Step != StepShare:
		return &Invalid{Place: "denials_max_percent", Value: p.DenialsMax, Text: "only the step share has a bound of denials: leave it out"}
	case p.DenialsMax < 0 || p.DenialsMax >= partsAll:
		return &Invalid{Place: "denials_max_percent", Value: p.DenialsMax,
			Text: fmt.Sprintf("a bound of %v is not between 0.01%% and 99.99%%: write 5, or leave it out for none", p.DenialsMax)}
	case p.Step == StepWithdraw && p.Revision != 0:
		return &Invalid{Place: "revision", Value: p.Revision, Text: "withdraw takes back the candidate, whichever it is: leave the revision out"}
	}
	return p.checkPromotion()
}

// Publish.share returns the share of the nodes, or of the clients, that get the candidate. One of
// the two is 0.
func (p *Publish) share() Parts { return p.Share + p.ClientShare }

// sharePlace returns the name of the field that has the share.
func (p *Publish) sharePlace() string {
	if p.ClientShare != 0 {
		return "client_share_percent"
	}
	return "share_percent"
}

// Publish.next returns the publication after the step.
func (p *Publish) next(present *Policy, nowMicros int64) (next Publication, action string, err error) {
	revision := p.Revision
	if revision == 0 {
		revision = present.Head
	}
	// A generation is at least the current time, because a database that was restored from a backup
	// must not reuse a generation.
	next = Publication{Generation: max(present.Generation+1, nowMicros), Revision: present.Revision}
	switch {
	case p.Step == StepWithdraw && present.Candidate == 0:
		return next, "", &Invalid{Place: "step", Value: p.Step, Text: "there is no candidate to withdraw: nothing has changed"}
	case p.Step == StepWithdraw:
		return next, fmt.Sprintf("withdraw %d", present.Candidate), nil
	case p.Step == StepAll:
		next.Revision = revision
		return next, fmt.Sprintf("publish %d to all", revision), nil
	case present.Revision == 0:
		return next, "", &Invalid{Place: "step", Value: p.Step, Text: "no revision is in force yet, so nodes would have none beside the candidate: write the step all"}
	case present.Revision == revision:
		return next, "", &Invalid{Place: "revision", Value: revision, Text: fmt.Sprintf("revision %d is in force already: name another", revision)}
	}
	next.Candidate, next.Step, next.Share, next.ClientShare, next.DenialsMax = revision, p.Step, p.Share, p.ClientShare, p.DenialsMax
	next.PromoteAfterSeconds = p.PromoteAfterSeconds
	action = fmt.Sprintf("publish %d in shadow", revision)
	switch {
	case p.ClientShare != 0:
		action = fmt.Sprintf("publish %d to %v of the clients", revision, p.ClientShare)
	case p.Step == StepShare:
		action = fmt.Sprintf("publish %d to %v", revision, p.Share)
	}
	return next, action, nil
}

// Publish makes a step of a publication. It calls encode with the new publication before it
// commits the change. If encode returns an error, nothing is changed.
func (l *Ledger) Publish(ctx context.Context, actor Actor, name string, p Publish, reason string, encode func(*Publication, *Revision, *Revision) error) (
	after *Policy, err error,
) {
	return l.publishIf(ctx, actor, name, p, reason, encode, func(context.Context, *writeTx, *Policy) error { return nil })
}

// publishIf is like Publish, but fails if allowed(...) returns an error for the present
// publication.
func (l *Ledger) publishIf(ctx context.Context, actor Actor, name string, p Publish, reason string, encode func(*Publication, *Revision, *Revision) error,
	allowed func(context.Context, *writeTx, *Policy) error,
) (after *Policy, err error) {
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		present, err := policyOf(ctx, w.tx, name)
		switch {
		case err != nil:
			return err
		case present == nil:
			return ErrNone
		case p.Generation != 0 && p.Generation != present.Generation:
			return ErrChanged
		case p.Revision > present.Head || p.Revision < 0:
			return &Invalid{Place: "revision", Value: p.Revision, Text: fmt.Sprintf("policy %q has no revision %d: its latest is %d", name, p.Revision, present.Head)}
		}
		if err := allowed(ctx, w, present); err != nil {
			return err
		}
		next, action, err := p.next(present, w.now.UnixMicro())
		if err != nil {
			return err
		}
		now, candidate, err := contentsOf(ctx, w.tx, name, &next)
		if err != nil {
			return err
		}
		if err := encode(&next, now, candidate); err != nil {
			return err
		}
		if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatPolicy, Subject: name, Action: action, Reason: reason,
			Before: present.Publication.text(), After: next.text()}); err != nil {
			return err
		}
		after = &Policy{Policy: name, Head: present.Head, Publication: next}
		_, err = w.tx.Exec(ctx, "UPDATE policies SET generation = $2, revision = $3, candidate = nullif($4::bigint, 0), step = nullif($5, ''), "+
			"share = nullif($6::int, 0), share_of_clients = $7, denials_max = nullif($8::int, 0) WHERE policy = $1",
			name, next.Generation, next.Revision, next.Candidate, string(next.Step), int32(next.Share+next.ClientShare), next.ClientShare != 0, int32(next.DenialsMax))
		if err != nil {
			return err
		}
		return w.setPromotion(ctx, after)
	})
	return after, err
}

// Publication.text returns the form of a publication in the audit trail.
func (p *Publication) text() *string {
	text := jsonText(p)
	return &text
}

// contentsOf returns the revisions of a publication. The result candidate is nil if the publication
// has no candidate.
func contentsOf(ctx context.Context, q querier, name string, p *Publication) (now, candidate *Revision, err error) {
	if now, err = revisionOf(ctx, q, name, p.Revision); err != nil || p.Candidate == 0 {
		return now, nil, err
	}
	candidate, err = revisionOf(ctx, q, name, p.Candidate)
	return now, candidate, err
}

// Published returns a policy and the revisions of its publication. The revisions are nil before the
// first publication.
func (l *Ledger) Published(ctx context.Context, name string) (p *Policy, now, candidate *Revision, err error) {
	if p, err = l.Policy(ctx, name); err != nil || p.Revision == 0 {
		return p, nil, nil, err
	}
	now, candidate, err = contentsOf(ctx, l.Pool, name, &p.Publication)
	return p, now, candidate, err
}
