// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/settle"
	"github.com/penstock/penstock/internal/wire"
)

// job is what remains to be done about one request, on its way to the store.
type job struct {
	core.Settlement
	due       []core.Check
	condition []core.Check // that nobody else has given back what this one gives back; none: nobody else could
	key       []byte       // of the condition
}

var jobs = sync.Pool{New: func() any { return new(job) }}

// Due implements [settle.Job].
func (j *job) Due() []core.Check { return j.due }

// Condition implements [settle.Conditional].
func (j *job) Condition() []core.Check { return j.condition }

// Release implements [settle.Job].
func (j *job) Release() {
	j.due, j.condition = nil, j.condition[:0]
	jobs.Put(j)
}

var _ settle.Conditional = (*job)(nil)

// settle redeems a receipt: the answer says whether it is one, and not what the store will make of it. A receipt of a
// policy that is not known any more is not redeemed: what was reserved stands.
func (q *question) settle() {
	defer q.rescue()
	b := q.bridge
	opened, err := b.sealer.open(q.item.Settle.Receipt, receiptForm, q.now)
	if err != nil {
		q.refuse(err.Error(), wire.StatusInvalid)
		return
	}
	e := b.editions.of(opened.version)
	if e == nil {
		q.refuse("unknown_version", wire.StatusUnknown)
		return
	}
	j := jobs.Get().(*job)
	switch {
	case core.ReadSettlement(&j.Settlement, e.ruleset, opened.plain) != nil:
		err = errForeign
	case !b.sealer.redeem(&opened, q.now):
		err = errRedeemed
	}
	if err != nil {
		j.Release()
		q.refuse(err.Error(), wire.StatusInvalid)
		return
	}
	var unreadable int
	j.due, unreadable = j.Checks(&response{&q.item.Settle})
	b.metrics.Unreadable.Add(float64(unreadable))
	if len(j.due) == 0 {
		j.Release()
		return
	}
	if b.receiptsRoam {
		j.onlyOnce(&opened)
	}
	if !b.settling.Send(j) {
		q.answer.Status = wire.StatusBusy
	}
}

// onlyOnce lets the job be done only if no other bridge has done it, where it gives something back. What is remembered here
// is not known there: the store counts each such receipt, one in as long as it can be redeemed. Charging more twice would
// only be to the disadvantage of whom the caller may charge anyway, and needs no such counter.
func (j *job) onlyOnce(o *opened) {
	back := slices.IndexFunc(j.due, func(c core.Check) bool { return c.Op == core.OpGiveBack })
	if back < 0 {
		return
	}
	// rl1:NAMESPACE:~receipt:{PROCESS-NUMBER}:720s:tb, in the namespace of what is given back
	key := j.due[back].Key
	space := bytes.IndexByte(key, ':') + 1
	space += bytes.IndexByte(key[space:], ':') + 1
	j.key = append(append(j.key[:0], key[:space]...), "~receipt:"...)
	scopeLen := len(j.key)
	j.key = append(hex.AppendEncode(append(j.key, '{'), o.id.process[:]), '-')
	j.key = append(strconv.AppendUint(j.key, o.id.number, 10), "}:720s:tb"...)
	j.condition = append(j.condition[:0], core.Check{Key: j.key, ScopeLen: scopeLen, Limit: &onceInTime, Op: core.OpTake, Cost: 1})
}

func (q *question) refuse(why string, status wire.Status) {
	q.bridge.metrics.Settlements.WithLabelValues(why).Inc()
	q.answer.Status = status
}

// response is what a filter tells of a response.
type response struct{ *wire.Settle }

// Status implements [core.Answer].
func (r *response) Status() int { return r.Settle.Status }

// Header implements [core.Answer].
func (r *response) Header(name string) (string, bool) { return field(r.Headers, name) }

// JSON implements [core.Answer].
func (r *response) JSON(path string) (string, bool) { return field(r.Numbers, path) }

func field(fields []wire.Field, name string) (string, bool) {
	for _, f := range fields {
		if f.Name == name {
			return f.Text, true
		}
	}
	return "", false
}

var _ core.Answer = (*response)(nil)
