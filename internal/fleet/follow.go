// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const (
	// FollowedMax is the number of nodes whose events are read: those with the latest heartbeats.
	FollowedMax = 256
	// followFor is how long other nodes send the events that an [events.Filter] selects, after the
	// last call of Follow with that filter.
	followFor = 10 * time.Second
	// placeBytesMax bounds a place.
	placeBytesMax = FollowedMax * (idBytesMax + 22)
	idBytesMax    = 16
	// readersMax is the greatest number of calls of Follow that use Redis at the same time. Further
	// calls wait, so that connections are left for this process's own reports and records.
	readersMax = 4
)

// The channel named reading has an element for each call of Follow that uses Redis.
var reading = make(chan struct{}, readersMax)

// errReaders is the error of a call of Follow that could not use Redis in time because of other
// readers.
var errReaders = fmt.Errorf("%d readers of events of this process wait for Redis; ask again", readersMax)

// EventQuery selects events.
type EventQuery struct {
	Filter events.Filter
	After  string // the place at which the previous page ended; "" for the events that are remembered
}

// EventPage holds the latest events of one or more nodes.
type EventPage struct {
	Events []events.Event `json:"events"` // in the order of their times
	After  string         `json:"after"`  // the place at which the next page begins
	// Missed is the number of lost events between the previous page and this one. With a filter, it
	// is an upper bound.
	Missed uint64         `json:"missed,omitempty"`
	Nodes  []FollowedNode `json:"nodes"` // the nodes whose events are on the page
	// Awaited is the number of nodes that have not written events for this filter. A node writes
	// them within three seconds. A node of an earlier release never writes them.
	Awaited int `json:"awaited,omitempty"`
	// LeftOut is the number of nodes beyond FollowedMax.
	LeftOut    int `json:"left_out,omitempty"`
	Unreadable int `json:"unreadable,omitempty"` // nodes whose events cannot be read
	// Problem is the reason why the page has only the events of the node that answers.
	Problem string `json:"problem,omitempty"`
}

// FollowedNode is a node whose events are read.
type FollowedNode struct {
	Name  string `json:"name"`
	Front string `json:"front"`
	Mute  bool   `json:"mute,omitempty"` // no policy in force reports events
}

// ErrAfter means that no page of events can have ended at the place in EventQuery.After.
var ErrAfter = errors.New("no place in the events")

// Follow returns the events of all nodes in the Redis of the store, and those of own, the node of
// this process. The node and the store may each be nil. Other nodes send their events for ten
// seconds after the call. If Redis does not answer, or if four other calls use it for two seconds,
// Follow returns only the events of this process.
func Follow(ctx context.Context, store *redisstore.Store, own *Node, q *EventQuery) (*EventPage, error) {
	places, err := parsePlaces(q.After)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	page := &EventPage{Events: []events.Event{}, Nodes: []FollowedNode{}}
	var ids []string
	if store != nil {
		select {
		case reading <- struct{}{}:
			defer func() { <-reading }()
			ids, err = register(ctx, store, &q.Filter)
		case <-ctx.Done():
			err = errReaders
		}
		if err != nil {
			return ownEvents(page, own, places, q, err)
		}
	}
	if own != nil {
		ids = append([]string{own.id}, slices.DeleteFunc(ids, func(id string) bool { return id == own.id })...)
	}
	if page.LeftOut = max(0, len(ids)-FollowedMax); page.LeftOut > 0 {
		ids = ids[:FollowedMax]
	}
	maps.DeleteFunc(places, func(id string, _ uint64) bool { return !slices.Contains(ids, id) }) // the node has left
	if own != nil {
		if ids = ids[1:]; own.sources.Events != nil {
			page.addEvents(own.eventsText(places[own.id], []events.Filter{q.Filter}), places, &q.Filter)
		}
	}
	if err := page.addOthers(ctx, store, ids, places, &q.Filter); err != nil {
		if own == nil {
			return nil, err
		}
		page.Problem = err.Error()
	}
	events.Sort(page.Events)
	page.After = formatPlaces(places)
	return page, nil
}

// ownEvents returns the events of this node alone, for a call that could not use Redis. The
// argument named why is the reason. The events include the event that reports the outage. The
// places of other nodes stay as they were.
func ownEvents(page *EventPage, own *Node, places map[string]uint64, q *EventQuery, why error) (*EventPage, error) {
	if own == nil || own.sources.Events == nil {
		return nil, why
	}
	page.addEvents(own.eventsText(places[own.id], []events.Filter{q.Filter}), places, &q.Filter)
	page.Problem, page.After = why.Error(), formatPlaces(places)
	return page, nil
}

// FollowFunc is the function Follow for the nodes of one Redis.
type FollowFunc func(ctx context.Context, own *Node, q *EventQuery) (*EventPage, error)

