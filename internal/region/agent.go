// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math"

	"github.com/penstock/penstock/core/counter"
)

// WaitingMax is the greatest number of requests for one counter that wait for other regions.
// Further requests are denied.
const WaitingMax = 1024

// shortMax is a number of questions in a row. If a region still lacks units after so many
// questions, units count as scarce. The number is more than two, because a client that moves to
// another region needs two questions.
const shortMax = 3

// A Verdict is what an Agent decides when a request arrives.
type Verdict uint8

// The verdicts.
const (
	Deny Verdict = iota
	Admit
	Wait // the request is decided later, by an Output
)

// Settings describe the regions of a limit.
type Settings struct {
	Regions, Self, Home int
	RoundTrip           counter.Micros // the longest time to another region and back
}

// An Output collects what an agent wants done: messages to send, and requests that no longer wait.
// Unanswered requests could not be decided, because a region that may have units did not answer.
type Output struct {
	Messages                     []Message
	Admitted, Denied, Unanswered []uint64
}

// An Agent decides the requests for one counter in one region, and exchanges units with the agents
// of other regions. It has no clock, goroutine or I/O: the caller passes in the time and carries
// out the output. It is not safe for concurrent use.
type Agent struct {
	Share *Share
	Settings
	rate    rate
	waiting []waiter
	// has[i] is the share of the region i, as its last message reported it; known is the set of the
	// regions whose shares are not 0.
	has   [RegionsMax]int64
	known uint8

	question  uint64         // identifies the last Ask
	asking    bool           // whether some regions have yet to answer it
	pending   uint8          // the regions whose answers are missing
	answered  uint8          // the regions that have answered
	asked     counter.Micros // when the last Ask was sent
	exhausted counter.Micros // until then no region has units to give
	scarce    counter.Micros // until then units are scarce, because no region had any a short time ago
	gap       counter.Micros // the shortest time for which a region has said that it expects to have no units
	gained    bool           // whether an answer carried units
	short     int            // consecutive questions whose answers left the region short of units
	repeated  [RegionsMax]counter.Micros
	closed    [RegionsMax]uint64 // the serial numbers that each region has confirmed
}

type waiter struct {
	id   uint64
	cost int64
}

// NewAgent returns an agent that knows nothing but its share.
func NewAgent(share *Share, settings Settings, now counter.Micros) *Agent {
	a := &Agent{Share: share, Settings: settings, question: uint64(now), gap: counter.Never}
	a.rate.span = max(counter.Second, 4*settings.RoundTrip, share.whole.Window()/20)
	return a
}

// Arrive decides a request, or begins to wait for other regions. The argument id identifies the
// request in an Output.
func (a *Agent) Arrive(now counter.Micros, id uint64, cost int64, out *Output) Verdict {
	a.rate.add(now, cost)
	if len(a.waiting) == 0 && !a.Share.Take(now, cost).Denied {
		a.foresee(now, out)
		return Admit
	}
	switch {
	case a.Share.units == a.Share.whole.Capacity(), cost > a.Share.whole.Capacity():
		return Deny // no other region has anything to give
	case now < a.exhausted, len(a.waiting) >= WaitingMax:
		return Deny
	case a.asking && now < a.scarce:
		return Deny // one request waits to learn whether units are still scarce, other requests do not
	}
	a.waiting = append(a.waiting, waiter{id: id, cost: cost})
	if !a.asking {
		a.ask(now, out)
	}
	return Wait
}

// Agent.foresee asks for units before requests must wait for them.
func (a *Agent) foresee(now counter.Micros, out *Output) {
	if a.asking || now < a.exhausted {
		return
	}
	if a.Share.units == a.Share.whole.Capacity() || a.others() == 0 {
		return
	}
	if a.Share.Spare(now) < a.horizon(now) {
		a.ask(now, out)
	}
}

// Agent.horizon returns how many units requests will need before a question that is asked now is
// answered. It allows for one and a half round trips, and adds twice the standard deviation of the
// number.
func (a *Agent) horizon(now counter.Micros) int64 {
	units := a.rate.now(now) * 1.5 * float64(a.RoundTrip) / float64(counter.Second)
	return int64(units + 2*math.Sqrt(units))
}

// Agent.others returns the regions to ask: the home, and those that are known to have units. The
// home itself asks every region if it does not know where all units are.
func (a *Agent) others() uint8 {
	set := a.known | 1<<a.Home
	if a.Self == a.Home {
		units := a.Share.units + a.Share.Moving()
		for _, has := range a.has {
			units += has
		}
		if units < a.Share.whole.Capacity() {
			set = 1<<a.Regions - 1
		}
	}
	return set &^ (1 << a.Self)
}

