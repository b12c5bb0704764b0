// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// openRegion returns a plane with the same database and a Redis of its own, for another region.
func (p *plane) openRegion(region string) *plane {
	p.t.Helper()
	other := &plane{t: p.t, ledger: p.ledger, redis: redistest.Start(p.t), config: p.config, region: region}
	store, err := redisstore.New(redisstore.Options{URL: other.redis.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = store.Close() })
	other.source = redisdir.New(store)
	return other
}

// plane.status returns what the ledger says of a region.
func (p *plane) status(region string) ledger.Region {
	p.t.Helper()
	regions, err := p.ledger.Regions(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range regions {
		if r.Region == region {
			return r
		}
	}
	return ledger.Region{}
}

// awaitsCurrent waits until the Redis of a region has everything.
func (p *plane) awaitsCurrent(region string) {
	p.t.Helper()
	eventually.Until(p.t, patience, "the status says that a region has everything", func() bool {
		r := p.status(region)
		return r.Complete && r.Behind == 0 && r.Trouble == ""
	})
}

// TestARegionThatIsCutOff tests a region whose Redis does not answer. The region delays no other
// region, and the status reports the outage. When its Redis answers again, the region gets all
// changes.
func TestARegionThatIsCutOff(t *testing.T) {
	t.Parallel()
	us := newPlane(t)
	us.region = "us"
	eu := us.openRegion("eu")
	us.start()
	eu.start()
	us.block("user:bob")
	us.awaitText("a block is in us", "user:bob", blocked)
	eu.awaitText("a block is in eu", "user:bob", blocked)
	eu.awaitsCurrent("eu")
	eu.redis.Kill()
	eventually.Until(t, patience, "the status says that eu is cut off", func() bool { return us.status("eu").Trouble != "" })
	for _, client := range []string{"user:ann", "user:eve", "ip:192.0.2.7"} {
		us.block(client)
		us.awaitText("us goes on", client, blocked)
	}
	if r := us.status("eu"); r.Behind != 3 || !r.Published || !r.Complete {
		t.Errorf("the status of eu is %+v", r)
	}
	if r := us.status("us"); r.Trouble != "" || !r.Published {
		t.Errorf("the status of us is %+v", r)
	}
	eu.redis.Restart()
	for _, client := range []string{"user:bob", "user:ann", "user:eve", "ip:192.0.2.7"} {
		eu.awaitText("eu has all", client, blocked)
	}
	us.awaitsCurrent("eu")
}

// TestThePublicationBeforeRegions tests that a control plane that gets regions continues with the
// Redis that it had, without writing all records again, and fills the Redis of each other region.
func TestThePublicationBeforeRegions(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	_, end := p.start()
	p.block("user:bob")
	p.awaitText("a block is in Redis", "user:bob", blocked)
	p.awaitsCurrent("")
	if r := p.status(""); !r.Published {
		t.Errorf("the status without regions is %+v", r)
	}
	end()
	p.block("user:ann")
	generation, err := p.source.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.region, p.log = "us", eventually.Journal{}
	eu := p.openRegion("eu")
	_, end = p.start()
	eu.start()
	for _, client := range []string{"user:bob", "user:ann"} {
		p.awaitText("the Redis of before has all", client, blocked)
		eu.awaitText("the new Redis has all", client, blocked)
	}
	eventually.Until(t, patience, "both are current", func() bool {
		return p.status("us").Behind == 0 && p.status("eu").Complete && eu.isComplete()
	})
	if now, err := p.source.Generation(t.Context()); err != nil || now != generation {
		t.Errorf("the generation was %q, and is %q, %v", generation, now, err)
	}
	end()
	if log := p.log.String(); strings.Contains(log, "all records are in Redis") || strings.Contains(log, "interrupted") {
		t.Errorf("the Redis of before was written again:\n%s", log)
	}
	if r := p.status(""); r.Complete {
		t.Errorf("the status shows a Redis without a region: %+v", r)
	}
}
