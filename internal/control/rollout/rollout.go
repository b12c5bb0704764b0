// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const (
	// lookEvery is how often Redis is compared with the rows.
	lookEvery = 2 * time.Second
	// againAfter is the pause after an error.
	againAfter = time.Second
	// roundTime bounds a round.
	roundTime = 10 * time.Second
	// pageMax is how many policies are read at a time.
	pageMax = 100
	// readMax is how many policies are read from Redis at a time.
	readMax = 8
)

// Rollout publishes policies to one Redis. Create one with its fields and call Run.
type Rollout struct {
	// Region is the region of the Redis, or "" if the control plane has no regions.
	Region   string
	Database *pgx.ConnConfig
	Ledger   *ledger.Ledger
	Redis    *redisstore.Store
	Key      ed25519.PrivateKey // nil means that nothing is published
	Logger   *slog.Logger

	written map[string]int64 // the generation in Redis, by policy
	nodes   map[string]*trial
	trouble string
	invalid map[string]string // why a policy is not published, as this process has recorded it
}

// Encode returns an error if a publication cannot be published.
func (r *Rollout) Encode(p *ledger.Publication, now, candidate *ledger.Revision) error {
	if r.Key == nil {
		return &ledger.Invalid{Text: "this control plane has no key to sign policies with: start it with --policy-key FILE"}
	}
	if candidate != nil && p.ClientShare > 0 {
		if err := checkCounters(now, candidate); err != nil {
			return err
		}
	}
	_, err := r.encode(p, now, candidate)
	if errors.Is(err, published.ErrTooLarge) {
		return &ledger.Invalid{Place: "revision", Value: now.Revision, Text: err.Error()}
	}
	return err
}

// encode returns the signed text of a publication.
func (r *Rollout) encode(p *ledger.Publication, now, candidate *ledger.Revision) ([]byte, error) {
	m := published.Message{Policy: now.Policy, Generation: p.Generation, Now: published.Content{Revision: now.Revision, Document: now.Document}}
	if candidate != nil {
		m.Candidate = &published.Candidate{Content: published.Content{Revision: candidate.Revision, Document: candidate.Document},
			Share: int32(p.Share + p.ClientShare), Clients: p.ClientShare > 0}
	}
	return m.Seal(r.Key)
}

// Run publishes until the context is done.
func (r *Rollout) Run(ctx context.Context) {
	r.written, r.nodes, r.invalid = map[string]int64{}, map[string]*trial{}, map[string]string{}
	for ctx.Err() == nil {
		if err := r.follow(ctx); ctx.Err() == nil {
			r.logTrouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(againAfter/2 + rand.N(againAfter)):
		}
	}
}

// logTrouble logs the beginning and the end of trouble.
func (r *Rollout) logTrouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == r.trouble:
	case text != "":
		r.Logger.Warn("a policy could not be published; nodes go on with what they have", "region", r.Region, "error", text)
	default:
		r.Logger.Info("publishing policies goes on", "region", r.Region)
	}
	r.trouble = text
}

// follow publishes until the connection to the database ends.
func (r *Rollout) follow(ctx context.Context) error {
	c, err := pgx.ConnectConfig(ctx, r.Database.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if _, err := c.Exec(ctx, "LISTEN penstock_changes"); err != nil {
		return err
	}
	for look := (time.Time{}); ; {
		due := !time.Now().Before(look)
		if due {
			look = time.Now().Add(lookEvery)
		}
		if err := r.round(ctx, due); ctx.Err() == nil {
			r.logTrouble(err)
		}
		waiting, cancel := context.WithDeadline(ctx, look)
		_, err := c.WaitForNotification(waiting)
		late := waiting.Err() != nil
		cancel()
		if err != nil && (!late || ctx.Err() != nil || c.IsClosed()) {
			return err
		}
	}
}

// Rollout.round writes the publications that Redis lacks. If look is true, it reads Redis and the
// nodes as well.
func (r *Rollout) round(ctx context.Context, look bool) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	var problems []error
	for after := ""; ; {
		page, err := r.Ledger.Policies(ctx, after, pageMax)
		if err != nil {
			return errors.Join(append(problems, err)...)
		}
		due := slices.DeleteFunc(slices.Clone(page), func(p ledger.Policy) bool {
			return p.Generation == 0 || !look && r.written[p.Policy] == p.Generation
		})
		for some := range slices.Chunk(due, readMax) {
			problems = append(problems, r.publishSome(ctx, some))
		}
		if look {
			problems = append(problems, r.watch(ctx, page))
		}
		if len(page) < pageMax {
			return errors.Join(problems...)
		}
		after = page[len(page)-1].Policy
	}
}