func (a *Agent) ask(now counter.Micros, out *Output) {
	set := a.others()
	if set == 0 {
		a.deny(now, out)
		return
	}
	a.question++
	a.asking, a.asked, a.pending, a.answered = true, now, set, 0
	a.gap, a.gained = counter.Never, false
	need := a.needed() - a.Share.Spare(now)
	for to := range a.Regions {
		if set&(1<<to) == 0 {
			continue
		}
		out.Messages = append(out.Messages, a.message(now, Message{Kind: Ask, To: to,
			Question: a.question, Need: max(1, need), Asked: set}))
	}
}

func (a *Agent) needed() (units int64) {
	for i := range a.waiting {
		units += a.waiting[i].cost
	}
	return units
}

// Agent.message adds to a message the information about its sender that every message contains.
func (a *Agent) message(now counter.Micros, m Message) Message {
	m.From, m.Rate, m.Young, m.Has = a.Self, a.rate.now(now), a.rate.young(now), a.Share.units
	return m
}

// Receive handles a message.
func (a *Agent) Receive(now counter.Micros, m Message, out *Output) {
	a.learn(m.From, m.Has)
	switch m.Kind {
	case Ask:
		a.answer(now, m, out)
	case Gift:
		reply := Message{Kind: Ack, To: m.From, Serial: m.Transfer.Serial}
		if !a.Share.Receive(now, m.Transfer) {
			reply.Kind, reply.Floor = Stale, a.Share.forgotten[m.From]
		}
		out.Messages = append(out.Messages, a.message(now, reply))
		// A repeated transfer brings nothing. But its sender repeated it instead of answering the
		// question, so the sender may have units.
		a.gained = a.gained || m.Question == a.question
		a.hear(now, m, out)
	case None:
		a.gap = min(a.gap, m.Wait)
		a.hear(now, m, out)
	case Ack, Close:
		a.Share.Acknowledged(m.From, m.Serial)
		if m.Kind == Close {
			closed := Message{Kind: Closed, To: m.From, Serial: m.Serial}
			out.Messages = append(out.Messages, a.message(now, closed))
		}
	case Closed:
		a.closed[m.From] = max(a.closed[m.From], m.Serial)
	case Stale:
		if t, ok := a.Share.Renumber(m.From, m.Serial, m.Floor); ok {
			a.give(now, t, out)
		}
	}
}

// Agent.give sends a transfer that no region asked for, or that must be repeated.
func (a *Agent) give(now counter.Micros, t Transfer, out *Output) {
	a.repeated[t.To] = now
	out.Messages = append(out.Messages, a.message(now, Message{Kind: Gift, To: t.To, Transfer: t}))
}

func (a *Agent) learn(from int, has int64) {
	a.has[from] = has
	if has > 0 {
		a.known |= 1 << from
	} else {
		a.known &^= 1 << from
	}
}

// Agent.answer gives units to the region that asks, or tells it that this region has no units to
// give. The home forwards the question to the regions that may have units and were not asked.
func (a *Agent) answer(now counter.Micros, m Message, out *Output) {
	asked := m.Asked
	if a.Self == a.Home {
		asked |= a.others() &^ (1 << m.From)
		for to := range a.Regions {
			if bit := uint8(1) << to; asked&bit == 0 || m.Asked&bit != 0 || to == a.Self {
				continue
			}
			forwarded := m
			forwarded.To, forwarded.Asked = to, asked
			out.Messages = append(out.Messages, forwarded)
		}
	}
	reply := Message{Kind: None, To: m.From, Question: m.Question, Asked: asked, Wait: a.nothingFor()}
	if t, ok := a.Share.Give(now, m.From, a.gift(now, m)); ok {
		reply.Kind, reply.Transfer = Gift, t
		a.repeated[m.From] = now
		a.learn(m.From, m.Has+t.Units)
	} else if t := a.Share.Unacknowledged(m.From); t.Units > 0 {
		reply.Kind, reply.Transfer = Gift, t // the earlier message with this transfer might have been lost
	}
	out.Messages = append(out.Messages, a.message(now, reply))
}

// Agent.gift returns how many units to give: a part of the spare ones in proportion to the rates of
// the two regions, but at least as many as the other region's waiting requests need. A region that
// is short of units itself gives only what makes the two shares proportional to the rates.
// Otherwise two regions that are both short would pass the same units back and forth.
func (a *Agent) gift(now counter.Micros, m Message) int64 {
	if len(a.waiting) > 0 {
		return 0
	}
	spare, own := a.Share.Spare(now), a.rate.now(now)
	part := 1.0
	if sum := own + m.Rate; sum > 0 {
		part = m.Rate / sum
	}
	if short := spare < a.horizon(now); short {
		fair := int64(part*float64(a.Share.units+m.Has)) - m.Has
		if fair < a.Share.units/20 {
			return 0
		}
		return fair
	}
	if m.Young {
		part = max(part, 0.5)
	}
	return max(m.Need, int64(part*float64(spare)))
}

