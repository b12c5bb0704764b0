// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
)

// lendsMax is how many questions of other regions an agent answers at the same time. At most half
// of them may be of one source. The agent answers further questions with status 503.
const lendsMax = 256

// errCrowded reports that too many questions of one source are being answered.
var errCrowded = errors.New("too many questions of one address")

// questionBytesMax bounds the size of a question. In JSON, a key takes a third more bytes than it
// has.
const questionBytesMax = 8 << 10

// Handler returns the handler of messages from other regions. Its server must require client
// certificates. A certificate must name a region of [Options.Peers].
func (a *Agent) Handler() http.Handler {
	places := make(chan struct{}, lendsMax)
	mux := http.NewServeMux()
	serve := func(path string, answer func(ctx context.Context, text []byte) (any, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			text, leave, ok := Receive(w, r, places, questionBytesMax)
			if !ok {
				return
			}
			defer leave()
			serveAnswer(r.Context(), w, text, answer)
		})
	}
	serve(loansPath, func(ctx context.Context, text []byte) (any, error) {
		q := new(Question)
		if err := json.Unmarshal(text, q); err != nil {
			return nil, err
		}
		from, ok := a.lends.Enter(q.Source, lendsMax)
		defer from.Leave()
		if !ok {
			return nil, errCrowded
		}
		return a.lend(ctx, q)
	})
	serve(returnsPath, func(ctx context.Context, text []byte) (any, error) {
		r := new(returned)
		if err := json.Unmarshal(text, r); err != nil {
			return nil, err
		}
		return a.takeBack(ctx, r)
	})
	serve(writeoffPath, func(_ context.Context, text []byte) (any, error) { return a.answerTold(text) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("this agent has no %s %.60q: it speaks version %d of the protocol between regions; update the older agent of the two",
			r.Method, r.URL.Path, version), http.StatusNotFound)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.fromPeer(r) {
			a.counts.strangers.Add(1)
			http.Error(w, "the certificate names no other region of the policy", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func serveAnswer(ctx context.Context, w http.ResponseWriter, text []byte, answer func(ctx context.Context, text []byte) (any, error)) {
	l, err := answer(ctx, text)
	switch {
	case errors.Is(err, errNothing):
		l, err = Loan{}, nil
	case errors.Is(err, counter.ErrUnavailable), errors.Is(err, counter.ErrOverloaded):
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	case errors.Is(err, errCrowded):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(l) // without the answer, the units are lost until their window ends
}

// Status is what an agent reports to operators.
type Status struct {
	Region    string       `json:"region"`
	Listening bool         `json:"listening"` // whether proxies of this region can ask
	Questions uint64       `json:"questions"`
	Lent      uint64       `json:"lent_units"`
	Lost      uint64       `json:"lost_units"` // borrowed too late, or for another window
	Peers     []PeerStatus `json:"peers"`
	// Writeoffs says who uses the parts of regions that were ever written off.
	Writeoffs map[string]writeoff.Entry `json:"write_offs,omitempty"`
}

// PeerStatus is what an agent knows about another region.
type PeerStatus struct {
	Region   string     `json:"region"`
	Asked    uint64     `json:"asked"`
	Failed   uint64     `json:"failed"`
	Borrowed uint64     `json:"borrowed_units"`
	Answered *time.Time `json:"answered,omitempty"` // the last answer
	// Failure is why the last message was not answered, or empty.
	Failure string `json:"failure,omitempty"`
	// Told is how many counters this region has reported to the other region, and Heard is when the
	// other region last reported to this one. Both are for rules with across: gossip.
	Told  uint64     `json:"told_counters"`
	Heard *time.Time `json:"heard,omitempty"`
}

// Status returns the status of the agent of a region.
func (a *Agent) Status(region string) Status {
	s := Status{Region: region, Listening: a.listening.Load(), Questions: a.counts.questions.Load(),
		Lent: a.counts.lentUnits.Load(), Lost: a.counts.lost.Load(), Writeoffs: a.entries()}
	for _, p := range a.o.Peers {
		known := PeerStatus{Region: p.Name, Asked: p.asked.Load(), Failed: p.failed.Load(), Borrowed: p.units.Load(),
			Failure: p.failure()}
		if at := p.answered.Load(); at != 0 {
			when := time.UnixMilli(at).UTC()
			known.Answered = &when
		}
		s.Peers = append(s.Peers, known)
	}
	return s
}

// Gossip is what [Agent.OperatorHandler] shows about an agent of internal/region/gossip.
type Gossip interface {
	Peer(name string) (told uint64, heardAt time.Time)
	Metrics(now time.Time) string
}

// OperatorHandler returns the handler of operators' requests. It shows the agent's status as JSON,
// and its metrics.
func (a *Agent) OperatorHandler(region string, gossip Gossip) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/region", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		s := a.Status(region)
		for i := range s.Peers {
			p := &s.Peers[i]
			var at time.Time
			if p.Told, at = gossip.Peer(p.Region); !at.IsZero() {
				p.Heard = &at
			}
		}
		_ = json.NewEncoder(w).Encode(s) // the caller may have left
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, a.metrics()+gossip.Metrics(time.Now())) // the caller may have left
	})
	return mux
}

