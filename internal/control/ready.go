// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/database"
)

// process.ready returns the state of the servers that the process needs. The API is useful even if
// some of the regions are cut off, so it is enough that one Redis answers. Callers need no token,
// so the answer only names what is not ready; the causes are in the log.
func (p *process) ready(ctx context.Context) api.Readiness {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	redis := make([]error, len(p.Regions))
	var looks sync.WaitGroup
	for i := range p.Regions {
		looks.Go(func() { redis[i] = p.Regions[i].Redis.Check(ctx) })
	}
	r := api.Readiness{Schema: "unknown", Database: "ok", Publisher: p.publishing(), OIDC: describeKeys(p.People)}
	away, schema := p.pool.Ping(ctx), error(nil)
	if away != nil {
		r.Database = "does not answer"
	} else if schema = p.readSchema(ctx, &r); schema != nil {
		r.Schema = "cannot be used; see the log"
	} else {
		r.Schema = "ok"
	}
	looks.Wait()
	var answers bool
	r.Redis, answers = p.describeRedis(redis)
	r.Ready = away == nil && schema == nil && answers && p.prepared.Load()
	p.logReady(&r, append(redis, away, schema))
	return r
}

// readSchema checks the schema, and counts the changes that are not published.
func (p *process) readSchema(ctx context.Context, r *api.Readiness) error {
	if err := database.Check(ctx, p.pool); err != nil {
		return err
	}
	return p.pool.QueryRow(ctx, "SELECT coalesce(max(c.change - r.change), 0), (SELECT count(*) FROM unpublished) "+
		"FROM chain c, region_publications r WHERE r.region = ANY ($1)", p.regionNames()).Scan(&r.Unpublished, &r.Invalid)
}

// logReady logs the causes when the answer of /readyz changes. Callers can ask for any number of
// answers, but cannot make the answer change.
func (p *process) logReady(r *api.Readiness, causes []error) {
	state := r.Database + "; " + r.Schema + "; " + r.Redis
	if before := p.readyState.Swap(&state); before != nil && *before == state {
		return
	}
	if err := errors.Join(causes...); err != nil {
		p.Logger.Warn("something that the process needs cannot be used", "database", r.Database, "schema", r.Schema, "redis", r.Redis, "error", err)
	}
}

func (p *process) regionNames() []string {
	names := make([]string, len(p.Regions))
	for i := range p.Regions {
		names[i] = p.Regions[i].Name
	}
	return names
}

// describeRedis returns a text that names the regions whose Redis cannot be used, and reports
// whether any Redis answers.
func (p *process) describeRedis(errs []error) (text string, answers bool) {
	const wrong = "cannot be used; see the log"
	var names []string
	for i, err := range errs {
		answers = answers || err == nil
		if err != nil {
			names = append(names, p.Regions[i].Name)
		}
	}
	switch {
	case len(names) == 0:
		return "ok", answers
	case names[0] == "": // there are no regions
		return wrong, answers
	}
	return strings.Join(names, ", ") + ": " + wrong, answers
}

// process.publishing returns what /readyz says about the publishers: whether the process publishes
// to any region, and whether publication is interrupted.
func (p *process) publishing() string {
	text := "stands by"
	for _, publisher := range p.publishers {
		if publisher.Trouble() != "" {
			return "is interrupted; see the log"
		}
		if publisher.Leading() {
			text = "publishes"
		}
	}
	return text
}

// describeKeys returns what /readyz says about the keys of the issuer for people.
func describeKeys(people api.People) string {
	if people == nil {
		return ""
	}
	select {
	case <-people.Ready():
		return "ok"
	default:
		return "the issuer has not sent its keys yet; see the log"
	}
}
