// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/throttle"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// verifyTime bounds the verification of the unknown tokens of one call, because the other requests
// of the call wait for it. A token that is not verified in that time counts as invalid until it is
// sent again.
const verifyTime = 8 * counter.Millisecond

// answerTime is [wire.AnswerTime]. It bounds the call of the store. The filter denies questions
// that the store has not answered by then. The other questions of the call keep their answers. If
// the store charges for a question after that time, the charge remains, as it does if a caller
// leaves.
const answerTime = time.Duration(wire.AnswerTime) * time.Microsecond

// call holds the state of one call of a filter or of the JSON API. It is reused for later calls.
type call struct {
	body      []byte
	held      int64 // the number of bytes of the body that are counted in Bridge.bodies
	reply     []byte
	questions []*question // all questions of this call and of earlier calls, for reuse
	used      int         // the number of questions of the current call
	taking    []counter.Call
	asked     []*question    // the questions for which the store is called
	leasing   bool           // whether a question leases or refunds units
	traced    bool           // whether the questions contain the traces of their requests
	loans     bool           // whether the filter reads [wire.StatusLoan]
	lates     bool           // whether the filter reads [wire.StatusLate]
	left      counter.Micros // the remaining part of verifyTime
}

// Bounds of the memory that a call keeps for reuse: the size of its buffers, and the number of its
// questions of about 4 KB each.
const (
	callBytesKept = 64 << 10
	questionsKept = 64
)

var (
	contentTypeWire = []string{wire.ContentType}
	leasingUsual    = []string{wire.LeasingUsual}
	leasingExact    = []string{wire.LeasingExact}
	leasingHeader   = http.CanonicalHeaderKey(wire.LeasingHeader)
	loansHeader     = http.CanonicalHeaderKey(wire.LoansHeader)
)

// serveCheck answers a call. Filters use the compact form, other callers use JSON. A call counts
// towards CallsMax while it is decided, but not while it is received or its reply is sent.
func (b *Bridge) serveCheck(w http.ResponseWriter, r *http.Request) {
	c := b.calls.Get().(*call)
	defer b.release(c)
	if err := b.receive(c, http.MaxBytesReader(w, r.Body, wire.CallBytesMax)); err != nil {
		b.reject(w, r, err)
		return
	}
	if r.Header.Get("Content-Type") != wire.ContentType {
		b.serveJSON(w, r, c)
		return
	}
	if err := b.serveFilter(w, r, c); err != nil {
		b.reject(w, r, err)
		return
	}
	header := w.Header()
	header["Content-Type"] = contentTypeWire
	b.askForDenials(header)
	if header[leasingHeader] = leasingUsual; b.options.Forgetful {
		header[leasingHeader] = leasingExact
	}
	header["Content-Length"] = []string{strconv.Itoa(len(c.reply))}
	_, _ = w.Write(c.reply) // the caller may have left
}

// serveFilter decides a filter's questions and builds the reply.
func (b *Bridge) serveFilter(w http.ResponseWriter, r *http.Request, c *call) error {
	if !b.enter() {
		return errFull
	}
	defer b.leave()
	v, err := b.read(c)
	if err != nil {
		return malformedError{err}
	}
	announced := r.Header[loansHeader]
	c.loans, c.lates = len(announced) > 0, len(announced) > 0 && announced[0] == wire.ReadsLate
	if !b.answer(w, r, c, v) {
		return errGone
	}
	b.metrics.answered.Inc()
	b.metrics.questions.Observe(float64(c.used))
	b.reply(c)
	return nil
}

// receiptBytesMax is the greatest total size of the receipts of a reply. The other half of a
// reply is for decisions: 256 answers of 64 results have about 400 KB.
const receiptBytesMax = wire.CallBytesMax / 2

// receiptShare is the size up to which a receipt is never omitted. Clients determine the length of
// keys in their receipts, so large receipts of one client must not displace the receipts of others.
const receiptShare = receiptBytesMax / wire.ItemsMax

// Bridge.dropReceipts omits receipts that exceed their share if there is no room for them.
func (b *Bridge) dropReceipts(questions []*question) {
	room := receiptBytesMax
	for _, q := range questions {
		room -= min(len(q.answer.Receipt), receiptShare)
	}
	for _, q := range questions {
		more := len(q.answer.Receipt) - receiptShare
		switch {
		case more <= 0:
		case more <= room:
			room -= more
		default:
			room += receiptShare
			q.answer.Receipt = ""
			b.metrics.settled(settle.Dropped)
		}
	}
}

