// SPDX-License-Identifier: Apache-2.0

package redispolicy

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

const patience = 30 * time.Second

var signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))

// bench holds what a test needs: a Redis server with a policy, and a folder in which a source keeps
// the last valid version.
type bench struct {
	t      *testing.T
	redis  *redistest.Server
	store  *redisstore.Store
	folder string
	log    eventually.Journal
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, redis: redistest.Start(t), folder: t.TempDir()}
	var err error
	if b.store, err = redisstore.New(redisstore.Options{URL: b.redis.URL()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.store.Close() })
	return b
}

// bench.text returns a signed policy as text. Its limit is the number of its generation.
func (b *bench) text(generation int64, key ed25519.PrivateKey, candidate int) []byte {
	b.t.Helper()
	document := func(limit int64) *policyfile.Document {
		return &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{fmt.Sprintf("%d/1m", limit)}}}}
	}
	m := published.Message{Policy: "shop", Generation: generation, Now: published.Content{Revision: 1, Document: document(generation)}}
	if candidate > 0 {
		m.Candidate = &published.Candidate{Content: published.Content{Revision: 2, Document: document(int64(candidate))}}
	}
	text, err := m.Seal(key)
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// bench.set stores a text in Redis at the key of the policy, without notifying those who follow the
// policy.
func (b *bench) set(text []byte) {
	b.t.Helper()
	if err := b.redis.Client().Set(b.t.Context(), keyOf("shop"), text, 0).Err(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) source(o follow.Options) *follow.Source {
	b.t.Helper()
	o.Origin, o.Policy, o.Keys = &Origin{b.store, "shop"}, "shop", []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}
	o.Logger = slog.New(slog.NewTextHandler(&b.log, nil))
	s, err := follow.New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// bench.follow starts to follow a source, and keeps each policy that the source delivers. It
// returns a channel that receives the limit of each delivered policy and the text of each error,
// and the follower.
func (b *bench) follow(s *follow.Source) (<-chan string, live.Follower) {
	b.t.Helper()
	reports := make(chan string, 100)
	f, err := s.Follow(func(d *policyfile.Document, err error) {
		if err != nil {
			reports <- err.Error()
			return
		}
		s.Keep(d)
		reports <- d.Rules[0].Limit[0]
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = f.Close() })
	return reports, f
}

// bench.next fails the test unless the next report of bench.follow contains the text named want.
func (b *bench) next(reports <-chan string, want string) {
	b.t.Helper()
	select {
	case got := <-reports:
		if !strings.Contains(got, want) {
			b.t.Fatalf("told %q, want %q", got, want)
		}
	case <-time.After(patience):
		b.t.Fatalf("nothing was told; want %q", want)
	}
}

// bench.loads fails the test unless a source with these options loads a policy that has the limit
// named want.
func (b *bench) loads(o follow.Options, want string) {
	b.t.Helper()
	if d, err := b.source(o).Load(); err != nil || d.Rules[0].Limit[0] != want || d.Published() != d.Version() {
		b.t.Errorf("loaded %+v, %v; want the limit %s", d, err, want)
	}
}

// TestASourceFollowsRedis tests that a source finds a change at once if it is announced, and
// otherwise when it next reads Redis. It also tests that a forged policy, or one older than the
// last, is reported as an error once.
func TestASourceFollowsRedis(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.source(follow.Options{}).Load(); err == nil || !strings.Contains(err.Error(), "penstock control policy publish") {
		t.Errorf("without a policy: %v", err)
	}
	b.set(b.text(5, signer, 0))
	s := b.source(follow.Options{Folder: b.folder, Every: 50 * time.Millisecond})
	if d, err := s.Load(); err != nil || d.Rules[0].Limit[0] != "5/1m" {
		t.Fatal(err)
	}
	reports, f := b.follow(s)
	b.set(b.text(6, signer, 0))
	b.next(reports, "6/1m") // it was not announced
	if swapped, err := Swap(t.Context(), b.store, "shop", b.text(6, signer, 0), b.text(7, signer, 0)); err != nil || !swapped {
		t.Fatal(swapped, err)
	}
	b.next(reports, "7/1m")
	if swapped, err := Swap(t.Context(), b.store, "shop", b.text(6, signer, 0), b.text(8, signer, 0)); err != nil || swapped {
		t.Errorf("a policy that has changed since was replaced: %t, %v", swapped, err)
	}
	b.set(b.text(9, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize)), 0))
	b.next(reports, "not signed by a key that this node trusts")
	b.set(b.text(6, signer, 0))
	b.next(reports, "somebody has restored an old one")
	b.set([]byte("nonsense"))
	b.next(reports, "broken")
	if err := f.Reload(); err == nil {
		t.Error("a reload reports no error")
	}
	b.next(reports, "broken")
	if err := b.redis.Client().Del(t.Context(), keyOf("shop")).Err(); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the log tells that Redis has no policy", func() bool { return strings.Contains(b.log.String(), "no published policy any more") })
	b.set(b.text(10, signer, 0))
	b.next(reports, "10/1m")
	if len(reports) > 0 {
		t.Errorf("told %q besides", <-reports)
	}
}

// TestAStartWithoutRedis tests that a source keeps the last policy that was in force, verifies it
// when it starts without Redis, and prefers it to an older policy in Redis.
func TestAStartWithoutRedis(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.set(b.text(5, signer, 0))
	s := b.source(follow.Options{Folder: b.folder})
	d, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	b.set(nil)
	if _, err := b.source(follow.Options{Folder: b.folder}).Load(); err == nil {
		t.Error("a policy that did not come into force was kept")
	}
	s.Keep(d)
	b.loads(follow.Options{Folder: b.folder}, "5/1m") // Redis has nothing that can be read
	b.set(b.text(4, signer, 0))
	b.loads(follow.Options{Folder: b.folder}, "5/1m") // Redis has an older policy
	b.loads(follow.Options{}, "4/1m")                 // a node without a folder has no other policy
	b.redis.Kill()
	b.loads(follow.Options{Folder: b.folder}, "5/1m")
	path := filepath.Join(b.folder, "policy-shop.signed")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte(`"generation":5`), []byte(`"generation":6`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.source(follow.Options{Folder: b.folder}).Load(); err == nil || !strings.Contains(err.Error(), "is denied: the published policy is not signed") {
		t.Errorf("a file that was changed: %v", err)
	}
}

// TestATrialIsIdleWithoutACandidate tests that a source of candidates returns a policy that is not
// enabled while there is no candidate.
func TestATrialIsIdleWithoutACandidate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.set(b.text(5, signer, 0))
	s := b.source(follow.Options{Trial: true, Every: 50 * time.Millisecond, Folder: b.folder})
	d, err := s.Load()
	if err != nil || d.Enabled == nil || *d.Enabled {
		t.Fatalf("without a candidate: %+v, %v", d, err)
	}
	reports, f := b.follow(s)
	b.set(b.text(6, signer, 9))
	b.next(reports, "9/1m")
	b.set([]byte("nonsense")) // no error here: the source of the policy in force reports it
	if err := f.Reload(); err != nil {
		t.Errorf("a trial reports %v", err)
	}
	b.set(b.text(7, signer, 8))
	b.next(reports, "8/1m")
	if files, err := os.ReadDir(b.folder); err != nil || len(files) > 0 {
		t.Errorf("a trial keeps %v, %v", files, err)
	}
}
