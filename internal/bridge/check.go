// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/settle"
	"github.com/penstock/penstock/internal/throttle"
	"github.com/penstock/penstock/internal/wire"
)

// verifyTime is how long the tokens of one call may take together that nobody has seen before: those who ride with them wait
// for so long. A token beyond it counts as one that does not verify, until it is shown again.
const verifyTime = 8 * core.Millisecond

// call is a call under way. It is used again.
type call struct {
	body      []byte
	held      int64 // bytes of body that count as those of all calls
	reply     []byte
	questions []*question // all that this call ever had
	used      int         // of them, by the call at present
	taking    []core.Call
	asked     []*question // of taking
	leasing   bool        // it is about leases
	left      core.Micros // of verifyTime
}

// What is kept of a call for the next one: buffers of so many bytes, and so many questions of some 4 KB.
const (
	callBytesKept = 64 << 10
	questionsKept = 64
)

var (
	contentTypeWire = []string{wire.ContentType}
	leasingUsual    = []string{wire.LeasingUsual}
	leasingExact    = []string{wire.LeasingExact}
	leasingHeader   = http.CanonicalHeaderKey(wire.LeasingHeader)
)

// serveCheck answers a call: of filters in the compact form, of people in JSON. A call is under way while it is decided, and
// not while it comes or its reply goes.
func (b *Bridge) serveCheck(w http.ResponseWriter, r *http.Request) {
	c := b.calls.Get().(*call)
	defer b.release(c)
	if err := b.receive(c, http.MaxBytesReader(w, r.Body, wire.CallBytesMax)); err != nil {
		b.refuse(w, r, err)
		return
	}
	if r.Header.Get("Content-Type") != wire.ContentType {
		b.servePeople(w, r, c)
		return
	}
	if err := b.serveFilter(w, r, c); err != nil {
		b.refuse(w, r, err)
		return
	}
	header := w.Header()
	header["Content-Type"] = contentTypeWire
	if header[leasingHeader] = leasingUsual; b.options.Forgetful {
		header[leasingHeader] = leasingExact
	}
	header["Content-Length"] = []string{strconv.Itoa(len(c.reply))}
	_, _ = w.Write(c.reply) // whoever is gone needs none
}

// serveFilter decides the questions of a filter, and makes the reply.
func (b *Bridge) serveFilter(w http.ResponseWriter, r *http.Request, c *call) error {
	if !b.enter() {
		return errFull
	}
	defer b.leave()
	e, err := b.read(c)
	if err != nil {
		return malformedError{err}
	}
	if !b.answer(w, r, c, e) {
		return errGone
	}
	b.metrics.answered.Inc()
	b.metrics.questions.Observe(float64(c.used))
	b.reply(c)
	return nil
}

// receiptBytesMax is how large a reply may be for another receipt to go with it. The other half is room for what decides: 256
// answers of 64 results have some 400 KB.
const receiptBytesMax = wire.CallBytesMax / 2

