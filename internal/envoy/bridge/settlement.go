// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// job is the remaining work for one request, queued for the store.
type job struct {
	core.Settlement
	due       []counter.Check
	condition []counter.Check // ensures that no other bridge has made this refund; empty if no other bridge can make it
	key       []byte          // the key of the condition's counter
	usage     corrections
}

var jobs = sync.Pool{New: func() any { return new(job) }}

// keySeed is the random key of the hash of counters' keys in this process.
var keySeed = maphash.MakeSeed()

// Source implements [settle.Job]. A receipt does not contain the address of the client, so the
// counters of the job stand for it: requests of one client have the same counters.
func (j *job) Source() uint32 {
	var hash maphash.Hash
	hash.SetSeed(keySeed)
	for i := range j.due {
		_, _ = hash.Write(j.due[i].Key) // never fails
	}
	return uint32(hash.Sum64()) | 1 // 0 means unknown
}

// Due implements [settle.Job].
func (j *job) Due() []counter.Check { return j.due }

// Condition implements [settle.Conditional].
func (j *job) Condition() []counter.Check { return j.condition }

// Release implements [settle.Job].
func (j *job) Release() {
	j.due, j.condition = nil, j.condition[:0]
	j.usage = corrections{units: j.usage.units[:0]}
	jobs.Put(j)
}

var _ settle.Conditional = (*job)(nil)

// question.settle redeems a receipt. The answer reports whether the receipt is valid; the store
// is called later. A receipt of an unknown policy is not redeemed, and the reserved units stay
// charged. An expired receipt refunds nothing, but a further charge is made: a client decides how
// long its response takes, and would otherwise pay only the estimate.
func (q *question) settle() {
	defer q.rescue()
	b := q.bridge
	opened, err := b.sealer.open(q.item.Settle.Receipt, receiptForm, q.now)
	expired := errors.Is(err, errExpired)
	if err != nil && !expired {
		q.reject(err.Error(), wire.StatusInvalid)
		return
	}
	v := b.policy.Of(opened.version)
	if v == nil {
		q.reject("unknown_version", wire.StatusUnknown)
		return
	}
	j := jobs.Get().(*job)
	switch {
	case core.ReadSettlement(&j.Settlement, v.Ruleset, opened.plain) != nil:
		err = errForeign
	case !expired && !b.sealer.redeem(&opened, q.now):
		err = errRedeemed
	}
	if err != nil && !errors.Is(err, errExpired) {
		j.Release()
		q.reject(err.Error(), wire.StatusInvalid)
		return
	}
	if opened.id.process == b.sealer.process {
		b.candidate.responded(opened.id.number, &q.item.Settle, &j.Settlement)
	}
	response := &settledResponse{&q.item.Settle}
	j.usage.enforcer, j.usage.client = b.enforcer, opened.client
	j.usage.units = b.enforcer.AppendCorrections(j.usage.units[:0], &j.Settlement, response)
	var unreadable int
	j.due, unreadable = j.Checks(response)
	all := len(j.due)
	if opened.id.process != b.sealer.process {
		j.due = slices.DeleteFunc(j.due, func(c counter.Check) bool { return c.IsLocalRefund() })
	}
	if expired {
		j.due = slices.DeleteFunc(j.due, func(c counter.Check) bool { return c.Op == counter.OpRefund })
	}
	if len(j.due) < all {
		j.usage.keepCharges()
	}
	if len(j.due) == 0 {
		b.metrics.Unreadable.Add(float64(unreadable))
		j.Release()
		if expired {
			q.reject(err.Error(), wire.StatusInvalid)
		}
		return
	}
	if b.receiptsRoam {
		j.onlyOnce(&opened)
	}
	if !b.settling.Send(j) {
		if !expired {
			b.sealer.redeemed.restore(opened.id)
		}
		q.answer.Status = wire.StatusBusy // the filter repeats it
		return
	}
	b.metrics.Unreadable.Add(float64(unreadable))
}

// onlyOnce makes a refund conditional: no other bridge may have made it before. Bridges do not
// share their memory of redeemed receipts. So the store has a counter for each receipt, with a
// limit of one unit in the time in which the receipt can be redeemed. A charge needs no such
// counter. A caller that repeats it gains nothing, because it can charge that client at any time.
func (j *job) onlyOnce(o *receiptContent) {
	back := slices.IndexFunc(j.due, func(c counter.Check) bool { return c.Op == counter.OpRefund && !c.IsLocalRefund() })
	if back < 0 {
		return
	}
	// rl1:NAMESPACE:~receipt:{PROCESS-NUMBER}:720s:tb, in the namespace of the refund
	key := j.due[back].Key
	space := bytes.IndexByte(key, ':') + 1
	space += bytes.IndexByte(key[space:], ':') + 1
	j.key = append(append(j.key[:0], key[:space]...), "~receipt:"...)
	scopeLen := len(j.key)
	j.key = append(hex.AppendEncode(append(j.key, '{'), o.id.process[:]), '-')
	j.key = append(strconv.AppendUint(j.key, o.id.number, 10), "}:720s:tb"...)
	j.condition = append(j.condition[:0], counter.Check{Key: j.key, ScopeLen: scopeLen, Limit: &onceInTime, Op: counter.OpTake, Cost: 1})
}

func (q *question) reject(why string, status wire.Status) {
	q.bridge.metrics.Settlements.WithLabelValues(why).Inc()
	q.answer.Status = status
}

// settledResponse implements [core.Answer] for a filter's report of a response.
type settledResponse struct{ *wire.Settle }

// Status implements [core.Answer].
func (r *settledResponse) Status() int { return r.Settle.Status }

// Header implements [core.Answer].
func (r *settledResponse) Header(name string) (string, bool) { return field(r.Headers, name) }

// JSON implements [core.Answer].
func (r *settledResponse) JSON(path string) (string, bool) { return field(r.Numbers, path) }

func field(fields []wire.Field, name string) (string, bool) {
	for _, f := range fields {
		if f.Name == name {
			return f.Text, true
		}
	}
	return "", false
}

var _ core.Answer = (*settledResponse)(nil)
