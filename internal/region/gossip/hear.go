// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/loan"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/lua"
)

// Path is the path of the URL to which other regions send their messages.
const Path = "/v1/gossip"

// hearsMax is the number of messages that an agent processes at the same time. It answers further
// messages with status 503.
const hearsMax = 8

// answer is an agent's answer to a message of another region.
type answer struct {
	Epoch string `json:"epoch"` // changes when the region's Redis has lost its data
	// Early lists the counters whose windows have not begun yet. Each is named by its index in the
	// message. The agent that answers reads the clock of its own region.
	Early []int `json:"early,omitempty"`
}

var errStranger = errors.New("the message is not from another region of the policy")

// Handler returns the handler of messages from other regions. Its server must require client
// certificates. The certificate must name the region that a message is from: see
// [loan.CertificatePrefix].
func (a *Agent) Handler() http.Handler {
	places := make(chan struct{}, hearsMax)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "write POST", http.StatusMethodNotAllowed)
			return
		}
		text, leave, ok := loan.Receive(w, r, places, messageMax)
		if !ok {
			return
		}
		defer leave()
		m, err := decode(text)
		if err != nil {
			a.invalid.Add(1)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !loan.CallerSpeaksFor(r, m.from) {
			a.invalid.Add(1)
			http.Error(w, "the certificate does not name the region that the message is from", http.StatusForbidden)
			return
		}
		said, err := a.hear(r.Context(), &m)
		switch {
		case errors.Is(err, errStranger):
			http.Error(w, err.Error(), http.StatusForbidden)
		case err != nil:
			http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(said) // without the answer, the message is repeated
		}
	})
}

// Agent.hear charges the units that another region has reported in a message.
func (a *Agent) hear(ctx context.Context, m *message) (said answer, err error) {
	from := a.heard[m.from]
	if from == nil {
		a.invalid.Add(1)
		return said, errStranger
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	// The epoch is read first. If Redis loses its data after that, the next answer has another
	// epoch.
	if said.Epoch, err = a.epoch(ctx); err != nil {
		return said, err
	}
	own := a.o.Policy()
	var calls []redisstore.ScriptCall
	var of []int
	for i := range m.counters {
		t := &m.counters[i]
		c, err := own.read(t.Name)
		if err != nil {
			a.invalid.Add(1)
			continue
		}
		ttl := (c.Limit.TTL() + counter.Millisecond - 1) / counter.Millisecond
		args := append(a.argsOf(&c), c.Limit.Count(), int64(ttl), m.from, int64(t.Start), t.Used, t.Before)
		of, calls = append(of, i), append(calls, redisstore.ScriptCall{Keys: keysOf(&c), Args: args})
	}
	err = a.evalAll(ctx, lua.GossipHear, calls, func(i int, reply string) error {
		switch _, result, _ := strings.Cut(reply, " "); result {
		case "early":
			a.early.Add(1)
			said.Early = append(said.Early, of[i])
		case "late":
			a.late.Add(1)
		default:
			units, err := strconv.ParseUint(result, 10, 64)
			if err != nil {
				return fmt.Errorf("reply %.60q is not what was charged", reply)
			}
			a.charged.Add(units)
		}
		return nil
	})
	if err != nil {
		return said, err
	}
	from.counters.Add(uint64(len(calls)))
	from.at.Store(time.Now().UnixMilli())
	return said, nil
}

// Agent.epoch returns the random word in this region's Redis, which changes when Redis has lost its
// data.
func (a *Agent) epoch(ctx context.Context) (string, error) {
	reply, err := a.o.Store.Eval(ctx, lua.GossipEpoch, redisstore.ScriptCall{Keys: []string{epochKey}, Args: []any{rand.Text()}})
	word, _ := reply.(string)
	return word, err
}
