// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// candidacy is the state of a test: revision 1 of the policy shop is in force, and revision 2 is a
// candidate that is promoted after 60 seconds.
type candidacy struct {
	t      *testing.T
	l      *ledger.Ledger
	config *pgx.ConnConfig
	store  *redisstore.Store
	// versions holds the version of the revision in force and that of the candidate.
	versions [2]string
	by       ledger.Publish
}

// newCandidacy publishes revision 2 as a candidate, to a share of the nodes or of the clients.
func newCandidacy(t *testing.T, clients bool, regions ...string) *candidacy {
	t.Helper()
	url := pgtest.Migrated(t, database.Open, database.Migrate)
	config, err := database.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, region := range regions {
		if _, err := pool.Exec(t.Context(), "INSERT INTO region_publications (region) VALUES ($1)", region); err != nil {
			t.Fatal(err)
		}
	}
	c := &candidacy{t: t, l: &ledger.Ledger{Pool: pool}, config: config.ConnConfig,
		by: ledger.Publish{Step: ledger.StepShare, DenialsMax: ledger.Percent(5), PromoteAfterSeconds: 60}}
	c.by.Share = ledger.Percent(10)
	if clients {
		c.by.Share, c.by.ClientShare = 0, ledger.Percent(10)
	}
	c.versions[0] = c.put("3/1m")
	c.publish(ledger.Publish{Step: ledger.StepAll})
	c.versions[1] = c.put("4/1m")
	c.publish(c.by)
	return c
}

// candidacy.put writes a revision with a limit.
func (c *candidacy) put(limit string) (version string) {
	c.t.Helper()
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{limit}}}}
	put, err := c.l.PutPolicy(c.t.Context(), ops, d, "a test", ledger.If{})
	if err != nil {
		c.t.Fatal(err)
	}
	return put.Version
}

func (c *candidacy) publish(p ledger.Publish) {
	c.t.Helper()
	if _, err := c.l.Publish(c.t.Context(), ops, "shop", p, "a test", (&Rollout{Key: key}).Encode); err != nil {
		c.t.Fatal(err)
	}
}

// candidacy.process returns a process that has just started in a region.
func (c *candidacy) process(region string) *Rollout {
	return &Rollout{Region: region, Database: c.config.Copy(), Ledger: c.l, Redis: c.store, Key: key, Logger: slog.New(slog.DiscardHandler), nodes: map[string]*trial{}}
}

