// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// verdictTTL is how long a filter may remember what a credential is worth: as long as a key that was taken back may go on
// showing its tier in a response header, for the bridge decides by what it knows itself.
const verdictTTL = 10 * core.Second

// question is one item of a call and its answer. It is used again.
type question struct {
	item   wire.Item
	answer wire.Answer
	plan   core.Plan
	attrs  attributes
	ways   []wire.Way
}

// ask answers the question by an edition of the policy; nil is one that is not known.
func (q *question) ask(ctx context.Context, b *Bridge, e *edition) {
	q.answer = wire.Answer{Results: q.answer.Results[:0]}
	switch {
	case e == nil:
		q.answer.Status = wire.StatusUnknown
		return
	case q.item.Kind != wire.KindAsk || len(q.item.Ask.Headers) != len(e.reads.Headers) || len(q.item.Ask.Attrs) != len(e.reads.Attrs):
		q.answer.Status = wire.StatusInvalid
		return
	}
	q.attrs = attributes{ask: &q.item.Ask, reads: &e.reads, now: core.Micros(time.Now().UnixMicro())}
	q.plan.Reset()
	q.plan.Add(e.ruleset, &q.attrs)
	if checks := q.plan.Checks(); len(checks) > 0 {
		if err := b.store.Take(ctx, checks, q.plan.Results()); err != nil {
			q.answer.Status = wire.StatusUnavailable
			if errors.Is(err, core.ErrInvalid) {
				q.answer.Status = wire.StatusInvalid
			}
			return
		}
	}
	q.answer.Results = append(q.answer.Results, q.plan.Results()...)
	q.verdict()
}

// verdict says what the credentials are worth, unless the filter knows.
func (q *question) verdict() {
	var known uint64
	q.ways = q.ways[:0]
	for _, c := range q.plan.Credentials() {
		way := wire.Way{Index: c.Method, State: c.State}
		if c.Identity != nil {
			way.Identity = *c.Identity
		}
		q.ways = append(q.ways, way)
		known += way.Fingerprint()
	}
	if known != q.item.Ask.Known {
		q.answer.Verdict = &wire.Verdict{TTLMicros: int64(verdictTTL), Ways: q.ways}
	}
}

// attributes is a request as a filter tells of it.
type attributes struct {
	ask   *wire.Ask
	reads *core.Reads
	now   core.Micros
}

func (a *attributes) Path() string       { return a.ask.Path }
func (a *attributes) Method() string     { return a.ask.Method }
func (a *attributes) Host() string       { return a.ask.Host }
func (a *attributes) Query() string      { return a.ask.Query }
func (a *attributes) Peer() netip.Addr   { return a.ask.Peer }
func (a *attributes) Remote() netip.Addr { return a.ask.Remote }
func (a *attributes) Now() core.Micros   { return a.now }

// Header implements [core.Attributes].
func (a *attributes) Header(name string) (string, bool) {
	return find(a.reads.Headers, a.ask.Headers, name)
}

// Attr implements [core.Attributes].
func (a *attributes) Attr(name string) (string, bool) {
	return find(a.reads.Attrs, a.ask.Attrs, name)
}

func find(names []string, values []wire.Value, name string) (string, bool) {
	i, ok := slices.BinarySearch(names, name)
	if !ok {
		return "", false
	}
	return values[i].Text, values[i].Given
}

var _ core.Attributes = (*attributes)(nil)