// reply writes the answers. Where receipts would make the reply larger than a filter reads, some are left out: what those
// requests have reserved stands as the charge. A decision is never left out for that: a request that was refused would go on
// by on_error. One that would make the reply too large even so is that the bridge has too much to do: no policy that anybody
// wrote has so many limits.
func (b *Bridge) reply(c *call) {
	begin, answer := wire.AppendReply, wire.AppendAnswer
	if c.leasing {
		begin, answer = wire.AppendLeasingReply, wire.AppendLeasingAnswer
	}
	c.reply = begin(c.reply[:0])
	for i, q := range c.questions[:c.used] {
		before := len(c.reply)
		if q.answer.Receipt != "" && before+len(q.answer.Receipt) > receiptBytesMax {
			q.answer.Receipt = ""
			b.metrics.settled(settle.Dropped)
		}
		c.reply = answer(c.reply, &q.answer)
		if len(c.reply)+c.used-1-i > wire.CallBytesMax {
			q.answer = wire.Answer{Status: wire.StatusBusy, Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
			c.reply = answer(c.reply[:before], &q.answer)
		}
		b.metrics.statuses[q.answer.Status].Inc()
	}
}

// release ends a call. Its buffers are used again, unless they have become large.
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

// next returns a question of the call that is not used yet.
func (c *call) next() *question {
	if c.used == len(c.questions) {
		c.questions = append(c.questions, new(question))
	}
	return c.questions[c.used]
}

// read reads the questions of a call, and returns the edition of the policy that they are about; nil if it is not known.
func (b *Bridge) read(c *call) (*edition, error) {
	reader, err := wire.ReadCall(c.body)
	if err != nil {
		return nil, err
	}
	c.leasing = reader.Leasing
	for {
		ok, err := reader.Next(&c.next().item)
		if err != nil {
			return nil, err
		}
		if !ok {
			return b.editions.of(reader.Version), nil
		}
		c.used++
	}
}

// answer answers all questions of a call. It reports false if the caller has left meanwhile.
func (b *Bridge) answer(w http.ResponseWriter, r *http.Request, c *call, e *edition) bool {
	defer b.asking.Add(int64(-c.used))
	c.left = verifyTime
	now, busy := micros(time.Now()), b.asking.Add(int64(c.used)) > questionsMax
	for _, q := range c.questions[:c.used] {
		q.reset(b, e, now)
		switch {
		case q.item.Kind == wire.KindSettle:
			q.settle()
		case q.item.Kind == wire.KindReturn:
			q.takeBack()
		case busy:
			q.answer.Status = wire.StatusBusy
		case q.item.Kind == wire.KindWait && c.used > 1:
			q.answer.Status = wire.StatusInvalid // it would hold back the answers of others
		default:
			q.begin(&c.left)
		}
	}
	if c.used == 1 && c.questions[0].item.Kind == wire.KindWait && len(c.questions[0].throttled) > 0 {
		return b.wait(w, r, c.questions[0])
	}
	b.take(c)
	return true
}

// take asks the store everything that the questions of a call need, at once, and decides them.
func (b *Bridge) take(c *call) {
	c.taking, c.asked = c.taking[:0], c.asked[:0]
	for _, q := range c.questions[:c.used] {
		switch {
		case len(q.first) > 0:
			c.taking = append(c.taking, core.Call{Checks: q.first, Results: q.results()})
			c.asked = append(c.asked, q)
		case q.item.Kind != wire.KindSettle && q.item.Kind < wire.KindFetch && q.answer.Status == wire.StatusOK:
			q.conclude(nil)
		}
	}
	if len(c.taking) == 0 {
		return
	}
	// A caller that leaves does not end the check, which ends by itself at the store's deadline: a context that can end
	// costs each call more.
	start := time.Now()
	if b.batcher != nil && len(c.taking) > 1 {
		b.batcher.TakeAll(context.Background(), c.taking)
	} else {
		for i, q := range c.asked {
			q.take(&c.taking[i])
		}
	}
	b.metrics.CheckSeconds.Observe(time.Since(start).Seconds())
	for i, q := range c.asked {
		if len(q.first) > 0 { // or it has panicked
			q.conclude(c.taking[i].Err)
		}
	}
	clear(c.taking)
}

// wait answers a question once its request is admitted, or cannot be. It reports false if the caller has left meanwhile.
// A call that waits is not one of those under way: they hold a processor, it holds memory.
func (b *Bridge) wait(w http.ResponseWriter, r *http.Request, q *question) (answered bool) {
	b.under.Add(-1)
	b.asking.Add(-1)
	defer b.under.Add(1)
	defer b.asking.Add(1)
	ctx, deadlines := r.Context(), http.NewResponseController(w)
	_ = deadlines.SetWriteDeadline(time.Time{}) // a response that knows no deadlines has none
	defer func() { _ = deadlines.SetWriteDeadline(time.Now().Add(ReplyTime)) }()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ending, cancel)()
	defer q.rescue()
	answered = true // also if it panics: that is an answer of its own
	d, end := q.wait.Decide(waiting, b.lines, &q.plan, q.throttled, q)
	if end != throttle.EndNone {
		b.metrics.Waits.WithLabelValues(string(end)).Inc()
	}
	switch {
	case end == throttle.EndGone && ctx.Err() != nil:
		return false
	case end == throttle.EndGone:
		q.answer.Status = wire.StatusUnavailable // the bridge stops
	case q.answer.Status == wire.StatusOK:
		q.complete(&d)
	}
	return true
}