// Agent.metrics returns the metrics as text in Prometheus's format.
func (a *Agent) metrics() string {
	var b strings.Builder
	write := func(kind, name, help string, value uint64) {
		fmt.Fprintf(&b, "# HELP penstock_region_%s %s\n# TYPE penstock_region_%[1]s %[3]s\npenstock_region_%[1]s %[4]d\n", name, help, kind, value)
	}
	one := func(name, help string, value uint64) { write("counter", name, help, value) }
	c := &a.counts
	one("questions_total", "Questions of this region that the others were asked.", c.questions.Load())
	one("questions_repeated_total", "Questions that were left out, because the counter was asked for a short time ago.", c.repeated.Load())
	one("questions_dropped_total", "Questions that were left out, because too many were being asked.", c.dropped.Load())
	one("questions_invalid_total", "Questions that are not valid under the policy.", c.invalid.Load())
	one("lost_units_total", "Borrowed units that came too late, or for another window.", c.lost.Load())
	held, units := a.holds.all()
	write("gauge", "held_units", "Borrowed units that this agent holds for later.", uint64(units))
	write("gauge", "held_counters", "Counters of which this agent holds units.", uint64(held))
	one("loans_total", "Loans to other regions.", c.lent.Load())
	one("lent_units_total", "Units lent to other regions.", c.lentUnits.Load())
	one("returned_units_total", "Lent units that another region gave back, because it had counted fewer.", c.backUnits.Load())
	one("loans_failed_total", "Requests of other regions to borrow or to return units that failed.", c.failed.Load())
	one("strangers_total", "Messages whose certificate names no other region of the policy.", c.strangers.Load())
	for _, m := range []struct {
		name, help string
		of         func(*Peer) uint64
	}{
		{"peer_asked_total", "Questions to another region.", func(p *Peer) uint64 { return p.asked.Load() }},
		{"peer_failed_total", "Questions that another region did not answer.", func(p *Peer) uint64 { return p.failed.Load() }},
		{"borrowed_units_total", "Units that another region lent.", func(p *Peer) uint64 { return p.units.Load() }},
	} {
		fmt.Fprintf(&b, "# HELP penstock_region_%s %s\n# TYPE penstock_region_%[1]s counter\n", m.name, m.help)
		for _, p := range a.o.Peers {
			fmt.Fprintf(&b, "penstock_region_%s{region=%q} %d\n", m.name, p.Name, m.of(p))
		}
	}
	a.ages(&b, time.Now())
	a.writtenOff(&b)
	return b.String()
}

// Agent.ages writes, as metrics, how long ago each region answered. Every agent asks the other
// regions each second which regions are written off. So a region that last answered some seconds
// ago is cut off.
func (a *Agent) ages(b *strings.Builder, now time.Time) {
	b.WriteString("# HELP penstock_region_peer_age_seconds Time since another region answered this one.\n" +
		"# TYPE penstock_region_peer_age_seconds gauge\n")
	for _, p := range a.o.Peers {
		if at := p.answered.Load(); at != 0 {
			fmt.Fprintf(b, "penstock_region_peer_age_seconds{region=%q} %v\n", p.Name, max(0, now.Sub(time.UnixMilli(at)).Seconds()))
		}
	}
}

// Agent.writtenOff writes, as metrics, which regions are written off, as far as this agent knows.
func (a *Agent) writtenOff(b *strings.Builder) {
	b.WriteString("# HELP penstock_region_written_off Whether a region is written off, so that a steward lends its part.\n" +
		"# TYPE penstock_region_written_off gauge\n")
	entries := a.entries()
	for _, name := range a.o.Policy().Names {
		value := 0
		if entries[name].Forgotten() {
			value = 1
		}
		fmt.Fprintf(b, "penstock_region_written_off{region=%q} %d\n", name, value)
	}
}
