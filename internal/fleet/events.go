// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/events"
)

// Parameters of the events that nodes write for their followers.
const (
	// EventsBytesMax bounds the text of the events that a node writes in a second. If that is not
	// enough for all of them, the node omits the oldest.
	EventsBytesMax = 32 << 10
	// lookEvery is the mean time between two looks for followers, and sendEvery the time between
	// two writes while there are followers.
	lookEvery, sendEvery = 2 * time.Second, time.Second
	// renewEvery is the time after which a node writes its events again although there are no new
	// ones.
	renewEvery = 5 * time.Second
	// eventsExpireAfter is how long Redis keeps the events that a node has written.
	eventsExpireAfter = 15 * time.Second
	// filtersMax bounds the filters that are followed at the same time. If there are more, nodes
	// write all events.
	filtersMax = 16
)

// eventsVersion is the version of the format. Later versions are not read.
const eventsVersion = 1

// eventsText is what a node writes to Redis for the processes that follow its events.
type eventsText struct {
	Version int             `json:"v"`
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Front   string          `json:"front"`
	Mute    bool            `json:"mute,omitempty"` // whether no policy in force reports events
	Filters []events.Filter `json:"filters"`        // the filters whose events it contains
	// From and Next bound the numbers of the events that the filters could have selected.
	From    uint64         `json:"from"`
	Next    uint64         `json:"next"`
	Numbers []uint64       `json:"numbers"` // of the events
	Events  []events.Event `json:"events"`  // the oldest first
}

// eventsText returns the events that at least one of the filters wants, from a given number on.
func (n *Node) eventsText(from uint64, filters []events.Filter) *eventsText {
	t := &eventsText{Version: eventsVersion, ID: n.id, Name: n.name, Front: n.sources.Front, Mute: true, Filters: filters}
	if n.sources.Policies != nil {
		t.Mute = !slices.ContainsFunc(n.sources.Policies(), func(p Policy) bool { return p.Events })
	}
	tail := n.sources.Events(from, func(e *events.Event) bool {
		return slices.ContainsFunc(filters, func(f events.Filter) bool { return f.Wants(e) })
	})
	t.From, t.Next, t.Numbers, t.Events = tail.From, tail.Next, tail.Numbers, tail.Events
	return t
}

// eventsText.encode returns the text with the latest events that fit.
func (t *eventsText) encode() ([]byte, error) {
	size, first := 0, len(t.Events)
	var line []byte
	for first > 0 && size <= EventsBytesMax {
		first--
		line = t.Events[first].AppendJSON(line[:0])
		size += len(line) + len(`,18446744073709551615,`)
	}
	if size > EventsBytesMax {
		t.From, first = t.Numbers[first]+1, first+1
	}
	t.Events, t.Numbers = t.Events[first:], t.Numbers[first:]
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // with <, > and & escaped, paths could exceed their bound
	err := encoder.Encode(t)
	return text.Bytes(), err
}

// eventsTextMax bounds the text of a node as it is read: its events, and its filters with names.
const eventsTextMax = EventsBytesMax + (filtersMax+1)*4<<10

// decodeEvents returns the events of a node. The text in Redis is not trusted.
func decodeEvents(id string, text []byte) (*eventsText, error) {
	if len(text) > eventsTextMax {
		return nil, fmt.Errorf("%w: its events have %d bytes", errRecord, len(text))
	}
	t := new(eventsText)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if t.Version != eventsVersion || t.ID != id || len(t.Events) != len(t.Numbers) || t.From > t.Next || !slices.IsSorted(t.Numbers) {
		return nil, errRecord
	}
	return t, nil
}

// sendEvents writes the node's events while they are being followed.
func (m *Member) sendEvents(ctx context.Context) {
	if m.node.sources.Events == nil {
		return
	}
	var last sentEvents
	for {
		pause := lookEvery/2 + rand.N(lookEvery)
		if followed, err := m.sendEventsOnce(ctx, &last, time.Now()); followed && err == nil {
			pause = sendEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// sentEvents identifies the events that a node has written last.
type sentEvents struct {
	filters []events.Filter
	number  uint64 // the number of the last event, plus one
	mute    bool
	at      time.Time
}

// sendEventsOnce writes the node's events if they are being followed and differ from the last ones.
func (m *Member) sendEventsOnce(ctx context.Context, last *sentEvents, now time.Time) (followed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	filters, err := m.followed(ctx)
	if err != nil || len(filters) == 0 {
		return false, err
	}
	text := m.node.eventsText(0, filters)
	sent := sentEvents{filters: filters, mute: text.Mute, at: now}
	if n := len(text.Numbers); n > 0 {
		sent.number = text.Numbers[n-1] + 1
	}
	if sent.number == last.number && sent.mute == last.mute && slices.Equal(filters, last.filters) && now.Sub(last.at) < renewEvery {
		return true, nil
	}
	encoded, err := text.encode()
	if err != nil {
		return true, err
	}
	if _, err = m.store.DoFor(ctx, fleetKey, "set", eventsPrefix+m.node.id, encoded, "px", eventsExpireAfter.Milliseconds()); err == nil {
		*last = sent
	}
	return true, err
}

// Member.followed returns the filters that are followed now. Values in Redis that are not filters
// are ignored.
func (m *Member) followed(ctx context.Context) (filters []events.Filter, err error) {
	reply, err := m.store.DoFor(ctx, fleetKey, "zrange", followKey, 0, filtersMax, "rev", "withscores")
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	pairs := readScored(reply)
	if len(pairs) == 0 {
		return nil, nil
	}
	now, err := serverTime(ctx, m.store)
	if err != nil {
		return nil, err
	}
	for _, one := range pairs {
		var f events.Filter
		if one.score > float64(now) && json.Unmarshal([]byte(one.member), &f) == nil {
			filters = append(filters, f)
		}
	}
	if len(filters) > filtersMax || slices.Contains(filters, events.Filter{}) {
		filters = []events.Filter{{}}
	}
	slices.SortFunc(filters, func(a, b events.Filter) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Rule, b.Rule))
	})
	return filters, nil
}
