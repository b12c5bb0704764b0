// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core/policy"
)

// Bounds of a page of records.
const (
	// ListMax is the greatest number of records on a page.
	ListMax = 1000
	// listBytesMax bounds the text of the records on a page. Further records are listed by name
	// only.
	listBytesMax = 2 << 20
	// listNameBytesMax bounds a name in a list. No client has a longer name.
	listNameBytesMax = 1024
	// lookMax is how many keys a source examines in one call, and looksMax is the maximum number of
	// calls for a page. So a page can be empty although more records follow.
	lookMax, looksMax = 1000, 100
)

// ListQuery selects the records of a list.
type ListQuery struct {
	Kind    string // only clients of this kind; "" for all
	Blocked bool   // only clients that are blocked now
	After   string // where the previous page ended; "" for the first page
	Most    int    // the maximum number of records, up to ListMax; a page may have a few more if several share a place
}

// Listed is a client in a list.
type Listed struct {
	Client string  `json:"client"`
	Record *Record `json:"record"` // nil if there is a problem
	// Problem is the reason why the record is not shown, or why it has no effect.
	Problem string `json:"problem,omitempty"`
}

// Listing is a page of the clients that have a record.
type Listing struct {
	Clients []Listed `json:"clients"` // the clients, sorted by name on each page; the pages are in no particular order
	// After is where the next page begins; "" on the last page.
	After string `json:"after,omitempty"`
}

// List returns a page of the clients that have a record. Errors wrap [ErrEdit], [ErrPlace] or
// [ErrSource].
func (e *Editor) List(ctx context.Context, query ListQuery) (*Listing, error) {
	kind, err := query.check()
	if err != nil {
		return nil, err
	}
	page, room, now := &Listing{Clients: []Listed{}, After: query.After}, listBytesMax, e.now()
	look := query.Most
	for range looksMax {
		part, err := e.Source.Records(ctx, Range{Kind: kind, After: page.After, Most: query.Most - len(page.Clients), Look: look})
		if err != nil {
			return nil, err
		}
		before := len(page.Clients)
		if page.addPart(&part, &query, now, &room); len(page.Clients) > query.Most && before > 0 {
			page.Clients = page.Clients[:before] // in this case the next page begins with this part
			break
		}
		page.After = part.After
		if page.After == "" || len(page.Clients) >= query.Most || room < 0 {
			break
		}
		if len(part.Names) < look/4 {
			look = min(2*look, lookMax) // this happens if there are few records among many other keys
		}
	}
	slices.SortFunc(page.Clients, func(a, b Listed) int { return cmp.Compare(a.Client, b.Client) })
	return page, nil
}

// ListQuery.check returns the kind, and an error if the query is invalid.
func (q *ListQuery) check() (kind string, err error) {
	if q.Most < 1 || q.Most > ListMax {
		return "", newEditError("%d records on a page are not between 1 and %d", q.Most, ListMax)
	}
	if q.Kind == "" {
		return "", nil
	}
	kind, ok := policy.ParseKind(q.Kind)
	if !ok && strings.TrimSuffix(kind, policy.HashSuffix) != "tenant" {
		return "", newEditError("kind %.100q is unknown; write user, api_key, tenant, ip, header.NAME, cookie.NAME or attr.NAME", q.Kind)
	}
	return kind, nil
}

// ListQuery.wants reports whether the query selects a client with the record r; nil stands for a
// record without effect.
func (q *ListQuery) wants(r *Record, now time.Time) bool {
	return !q.Blocked || r != nil && r.Block != nil && !hasEnded(r.Block.Until, now)
}

// addPart adds the clients of a part that the query selects. The length of their records is
// subtracted from room.
func (l *Listing) addPart(part *Part, query *ListQuery, now time.Time, room *int) {
	for i, name := range part.Names {
		if part.Texts[i] == nil {
			continue // removed meanwhile
		}
		record, err := ParseRecord(part.Texts[i])
		if !query.wants(record, now) {
			continue
		}
		one := Listed{Client: name.String()}
		switch {
		case len(one.Client) > listNameBytesMax:
			one.Client, one.Problem = one.Client[:listNameBytesMax], "the name is too long for a client; this is its beginning"
		case err != nil:
			one.Problem = fmt.Sprintf("%.200v", err)
		case *room < 0:
			one.Problem = "the page has no room for the record; look at it alone"
		default:
			*room -= len(part.Texts[i])
			one.Record = record
		}
		l.Clients = append(l.Clients, one)
	}
}
