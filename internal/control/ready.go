// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"strings"
	"sync"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/database"
)

// ready returns the state of the servers that the process needs. The API is of use if some of the
// regions are cut off, so one Redis is enough.
func (p *process) ready(ctx context.Context) api.Readiness {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	redis := make([]error, len(p.Regions))
	var looks sync.WaitGroup
	for i := range p.Regions {
		looks.Go(func() { redis[i] = p.Regions[i].Redis.Check(ctx) })
	}
	var schema error
	away := p.pool.Ping(ctx)
	r := api.Readiness{Schema: "unknown", Database: "ok", Publisher: p.publishing()}
	if away != nil {
		r.Database = "does not answer" // callers need no token, so the cause is only in the log
	} else {
		if schema = database.Check(ctx, p.pool); schema == nil {
			schema = p.pool.QueryRow(ctx, "SELECT coalesce(max(c.change - r.change), 0), (SELECT count(*) FROM unpublished) "+
				"FROM chain c, region_publications r WHERE r.region = ANY ($1)", p.regionNames()).Scan(&r.Unpublished, &r.Invalid)
		}
		r.Schema = textOf(schema)
	}
	r.OIDC = describeKeys(p.People)
	looks.Wait()
	var answers bool
	r.Redis, answers = p.redisTexts(redis)
	r.Ready = away == nil && schema == nil && answers && p.prepared.Load()
	return r
}

func textOf(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}

func (p *process) regionNames() []string {
	names := make([]string, len(p.Regions))
	for i := range p.Regions {
		names[i] = p.Regions[i].Name
	}
	return names
}

// redisTexts describes the Redis of each region, and reports whether one of them answers.
func (p *process) redisTexts(errs []error) (text string, answers bool) {
	var wrong []string
	for i, err := range errs {
		switch name := p.Regions[i].Name; {
		case err == nil:
			answers = true
		case name == "":
			wrong = append(wrong, err.Error())
		default:
			wrong = append(wrong, name+": "+err.Error())
		}
	}
	if len(wrong) == 0 {
		return "ok", answers
	}
	return strings.Join(wrong, "; "), answers
}

// publishing says whether the process publishes: to any region, and without an interruption.
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

// describeKeys returns the text of /readyz on the keys of the issuer for people.
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
