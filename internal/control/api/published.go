// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/survive"
)

// Bounds for reads of published policies.
const (
	// publishedFor is how long a text that was read is given to all callers. So any number of nodes
	// cause at most one read of each policy per second in each Redis.
	publishedFor = time.Second
	// publishedTime bounds a read.
	publishedTime = 2 * time.Second
	// publishedReads bounds the reads that run at the same time, each for another policy.
	publishedReads = 8
	// publishedMax bounds the policies whose last read is remembered. Callers choose the names.
	publishedMax = 1024
	// publishedSuffix ends the paths of published policies.
	publishedSuffix = "/published"
	// octets is the type of a text that is only copied.
	octets = "application/octet-stream"
)

// publishedAnswer is the signed text of a published policy.
type publishedAnswer struct {
	Status      int
	ContentType string `header:"Content-Type" hidden:"true"`
	ETag        string `header:"ETag" doc:"identifies the text, for If-None-Match"`
	Body        []byte
}

// publishedOperation registers the operation that nodes without Redis call.
func (a *API) publishedOperation() {
	o := forNodesToo(operation(http.MethodGet, policyPathText+publishedSuffix, "get-published-policy",
		"Get the signed text that is published to nodes, for nodes without Redis", ledger.Viewer, 404))
	o.Responses = map[string]*huma.Response{
		"200": {Description: "The signed text, as it is in Redis", Content: map[string]*huma.MediaType{octets: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}},
		"304": {Description: "The text still has the ETag of If-None-Match", Headers: map[string]*huma.Param{"ETag": {Schema: &huma.Schema{Type: "string"}}}},
	}
	huma.Register(a.huma, o, a.getPublished)
}

func (a *API) getPublished(ctx context.Context, in *struct {
	PolicyPath
	IfNoneMatch string `header:"If-None-Match" doc:"the ETag of the text that the caller has; if it is still the present one, the answer is 304 without a text"`
},
) (*publishedAnswer, error) {
	found, err := a.published.read(ctx, in.Policy)
	switch {
	case err != nil:
		return nil, unavailable("the published policy could not be read from Redis; /readyz reports the state of Redis, and the log of the control " +
			"plane the reason; nodes continue with the policy that they have; try again")
	case found.text == nil:
		return nil, huma.Error404NotFound("no policy of this name is published: publish it with penstock control policy publish, or correct the name")
	case matches(in.IfNoneMatch, found.tag):
		return &publishedAnswer{Status: http.StatusNotModified, ETag: found.tag}, nil
	}
	return &publishedAnswer{Status: http.StatusOK, ContentType: octets, ETag: found.tag, Body: found.text}, nil
}

// matches reports whether list, a value of If-None-Match, contains the ETag tag.
func matches(list, tag string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == tag {
			return true
		}
	}
	return false
}

// publishedText is a text that was read; nil if there is none.
type publishedText struct {
	text       []byte
	tag        string
	generation int64
	signed     bool // by a key that the process knows
}

// publishedText.yields reports whether t must give way to a text from another region. Whoever can
// write to the Redis of one region can name any generation, but cannot sign it.
func (t *publishedText) yields(to *publishedText) bool {
	if t.text == nil || t.signed != to.signed {
		return t.text == nil || to.signed
	}
	return to.generation > t.generation
}

// publishedTexts reads the texts of published policies. All callers within [publishedFor] share a
// read.
type publishedTexts struct {
	regions []Region
	keys    []ed25519.PublicKey
	logger  *slog.Logger
	now     func() time.Time
	reading chan struct{} // holds a value for each read
	failing []atomic.Bool // by region: whether the log says that its Redis cannot be read

	mu     sync.Mutex
	latest map[string]*publishedRead // by policy
}

// publishedRead is one attempt to read the text of a published policy. Its result is set when the
// channel is closed.
type publishedRead struct {
	begun time.Time
	done  chan struct{}
	found publishedText
	err   error
}

func newPublishedTexts(o *Options) *publishedTexts {
	return &publishedTexts{regions: o.Regions, keys: o.PolicyKeys, logger: o.Logger, now: time.Now,
		reading: make(chan struct{}, publishedReads), failing: make([]atomic.Bool, len(o.Regions)), latest: map[string]*publishedRead{}}
}

// publishedTexts.read returns the text of a policy.
func (p *publishedTexts) read(ctx context.Context, policy string) (publishedText, error) {
	r, mine := p.join(policy)
	if mine {
		defer close(r.done)
		// The other callers need the text even if this one leaves.
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishedTime)
		defer cancel()
		r.found, r.err = p.readAll(reading, policy)
		return r.found, r.err
	}
	select {
	case <-r.done:
		return r.found, r.err
	case <-ctx.Done():
		return publishedText{}, ctx.Err()
	}
}

// publishedTexts.join returns the latest attempt to read a policy. The result mine reports whether
// the attempt is new, so that the caller must make it.
func (p *publishedTexts) join(policy string) (r *publishedRead, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if r = p.latest[policy]; r != nil && now.Sub(r.begun) < publishedFor {
		return r, false
	}
	if len(p.latest) >= publishedMax {
		clear(p.latest) // the next caller for each policy reads again
	}
	r = &publishedRead{begun: now, done: make(chan struct{}), err: errors.New("reading has panicked")}
	p.latest[policy] = r
	return r, true
}

// readAll reads the text in the Redis of each region, and returns the text of the latest
// publication. Texts with a known signature come before all others. The same text is published in
// all regions, but not at the same instant.
func (p *publishedTexts) readAll(ctx context.Context, policy string) (latest publishedText, err error) {
	select {
	case p.reading <- struct{}{}:
		defer func() { <-p.reading }()
	case <-ctx.Done():
		return latest, ctx.Err()
	}
	texts, errs := make([][]byte, len(p.regions)), make([]error, len(p.regions))
	var reads sync.WaitGroup
	for i, region := range p.regions {
		reads.Go(func() {
			errs[i] = survive.Once(p.logger, func() (err error) {
				texts[i], err = region.Published(ctx, policy)
				return err
			})
		})
	}
	reads.Wait()
	for i, text := range texts {
		p.logFailing(i, errs[i])
		if errs[i] != nil {
			errs[i] = fmt.Errorf("region %q: %w", p.regions[i].Name, errs[i])
			continue
		}
		if text == nil {
			continue
		}
		found := publishedText{text: text, generation: published.Generation(text), signed: published.IsSigned(text, policy, p.keys)}
		if latest.yields(&found) {
			latest = found
		}
	}
	if latest.text == nil {
		return latest, errors.Join(errs...)
	}
	sum := sha256.Sum256(latest.text)
	latest.tag = fmt.Sprintf(`"%d-%x"`, latest.generation, sum[:16])
	return latest, nil
}

// logFailing writes a log line when the Redis of a region can no longer be read, and another line
// when it can be read again.
func (p *publishedTexts) logFailing(region int, err error) {
	name := p.regions[region].Name
	switch was := p.failing[region].Swap(err != nil); {
	case err != nil && !was:
		p.logger.Warn("the published policies of a Redis cannot be read; nodes get those of the other regions, if any", "region", name, "error", err)
	case err == nil && was:
		p.logger.Info("the published policies of a Redis can be read again", "region", name)
	}
}