func (c *candidacy) policy() *ledger.Policy {
	c.t.Helper()
	p, err := c.l.Policy(c.t.Context(), "shop")
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// candidacy.reads makes a process read reports at the instant in the parameter second. The given
// number of nodes have the candidate. Each node sent its last report at the instant in the
// parameter reported. The parameter total is the number of requests that the candidate has decided
// according to that report, and the parameter denied is the number of these that it has denied. If
// nodes is 0, only a node without the candidate reports.
func (c *candidacy) reads(r *Rollout, second, reported int64, nodes int, total, denied uint64) {
	c.t.Helper()
	const epoch = 1_795_000_000
	reading := &fleet.Reading{NowMicros: (epoch + second) * 1e6}
	record := func(id string, p fleet.Policy, seen int64) {
		p.Name, p.ByClient = "shop", true
		reading.Records = append(reading.Records, &fleet.Record{ID: id, Name: id, Front: "caddy", SeenMicros: (epoch + seen) * 1e6, Policies: policies(p),
			Rules: []fleet.Rule{{Policy: "shop", Rule: "api", Admitted: total - denied, Denied: denied}}})
	}
	record("other", fleet.Policy{Published: c.versions[0]}, second)
	for i := range nodes {
		if p := (fleet.Policy{Published: c.versions[1]}); c.by.ClientShare == 0 {
			record(fmt.Sprint(i), p, reported)
		} else {
			record(fmt.Sprint(i), fleet.Policy{Published: c.versions[0], Candidate: &fleet.Candidate{Published: c.versions[1], Admitted: total - denied, Denied: denied}}, reported)
		}
	}
	if p := c.policy(); p.Candidate != 0 {
		if err := r.weigh(c.t.Context(), p, reading); err != nil {
			c.t.Error(err)
		}
	}
}

// candidacy.follows makes a process read reports every five seconds, from one instant to another.
// The candidate decides a hundred requests in a second.
func (c *candidacy) follows(r *Rollout, from, to int64) {
	c.t.Helper()
	for s := from; s <= to; s += 5 {
		c.reads(r, s, s, 1, uint64(s)*100, uint64(s))
	}
}

// candidacy.observed fails the test unless the candidate has been observed for the given number of
// seconds and the obstacle is the given one; "" stands for no obstacle.
func (c *candidacy) observed(seconds int64, obstacle string) {
	c.t.Helper()
	m, err := c.l.Promotion(c.t.Context(), c.policy())
	if err != nil {
		c.t.Fatal(err)
	}
	if m == nil {
		c.t.Fatal("there is no promotion")
	}
	if m.ObservedSeconds != seconds || (m.At == nil) != (obstacle != "") || !strings.Contains(m.Obstacle, obstacle) {
		c.t.Errorf("observed for %d s, until %v, obstacle %q; want %d s and %q", m.ObservedSeconds, m.At, m.Obstacle, seconds, obstacle)
	}
}

// candidacy.stands fails the test unless the policy has these revisions.
func (c *candidacy) stands(revision, candidate int64) {
	c.t.Helper()
	if p := c.policy(); p.Revision != revision || p.Candidate != candidate {
		c.t.Errorf("revision %d is in force and %d is the candidate; want %d and %d", p.Revision, p.Candidate, revision, candidate)
	}
}

// candidacy.promotions returns how many entries of the history say that the control plane has
// published the candidate to all nodes.
func (c *candidacy) promotions() (n int) {
	c.t.Helper()
	if err := c.l.Pool.QueryRow(c.t.Context(), "SELECT count(*) FROM changes WHERE actor = 'control' AND origin = 'promotion' AND action = 'publish 2 to all' "+
		"AND reason LIKE 'observed for 1m%'").Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// candidacy.forgotten makes it seem that no process reads the reports of a region any more.
func (c *candidacy) forgotten(region string) {
	c.t.Helper()
	if _, err := c.l.Pool.Exec(c.t.Context(), "UPDATE candidate_observations SET looked_at = looked_at - interval '61 s' WHERE region = $1", region); err != nil {
		c.t.Fatal(err)
	}
}

// TestACandidateIsPromoted tests that a candidate is published to all nodes exactly once, when a
// node of each region that serves the policy has observed it for its time. Processes end and start
// meanwhile.
func TestACandidateIsPromoted(t *testing.T) {
	t.Parallel()
	for _, clients := range []bool{false, true} {
		t.Run(fmt.Sprintf("clients %t", clients), func(t *testing.T) {
			t.Parallel()
			c := newCandidacy(t, clients, "eu", "us", "asia")
			c.observed(0, `no process of the control plane reads the reports of the region "asia"`)
			asia, eu, us := c.process("asia"), c.process("eu"), c.process("us")
			// No node of asia enforces the policy, so its region does not count.
			if err := asia.weigh(t.Context(), c.policy(), &fleet.Reading{NowMicros: 1}); err != nil {
				t.Fatal(err)
			}
			c.follows(eu, 0, 40)
			c.reads(us, 0, 0, 0, 0, 0)
			c.observed(0, `no node of the region "us" that has the candidate reports`)
			c.follows(us, 0, 55)
			c.observed(40, "")

			eu = c.process("eu") // the new process continues with the stored totals
			second := c.process("eu")
			c.follows(second, 45, 50)
			c.follows(eu, 45, 50)
			c.reads(second, 52, 50, 1, 5000, 50)
			c.observed(50, "")

			c.reads(eu, 85, 50, 1, 5000, 50) // the node is silent
			c.observed(50, `no node of the region "eu" that has the candidate reports`)
			c.follows(eu, 200, 205)
			c.observed(55, "")
			c.follows(eu, 210, 250)
			c.observed(55, "") // the region us has observed it for 55 seconds
			c.forgotten("eu")
			c.follows(us, 60, 65)
			c.observed(65, `reads the reports of the region "eu"`)
			c.stands(1, 2)

			c.follows(second, 250, 255)
			c.stands(2, 0)
			c.follows(us, 70, 75)
			if n := c.promotions(); n != 1 {
				t.Errorf("%d entries in the history", n)
			}
		})
	}
}

// obstacles are what keeps a candidate from being promoted.
var obstacles = map[string]func(c *candidacy, r *Rollout){
	"its bound is exceeded": func(c *candidacy, r *Rollout) {
		c.reads(r, 60, 60, 1, 6000, 600)
		c.stands(1, 0)
	},
	"its bound is exceeded while no process runs": func(c *candidacy, _ *Rollout) {
		c.reads(c.process(""), 59, 59, 1, 9000, 3000)
		c.stands(1, 0)
	},
	"its bound was exceeded, and it could not be withdrawn": func(c *candidacy, r *Rollout) {
		if err := c.l.Observe(c.t.Context(), &ledger.Observation{Policy: "shop", Generation: c.policy().Generation, Exceeded: true}); err != nil {
			c.t.Fatal(err)
		}
		c.follows(r, 60, 70)
		c.observed(70, "have exceeded the bound")
		c.stands(1, 2)
	},
	"it is withdrawn": func(c *candidacy, r *Rollout) {
		before := c.policy()
		c.publish(ledger.Publish{Step: ledger.StepWithdraw})
		if after, err := c.l.Promote(c.t.Context(), before, r.Encode); after != nil || err != nil {
			c.t.Errorf("%+v, %v", after, err)
		}
		c.follows(r, 60, 70)
		c.stands(1, 0)
	},
	"it is replaced": func(c *candidacy, r *Rollout) {
		c.put("5/1m")
		c.publish(c.by)
		c.follows(r, 60, 70)
		c.stands(1, 3)
		c.observed(0, "no node that has the candidate reports")
	},
	"its step begins anew": func(c *candidacy, r *Rollout) {
		c.publish(c.by)
		c.follows(r, 60, 70)
		c.stands(1, 2)
		c.observed(10, "")
	},
	"the policy is edited": func(c *candidacy, r *Rollout) {
		c.put("5/1m")
		c.follows(r, 60, 70)
		c.stands(1, 2)
		c.observed(70, "revision 3 was written since")
	},
	"a process of an earlier release takes a step": func(c *candidacy, r *Rollout) {
		if _, err := c.l.Pool.Exec(c.t.Context(), "UPDATE policies SET generation = generation + 1, denials_max = NULL"); err != nil {
			c.t.Fatal(err)
		}
		c.follows(r, 60, 70)
		c.stands(1, 2)
		if m, err := c.l.Promotion(c.t.Context(), c.policy()); m != nil || err != nil {
			c.t.Errorf("%+v, %v", m, err)
		}
	},
}

// TestACandidateIsNotPromoted tests what keeps a candidate from being promoted.
func TestACandidateIsNotPromoted(t *testing.T) {
	t.Parallel()
	for name, do := range obstacles {
		for _, clients := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, clients %t", name, clients), func(t *testing.T) {
				t.Parallel()
				c := newCandidacy(t, clients)
				r := c.process("")
				c.follows(r, 0, 55)
				do(c, r)
				if n := c.promotions(); n != 0 {
					t.Errorf("it is promoted %d times", n)
				}
			})
		}
	}
}