// Bridge.reply writes the answers. If receipts would make the reply larger than a filter reads,
// reply omits some of them, and the units that their requests have reserved stay charged. A
// decision is never omitted in favor of a receipt, because on_error would then decide a denied
// request. If decisions alone make the reply too large, the remaining questions are answered
// as late. No realistic policy has so many limits.
func (b *Bridge) reply(c *call) {
	begin, answer := wire.AppendReply, wire.AppendAnswer
	if c.leasing {
		begin, answer = wire.AppendLeasingReply, wire.AppendLeasingAnswer
	}
	c.reply = begin(c.reply[:0])
	b.dropReceipts(c.questions[:c.used])
	for i, q := range c.questions[:c.used] {
		before := len(c.reply)
		c.reply = answer(c.reply, &q.answer)
		if len(c.reply)+c.used-1-i > wire.CallBytesMax {
			status := q.late()
			if q.item.Kind == wire.KindSettle {
				status = wire.StatusInvalid // the filter must not repeat what was settled
			}
			q.answer = wire.Answer{Status: status, Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
			c.reply = answer(c.reply[:before], &q.answer)
		}
		b.metrics.statuses[q.answer.Status].Inc()
	}
}

// Bridge.release ends a call. It keeps buffers for reuse unless they are large.
func (b *Bridge) release(c *call) {
	for _, q := range c.questions[:c.used] {
		q.release()
	}
	c.used = 0
	if len(c.questions) > questionsKept {
		clear(c.questions[questionsKept:])
		c.questions = c.questions[:questionsKept]
	}
	if c.held > 0 {
		b.bodies.Add(-c.held)
		c.held = 0
	}
	if c.body = c.body[:0]; cap(c.body) > callBytesKept {
		c.body = nil
	}
	if cap(c.reply) > callBytesKept {
		c.reply = nil
	}
	b.calls.Put(c)
}

// call.next returns the next question of the call that is not in use. It adds one if there is none.
func (c *call) next() *question {
	if c.used == len(c.questions) {
		c.questions = append(c.questions, new(question))
	}
	return c.questions[c.used]
}

// Bridge.read reads the questions of a call. It returns the version of the policy that the call
// names, or nil if that version is unknown.
func (b *Bridge) read(c *call) (*live.Version, error) {
	reader, err := wire.ReadCall(c.body)
	if err != nil {
		return nil, err
	}
	c.leasing = reader.Leasing
	version, traced := strings.CutSuffix(reader.Version, tracedSuffix)
	c.traced = traced
	for {
		ok, err := reader.Next(&c.next().item)
		if err != nil {
			return nil, err
		}
		if !ok {
			return b.policy.Of(version), nil
		}
		c.used++
	}
}

// Bridge.answer answers all questions of a call. It returns false if the caller has disconnected in
// the meantime.
func (b *Bridge) answer(w http.ResponseWriter, r *http.Request, c *call, v *live.Version) bool {
	defer b.asking.Add(int64(-c.used))
	c.left = verifyTime
	begun := time.Now()
	now, busy := micros(begun), b.asking.Add(int64(c.used)) > questionsMax
	for _, q := range c.questions[:c.used] {
		q.reset(b, v, now)
		q.loans, q.lates = c.loans, c.lates
		switch {
		case q.item.Kind == wire.KindSettle:
			q.settle()
		case q.item.Kind == wire.KindRefund:
			q.takeBack()
		case q.item.Kind == wire.KindDenied:
			q.reportDenials(&c.left, c.traced)
		case busy:
			q.answer.Status = wire.StatusBusy
		case q.item.Kind == wire.KindWait && c.used > 1:
			q.answer.Status = wire.StatusInvalid // because waiting would delay the other answers
		default:
			q.begin(&c.left, c.traced)
		}
	}
	b.resolve(r.Context(), c.questions[:c.used])
	for _, q := range c.questions[:c.used] {
		q.prepare()
	}
	if q := c.questions[0]; c.used == 1 && q.item.Kind == wire.KindWait && len(q.first) > 0 &&
		(len(q.throttled) > 0 || b.enforcer.MayAwait(&q.plan)) {
		return b.wait(w, r, q)
	}
	b.take(c, begun.Add(answerTime))
	return true
}

// Bridge.take calls the store for all questions of a call together, and decides them. It
// returns no later than the deadline. A store in memory needs no deadline, because it does not
// wait.
func (b *Bridge) take(c *call, deadline time.Time) {
	c.taking, c.asked = c.taking[:0], c.asked[:0]
	for _, q := range c.questions[:c.used] {
		switch {
		case len(q.first) > 0 && q.postpones(false):
			q.first, q.answer.Status = nil, wire.StatusLoan
		case len(q.first) > 0:
			c.taking = append(c.taking, counter.Call{Checks: q.first, Results: q.results()})
			c.asked = append(c.asked, q)
		case q.item.Kind != wire.KindSettle && q.item.Kind < wire.KindFetch && q.answer.Status == wire.StatusOK:
			q.conclude(nil)
		}
	}
	if len(c.taking) == 0 {
		return
	}
	ctx := context.Background()
	if b.options.Shared {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	b.enforcer.TakeAll(ctx, c.taking, c)
	for i, q := range c.asked {
		if len(q.first) > 0 { // the questions that did not panic
			q.conclude(c.taking[i].Err)
		}
	}
	clear(c.taking)
}

// Panicked implements [enforce.Batch].
func (c *call) Panicked(i int, reason any) { c.asked[i].panicked(reason) }

// Bridge.wait answers a question when its request is admitted or finally denied. It returns
// false if the caller has disconnected in the meantime. A waiting call does not count towards
// CallsMax: it uses memory but no processor.
func (b *Bridge) wait(w http.ResponseWriter, r *http.Request, q *question) (answered bool) {
	b.under.Add(-1)
	b.asking.Add(-1)
	defer b.under.Add(1)
	defer b.asking.Add(1)
	ctx, deadlines := r.Context(), http.NewResponseController(w)
	_ = deadlines.SetWriteDeadline(time.Time{}) // a writer without deadlines needs no change
	defer func() { _ = deadlines.SetWriteDeadline(time.Now().Add(ReplyTime)) }()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ending, cancel)()
	defer q.rescue()
	answered = true // a panic is answered too
	if len(q.throttled) == 0 {
		return q.waitForLoan(ctx, waiting)
	}
	d, end := q.wait.Decide(waiting, b.lines, &q.plan, q.throttled, q)
	if end != throttle.EndNone {
		b.metrics.Waits.WithLabelValues(string(end)).Inc()
	}
	switch {
	case end == throttle.EndGone && ctx.Err() != nil:
		return false
	case end == throttle.EndGone:
		q.answer.Status = wire.StatusUnavailable // in this case the bridge is stopping
	case q.answer.Status == wire.StatusOK:
		q.fillDecided(&d)
	}
	return true
}
