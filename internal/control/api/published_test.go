// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/controlclient"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/eventually"
)

// redisText is a Redis with published policies.
type redisText struct {
	mu    sync.Mutex
	texts map[string][]byte
	err   error
	reads int
}

func (r *redisText) read(_ context.Context, policy string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	if policy == "shop" && r.texts == nil && r.err == nil {
		return []byte(`{"v":1,"policy":"shop","generation":3}` + "\nsigned"), nil
	}
	return r.texts[policy], r.err
}

func (r *redisText) set(texts map[string][]byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts, r.err = texts, err
}

var policyKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// signedText returns a text with a generation.
func signedText(t *testing.T, generation int64) []byte {
	t.Helper()
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"5/1m"}}}}
	text, err := (&published.Message{Policy: "shop", Generation: generation, Now: published.Content{Revision: 1, Document: d}}).Seal(policyKey)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (s *served) walkPublished() {
	const shop = "/v1/policies/shop/published"
	a := s.checkAnswer(s.ask(ledger.Viewer, "GET", shop, ""), 200, `"generation":3`)
	if kind := a.header.Get("Content-Type"); kind != octets {
		s.t.Errorf("the type is %q", kind)
	}
	tag := a.header.Get("ETag")
	if !strings.HasPrefix(tag, `"3-`) {
		s.t.Errorf("the ETag is %s", tag)
	}
	for _, known := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
		a := s.checkAnswer(s.ask(ledger.Node, "GET", shop, "", "If-None-Match", known), 304)
		if a.body != "" || a.header.Get("ETag") != tag {
			s.t.Errorf("with %s, %v %q", known, a.header, a.body)
		}
	}
	s.checkAnswer(s.ask(ledger.Node, "GET", shop, "", "If-None-Match", `"2-`+tag[3:]), 200, "signed")
	s.checkAnswer(s.ask(ledger.Node, "GET", "/v1/policies/other/published", ""), 404, "penstock control policy publish")
	s.checkAnswer(s.ask(ledger.Node, "GET", "/v1/policies/a%2Fb/published", ""), 422, "path.policy")
	s.checkAnswer(s.ask(ledger.Node, "GET", "/v1/policies/shop", ""), 403)
}

// TestThePublishedPolicyIsThatOfRedis tests that the answer is byte for byte the text in Redis, and
// that with several regions it is the text of the latest publication, unless that text is forged.
// It also tests the answers while a Redis is away.
func TestThePublishedPolicyIsThatOfRedis(t *testing.T) {
	t.Parallel()
	us, eu := new(redisText), new(redisText)
	var log eventually.Journal
	s := serve(t, func(o *Options) {
		o.Logger = log.Logger()
		o.Regions = []Region{{Name: "us", Published: us.read}, {Name: "eu", Published: eu.read}}
		o.PolicyKeys = []ed25519.PublicKey{policyKey.Public().(ed25519.PublicKey)}
	})
	now := time.Now()
	s.api.published.now = func() time.Time { return now }
	c, err := controlclient.New(s.url, controlclient.Options{Token: s.tokens[ledger.Node]})
	if err != nil {
		t.Fatal(err)
	}
	away, older, newer := errors.New("away"), map[string][]byte{"shop": signedText(t, 9)}, map[string][]byte{"shop": signedText(t, 10)}
	none := map[string][]byte{}
	planted := map[string][]byte{"shop": []byte(`{"v":1,"policy":"shop","generation":9000000000000000000}` + "\nx")}
	for _, step := range []struct {
		us, eu       map[string][]byte
		usErr, euErr error
		status       int
		want         []byte
	}{
		{older, newer, nil, nil, 200, newer["shop"]},
		{newer, older, nil, nil, 200, newer["shop"]},
		{none, older, away, nil, 200, older["shop"]},
		{older, none, nil, nil, 200, older["shop"]},
		{older, planted, nil, nil, 200, older["shop"]},
		{planted, older, nil, nil, 200, older["shop"]},
		{none, planted, nil, nil, 200, planted["shop"]},
		{none, none, nil, nil, 404, nil},
		{none, none, away, nil, 503, nil},
		{none, none, away, away, 503, nil},
		{none, none, away, away, 503, nil},
	} {
		now = now.Add(publishedFor)
		us.set(step.us, step.usErr)
		eu.set(step.eu, step.euErr)
		s.described("GET", "/v1/policies/shop/published", s.ask(ledger.Node, "GET", "/v1/policies/shop/published", ""))
		text, tag, err := c.GetPublishedPolicy(t.Context(), "shop", "")
		if step.status != 200 {
			if failed(err) != step.status || step.status == 503 && !strings.Contains(err.Error(), "nodes continue") {
				t.Errorf("%+v: %v", step, err)
			}
			continue
		}
		if err != nil || !bytes.Equal(text, step.want) {
			t.Errorf("%d bytes, %v; want %d", len(text), err, len(step.want))
		}
		if _, _, err := c.GetPublishedPolicy(t.Context(), "shop", tag); failed(err) != http.StatusNotModified {
			t.Errorf("with the ETag %s: %v", tag, err)
		}
	}
	for line, want := range map[string]int{`cannot be read; nodes get those of the other regions, if any" region=us error=away`: 2, `region=eu error=away`: 1, "can be read again": 1} {
		if got := strings.Count(log.String(), line); got != want {
			t.Errorf("the log has %q %d times, want %d: %s", line, got, want, log.String())
		}
	}
}