// nothingFor returns how long this region expects to have no units to give. In a fixed window,
// units become available before its end only by refunds, so a question every twentieth of the
// window is enough.
func (a *Agent) nothingFor() counter.Micros {
	window := a.Share.whole.Window()
	most := max(counter.Second, 5*a.RoundTrip, window/20)
	if a.Share.whole.Algorithm() == counter.FixedWindow {
		return min(most, window-a.Share.clock%window)
	}
	return min(most, max(a.RoundTrip, window/50))
}

// Agent.hear handles an answer to the last question.
func (a *Agent) hear(now counter.Micros, m Message, out *Output) {
	if a.asking && m.Question == a.question {
		a.answered |= 1 << m.From
		a.pending = (a.pending | m.Asked) &^ a.answered &^ (1 << a.Self)
		a.asking = a.pending != 0
	}
	a.serve(now, out)
	if a.asking {
		return
	}
	if a.short++; a.Share.Spare(now) >= a.horizon(now) {
		a.short = 0
	} else if a.short >= shortMax {
		a.scarce = now + max(2*counter.Second, 10*a.RoundTrip)
	}
	if len(a.waiting) > 0 {
		a.settle(now, out)
	}
}

// Agent.serve admits waiting requests in their order, until the share has too few units for the
// next one.
func (a *Agent) serve(now counter.Micros, out *Output) {
	served := 0
	for _, w := range a.waiting {
		if a.Share.Take(now, w.cost).Denied {
			break
		}
		out.Admitted = append(out.Admitted, w.id)
		served++
	}
	a.waiting = a.waiting[served:]
}

// Agent.settle is called when all regions have answered. It denies the waiting requests. But if a
// region has given units, the agent asks again: the units did not suffice because more requests
// arrived meanwhile.
func (a *Agent) settle(now counter.Micros, out *Output) {
	if a.gained {
		a.ask(now, out)
		return
	}
	a.deny(now, out)
}

// Agent.deny denies the waiting requests, and those that arrive until other regions may have units.
func (a *Agent) deny(now counter.Micros, out *Output) {
	for _, w := range a.waiting {
		out.Denied = append(out.Denied, w.id)
	}
	a.waiting = a.waiting[:0]
	a.exhausted = now + min(a.gap, a.nothingFor())
	a.scarce = max(a.scarce, a.exhausted+max(2*counter.Second, 10*a.RoundTrip))
}

// Tick repeats what was not answered, and ends the wait of requests that have waited too long. The
// caller calls it about every half round trip while Busy reports true.
func (a *Agent) Tick(now counter.Micros, out *Output) {
	for to := range a.Regions {
		if t := a.Share.Unacknowledged(to); t.Units > 0 && now-a.repeated[to] >= 2*a.RoundTrip {
			a.give(now, t, out)
		}
	}
	if !a.asking || now-a.asked < 2*a.RoundTrip {
		return
	}
	a.asking = false
	for _, w := range a.waiting {
		out.Unanswered = append(out.Unanswered, w.id)
	}
	a.waiting = a.waiting[:0]
	// A region that does not answer must not make every request wait.
	a.exhausted = now + max(counter.Second, 5*a.RoundTrip)
}

// Busy reports whether Tick has something to do later.
func (a *Agent) Busy() bool { return a.asking || a.Share.Moving() > 0 }

// Sweep prepares to forget a counter without requests. The caller calls it about once per window.
// Sweep returns the counter's units to their home, and then asks the other regions to confirm what
// was applied. After Sweep has reported true, the caller may replace the share by a new one made
// from the values that Sweep returns.
func (a *Agent) Sweep(now counter.Micros, out *Output) (Forgotten, bool) {
	idle := max(2*a.Share.whole.Window(), 10*a.RoundTrip)
	if a.asking || now-a.rate.at < idle {
		return Forgotten{}, false
	}
	if a.Self != a.Home {
		if t, ok := a.Share.Give(now, a.Home, a.Share.Spare(now)); ok {
			a.give(now, t, out)
			return Forgotten{}, false
		}
	}
	if forgotten, ok := a.Share.Forget(now, a.Home, a.closed); ok {
		return forgotten, true
	}
	for to := range a.Regions {
		if serial := a.Share.Applied(to); serial > a.closed[to] {
			out.Messages = append(out.Messages, a.message(now, Message{Kind: Close, To: to, Serial: serial}))
		}
	}
	return Forgotten{}, false
}
