// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// page holds records that are written to Redis together.
type page struct {
	names []policy.ClientName
	texts [][]byte
	keys  []directory.KeyName // the keys whose records these are; none for records of clients
	// due is the instant by which the page must be written. That instant is before the database
	// takes the lock from a process that waits for Redis, so a former publisher writes no old
	// records.
	due time.Time
}

// writePages writes the pages that read(...) returns, until it reports that no more follow. While a
// page is written, the next one is read. If writePages returns an error, some pages may have been
// written.
func (l *lockedPublisher) writePages(ctx context.Context, read func(context.Context) (p *page, more bool, err error)) error {
	pages, written := make(chan *page), make(chan error, 1)
	go func() { written <- l.writeAll(ctx, pages) }()
	err := error(nil)
	for more := true; more && err == nil; {
		var p *page
		if p, more, err = readPage(ctx, read); p == nil || err != nil {
			break
		}
		select {
		case pages <- p:
		case err = <-written:
			return err
		}
	}
	close(pages)
	return cmp.Or(<-written, err)
}

// page.parts returns the parts of a page, which are written one at a time. Redis answers checks
// between two parts.
func (p *page) parts() iter.Seq[*page] {
	return func(yield func(*page) bool) {
		for from := 0; from < len(p.names); from += partMax {
			to := min(from+partMax, len(p.names))
			part := &page{names: p.names[from:to], texts: p.texts[from:to], due: p.due}
			if len(p.keys) > 0 {
				part.keys = p.keys[from:to]
			}
			if !yield(part) {
				return
			}
		}
	}
}

// readPage reads a page and sets its due time. Reading and writing the page together may take twice
// stepTime.
func readPage(ctx context.Context, read func(context.Context) (*page, bool, error)) (p *page, more bool, err error) {
	due := time.Now().Add(2 * stepTime)
	ctx, cancel := context.WithDeadline(ctx, due)
	defer cancel()
	if p, more, err = read(ctx); p != nil {
		p.due = due
	}
	return p, more, err
}

// writeAll writes pages until the channel is closed, with pauses so that checks are not delayed.
func (l *lockedPublisher) writeAll(ctx context.Context, pages <-chan *page) error {
	var own pace
	for p := range pages {
		for part := range p.parts() {
			wrote, answer, err := l.write(ctx, part)
			if err != nil {
				return err
			}
			pause(ctx, own.after(wrote, answer))
		}
	}
	return nil
}

// lockedPublisher.write writes a part of a page. The result wrote is how long that took. The result
// answer is how long Redis took to answer a read that was sent meanwhile, as a check would be.
func (l *lockedPublisher) write(ctx context.Context, p *page) (wrote, answer time.Duration, err error) {
	ctx, cancel := context.WithDeadline(ctx, p.due)
	defer cancel()
	l.at("page")
	began, answered := time.Now(), make(chan time.Duration, 1)
	go func() {
		_, _ = l.Source.Generation(ctx) // an error counts as an answer: it takes at least as long as an answer may
		answered <- time.Since(began)
	}()
	err = l.Source.Fill(ctx, p.names, p.texts)
	if err == nil && len(p.keys) > 0 {
		l.at("names")
		err = l.Source.NameKeys(ctx, p.keys, nil)
	}
	if wrote = time.Since(began); err != nil {
		cancel()
	}
	return wrote, <-answered, err
}