// TestAPanicOfAReadIsItsError tests that a panic while the text of one region is read makes only
// this read fail, and that the other region's text is returned.
func TestAPanicOfAReadIsItsError(t *testing.T) {
	t.Parallel()
	other := new(redisText)
	p := newPublishedTexts(&Options{Logger: slog.New(slog.DiscardHandler), Regions: []Region{{Name: "us", Published: other.read},
		{Name: "eu", Published: func(context.Context, string) ([]byte, error) { panic("provoked") }}}})
	if found, err := p.read(t.Context(), "shop"); err != nil || found.generation != 3 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := p.read(t.Context(), "other"); err == nil || !strings.Contains(err.Error(), `region "eu": a panic: provoked`) {
		t.Error(err)
	}
}

// TestAFloodOfReadsCostsRedisOneASecond tests that all callers within a second share a read, even
// one that fails, and that a caller who leaves does not end the read. It also tests that only a
// bounded number of made-up names are remembered.
func TestAFloodOfReadsCostsRedisOneASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads int
		p := newPublishedTexts(&Options{Logger: slog.New(slog.DiscardHandler), Regions: []Region{{Published: func(ctx context.Context, _ string) ([]byte, error) {
			reads++
			time.Sleep(publishedFor / 2)
			if reads == 2 {
				return nil, errors.New("away")
			}
			return []byte("text"), ctx.Err()
		}}}})
		for want := 1; want <= 3; want++ {
			leaving, leave := context.WithCancel(t.Context())
			leave()
			var callers sync.WaitGroup
			for i := range 100 {
				ctx := t.Context()
				if i == 0 {
					ctx = leaving
				}
				callers.Go(func() {
					found, err := p.read(ctx, "shop")
					if (err != nil) != (want == 2) && !errors.Is(err, context.Canceled) || err == nil && string(found.text) != "text" {
						t.Errorf("%q, %v", found.text, err)
					}
				})
			}
			callers.Wait()
			if reads != want {
				t.Errorf("%d reads, want %d", reads, want)
			}
			time.Sleep(publishedFor)
		}
		for i := range 3 * publishedMax {
			_, _ = p.join(fmt.Sprint(i))
		}
		if len(p.latest) > publishedMax {
			t.Errorf("%d policies are remembered", len(p.latest))
		}
	})
}