// errKey is the error of a process that has no key to sign with.
var errKey = errors.New("this process has no key to sign policies with: start it with --policy-key FILE")

// Rollout.valid returns a policy and the revisions of its publication. If their rows do not
// compile, the method records the reason, and what is in Redis stays in force.
func (r *Rollout) valid(ctx context.Context, name string) (p *ledger.Policy, now, candidate *ledger.Revision, err error) {
	p, now, candidate, err = r.Ledger.Published(ctx, name)
	for _, one := range []*ledger.Revision{now, candidate} {
		if err != nil || one == nil {
			continue
		}
		if wrong := one.Document.Check(); wrong != nil {
			err = fmt.Errorf("%w: revision %d: %w", ledger.ErrRows, one.Revision, wrong)
		}
	}
	if err != nil && !errors.Is(err, ledger.ErrRows) {
		return nil, nil, nil, err
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if was, known := r.invalid[name]; !known || was != problem {
		if failed := r.Ledger.SetPolicyProblem(ctx, name, problem); failed != nil {
			return nil, nil, nil, errors.Join(err, failed)
		}
		r.invalid[name] = problem
	}
	return p, now, candidate, err
}

// publishSome writes policies to Redis, unless Redis has them already.
func (r *Rollout) publishSome(ctx context.Context, policies []ledger.Policy) error {
	if r.Key == nil {
		return errKey
	}
	names := make([]string, len(policies))
	for i := range policies {
		names[i] = policies[i].Policy
	}
	present, err := redispolicy.ReadAll(ctx, r.Redis, names)
	if err != nil {
		return fmt.Errorf("policy %q: %w", names[0], err)
	}
	var problems []error
	for i := range policies {
		if err := r.publish(ctx, &policies[i], present[i]); err != nil {
			problems = append(problems, fmt.Errorf("policy %q: %w", names[i], err))
		}
	}
	return errors.Join(problems...)
}

// Rollout.publish writes a policy to Redis, unless Redis already has this publication. The
// parameter present is the text in Redis.
func (r *Rollout) publish(ctx context.Context, p *ledger.Policy, present []byte) error {
	mine := []ed25519.PublicKey{r.Key.Public().(ed25519.PublicKey)}
	if m, err := published.Open(present, p.Policy, mine); err == nil && m.Generation >= p.Generation {
		if m.Generation > p.Generation {
			return fmt.Errorf("generation %d is in Redis, and %d in this database: the database was restored from a backup; publish the policy anew",
				m.Generation, p.Generation)
		}
		return r.noteWritten(ctx, p.Policy, p.Generation)
	}
	// The rows may have a later generation than p by now.
	latest, now, candidate, err := r.valid(ctx, p.Policy)
	if err != nil || now == nil {
		return err
	}
	text, err := r.encode(&latest.Publication, now, candidate)
	if err != nil {
		return err
	}
	swapped, err := redispolicy.Swap(ctx, r.Redis, p.Policy, present, text)
	if err != nil {
		return err
	}
	if swapped { // otherwise another process has written it, and the next look shows it
		r.Logger.Info("a policy is published", "region", r.Region, "policy", p.Policy, "generation", latest.Generation, "revision", latest.Revision,
			"candidate", latest.Candidate)
		return r.noteWritten(ctx, p.Policy, latest.Generation)
	}
	return nil
}

// noteWritten remembers that Redis has a publication, and records it in the database.
func (r *Rollout) noteWritten(ctx context.Context, policy string, generation int64) error {
	if r.written[policy] == generation {
		return nil
	}
	r.written[policy] = generation
	return r.Ledger.RegionHas(ctx, r.Region, policy, generation)
}