// In returns Follow for the given store, which is nil if the process does not use Redis.
func In(store *redisstore.Store) FollowFunc {
	return func(ctx context.Context, own *Node, q *EventQuery) (*EventPage, error) {
		return Follow(ctx, store, own, q)
	}
}

// addEvents adds the events of a node that come after its place, and moves its place past these
// events.
func (p *EventPage) addEvents(t *eventsText, places map[string]uint64, f *events.Filter) {
	from, known := places[t.ID]
	if known && from < t.From {
		p.Missed += t.From - from
	}
	for i, n := range t.Numbers {
		if n >= from && f.Wants(&t.Events[i]) {
			p.Events = append(p.Events, t.Events[i])
		}
	}
	places[t.ID] = max(from, t.Next)
	p.Nodes = append(p.Nodes, FollowedNode{Name: t.Name, Front: t.Front, Mute: t.Mute})
}

// addOthers adds the events that other nodes have written.
func (p *EventPage) addOthers(ctx context.Context, store *redisstore.Store, ids []string, places map[string]uint64, f *events.Filter) error {
	const together = 16 // this keeps every reply small
	for some := range slices.Chunk(ids, together) {
		keys, values := make([]string, len(some)), make([][]byte, len(some))
		for i, id := range some {
			keys[i] = eventsPrefix + id
		}
		if err := store.Values(ctx, keys, values); err != nil {
			return err
		}
		for i, text := range values {
			p.addText(some[i], text, places, f)
		}
	}
	return nil
}

// addText adds the events of a node as they are in Redis.
func (p *EventPage) addText(id string, text []byte, places map[string]uint64, f *events.Filter) {
	if text == nil {
		p.Awaited++
		return
	}
	t, err := decodeEvents(id, text)
	switch {
	case err != nil || !isID(id):
		p.Unreadable++
	case !slices.Contains(t.Filters, *f) && !slices.Contains(t.Filters, events.Filter{}):
		p.Awaited++ // the text has been written for other readers
	default:
		p.addEvents(t, places, f)
	}
}

// register asks the nodes to write their events, and returns the nodes with recent heartbeats, the
// latest first.
func register(ctx context.Context, store *redisstore.Store, f *events.Filter) (ids []string, err error) {
	member, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	now, err := serverTime(ctx, store)
	if err != nil {
		return nil, err
	}
	for _, command := range [][]any{
		{"zadd", followKey, now + followFor.Microseconds(), member},
		{"zremrangebyscore", followKey, "-inf", now},
		{"pexpire", followKey, followFor.Milliseconds()},
	} {
		if _, err := store.DoFor(ctx, fleetKey, command...); err != nil {
			return nil, err
		}
	}
	reply, err := store.DoFor(ctx, fleetKey, "zrange", fleetKey, "+inf", now-SilentAfter.Microseconds(), "byscore", "rev", "limit", 0, NodesMax)
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	members, _ := reply.([]any)
	for _, one := range members {
		ids = append(ids, fmt.Sprint(one))
	}
	return ids, nil
}

// scoredMember is a member of a sorted set, with its score.
type scoredMember struct {
	member string
	score  float64
}

// readScored returns the members in the reply to ZRANGE WITHSCORES, in either version of the
// protocol.
func readScored(reply any) (all []scoredMember) {
	items, _ := reply.([]any)
	for i := 0; i < len(items); i++ {
		member, score := items[i], any(nil)
		if pair, ok := items[i].([]any); ok && len(pair) == 2 {
			member, score = pair[0], pair[1]
		} else if i++; i < len(items) {
			score = items[i]
		}
		n, err := strconv.ParseFloat(fmt.Sprint(score), 64)
		if err == nil {
			all = append(all, scoredMember{fmt.Sprint(member), n})
		}
	}
	return all
}

// parsePlaces parses a place: for each node the number of its next event, as "ID-NUMBER", separated
// by commas.
func parsePlaces(text string) (map[string]uint64, error) {
	places := map[string]uint64{}
	if text == "" {
		return places, nil
	}
	if len(text) > placeBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes; write the \"after\" of the previous page", ErrAfter, len(text))
	}
	for one := range strings.SplitSeq(text, ",") {
		id, number, _ := strings.Cut(one, "-")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !isID(id) {
			return nil, fmt.Errorf("%w: %.40q; write the \"after\" of the previous page", ErrAfter, one)
		}
		places[id] = n
	}
	return places, nil
}

func formatPlaces(places map[string]uint64) string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(places)) {
		all = append(all, id+"-"+strconv.FormatUint(places[id], 10))
	}
	return strings.Join(all, ",")
}

// isID reports whether a text can be the ID of a node.
func isID(text string) bool {
	if text == "" || len(text) > idBytesMax {
		return false
	}
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