// TestAPromotionNeedsRequests tests that a candidate is not promoted if it has hardly decided any
// requests, or if it has denied too many of them.
func TestAPromotionNeedsRequests(t *testing.T) {
	t.Parallel()
	c := newCandidacy(t, true, "eu", "us")
	eu, us := c.process("eu"), c.process("us")
	for s := int64(0); s <= 60; s += 5 {
		c.reads(eu, s, s, 1, uint64(s), 0)
		c.reads(us, s, s, 1, 0, 0)
	}
	c.observed(60, "it has decided 60 requests, and 100 is the least")
	c.reads(us, 65, 65, 1, 60, 20)
	c.observed(60, "33.33% of few requests were denied")
	c.reads(eu, 65, 65, 1, 1000, 0)
	c.stands(1, 2)
	c.reads(us, 70, 70, 1, 2000, 20)
	c.stands(2, 0)
}

// TestPromotedOnce uses a real Redis, to which a node reports. It tests that two processes that see
// the end of the time at the same moment publish the candidate only once.
func TestPromotedOnce(t *testing.T) {
	t.Parallel()
	c := newCandidacy(t, false)
	store, err := redisstore.New(redisstore.Options{URL: redistest.Start(t).URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	c.store = store
	var requests atomic.Uint64
	node := fleet.Join(store, fleet.New(fleet.Sources{Front: "caddy",
		Policies: func() []fleet.Policy { return policies(fleet.Policy{Name: "shop", Published: c.versions[1]}) },
		Totals:   func() []fleet.Total { return []fleet.Total{{Policy: "shop", Rule: "api", Admitted: requests.Add(100)}} }}, time.Now()))
	t.Cleanup(node.Close)
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for range 2 {
		running.Go(func() { c.process("").Run(t.Context()) })
	}
	eventually.Until(t, patience, "the node is observed with enough requests", func() bool {
		var observed, decided int64
		err := c.l.Pool.QueryRow(t.Context(), "SELECT coalesce(max(observed_micros), 0), coalesce(max(admitted), 0) FROM candidate_observations").Scan(&observed, &decided)
		return err == nil && observed > 0 && decided >= ledger.RequestsMin
	})
	c.stands(1, 2)
	if _, err := c.l.Pool.Exec(t.Context(), "UPDATE candidate_observations SET observed_micros = 60000000"); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the candidate is promoted", func() bool { return c.policy().Revision == 2 })
	c.stands(2, 0)
	if n := c.promotions(); n != 1 {
		t.Errorf("%d entries in the history", n)
	}
}

// TestPromotionsAtTheSameMoment tests that exactly one of many processes publishes a candidate.
func TestPromotionsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	c := newCandidacy(t, true)
	r, before := c.process(""), c.policy()
	c.follows(r, 0, 55)
	if _, err := c.l.Pool.Exec(t.Context(), "UPDATE candidate_observations SET observed_micros = 60000000"); err != nil {
		t.Fatal(err)
	}
	var promoted atomic.Int32
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			after, err := c.l.Promote(t.Context(), before, r.Encode)
			if err != nil {
				t.Error(err)
			}
			if after != nil {
				promoted.Add(1)
			}
		})
	}
	running.Wait()
	if n := promoted.Load(); n != 1 || c.promotions() != 1 {
		t.Errorf("%d processes promoted the candidate, with %d entries in the history", n, c.promotions())
	}
	c.stands(2, 0)
}
