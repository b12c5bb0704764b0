// SPDX-License-Identifier: Apache-2.0

package httppolicy

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

const patience = 30 * time.Second

var signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))

// sealed returns a signed policy of the given generation. Its limit is the generation too.
func sealed(t *testing.T, generation int64, key ed25519.PrivateKey) []byte {
	t.Helper()
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{fmt.Sprintf("%d/1m", generation)}}}}
	text, err := (&published.Message{Policy: "shop", Generation: generation, Now: published.Content{Revision: 1, Document: d}}).Seal(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// plane is a control plane whose answer a test sets.
type plane struct {
	url    string
	mu     sync.Mutex
	answer http.HandlerFunc
	calls  map[int]int // the number of calls by the status of their answer
	log    eventually.Journal
}

func newPlane(t *testing.T) *plane {
	p := &plane{calls: map[int]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		answer := p.answer
		p.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer pst_x" || r.URL.Path != "/v1/policies/shop/published" {
			t.Errorf("%s with %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		noted := &noting{ResponseWriter: w}
		answer(noted, r)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.calls[noted.status]++
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// noting notes the status of an answer.
type noting struct {
	http.ResponseWriter
	status int
}

func (n *noting) WriteHeader(status int) {
	n.status = status
	n.ResponseWriter.WriteHeader(status)
}

func (p *plane) do(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// plane.give makes the control plane publish a text.
func (p *plane) give(text []byte, tag string) {
	p.do(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(text)
	})
}

// plane.deny makes the control plane answer with a problem document. If the detail is "", the
// answer is a plain text, like one of another server.
func (p *plane) deny(status int, detail string) {
	p.do(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://elsewhere.invalid/login?state=secret")
		if detail == "" {
			w.WriteHeader(status)
			_, _ = w.Write([]byte("some text"))
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"detail":%q}`, detail)
	})
}

func (p *plane) count(status int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[status]
}

// plane.origin returns an origin whose reads share no call: its clock advances by sharedFor at each
// look.
func (p *plane) origin(t *testing.T) *Origin {
	t.Helper()
	o := p.sharing(t)
	begun, looks := time.Now(), new(atomic.Int64)
	o.now = func() time.Time { return begun.Add(time.Duration(looks.Add(1)) * sharedFor) }
	return o
}

func (p *plane) sharing(t *testing.T) *Origin {
	t.Helper()
	o, err := New(Options{Target: controlcall.Target{URL: p.url + "/", Token: func() (string, error) { return "pst_x", nil }}, Policy: "shop",
		Logger: slog.New(slog.NewTextHandler(&p.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestAnUnchangedTextIsNotSentAgain tests that a text is sent once, and then again only after it
// has changed.
func TestAnUnchangedTextIsNotSentAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	o := p.origin(t)
	for generation := int64(5); generation < 7; generation++ {
		text := sealed(t, generation, signer)
		p.give(text, fmt.Sprintf(`"%d"`, generation))
		for range 3 {
			if got, err := o.Read(t.Context()); err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
	}
	if p.count(200) != 2 || p.count(304) != 4 {
		t.Errorf("the texts are sent %d times, and %d calls have no text", p.count(200), p.count(304))
	}
	p.do(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, published.TextBytesMax+1)) })
	if _, err := o.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("a text that is too long: %v", err)
	}
}

// TestAStartIsOneCall tests that the policy and its candidate are loaded and followed with one
// call, also if the control plane does not answer. A read one second later makes another call.
func TestAStartIsOneCall(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusUnauthorized} {
		p, folder := newPlane(t), t.TempDir()
		p.give(sealed(t, 5, signer), `"5"`)
		now := time.Now()
		open := func(o *Origin, trial bool) *follow.Source {
			s, err := follow.New(follow.Options{Origin: o, Policy: "shop", Keys: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}, Folder: folder, Node: "n", Trial: trial})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		former := open(p.origin(t), false)
		if d, err := former.Load(); err != nil {
			t.Fatal(err)
		} else {
			former.Keep(d)
		}
		if status != http.StatusOK {
			p.deny(status, "not now")
		}
		before := p.count(status)
		o := p.sharing(t)
		o.now = func() time.Time { return now }
		policy, candidate := open(o, false), open(o, true)
		for _, s := range []*follow.Source{policy, candidate} {
			if _, err := s.Load(); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*follow.Source{policy, candidate} {
			f, err := s.Follow(func(*policyfile.Document, error) {})
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Reload()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if calls := p.count(status) - before; calls != 1 {
			t.Errorf("%d: a start is %d calls", status, calls)
		}
		now = now.Add(sharedFor)
		_, _ = o.Read(t.Context())
		if calls := p.count(status) + p.count(http.StatusNotModified) - before; calls != 2 {
			t.Errorf("%d: a second later, there were %d calls", status, calls)
		}
	}
}

// TestWhoeverLeavesEndsNoOther tests that a read which waits for the call of another read ends with
// its own context. If the caller of a read leaves during the call, the error of that call does not
// answer later reads.
func TestWhoeverLeavesEndsNoOther(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	asked, text := make(chan struct{}, 1), sealed(t, 5, signer)
	p.do(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	o := p.sharing(t)
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := o.Read(first)
		left <- err
	}()
	<-asked
	gone, end := context.WithCancel(t.Context())
	end()
	if _, err := o.Read(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a read that waits: %v", err)
	}
	p.give(text, `"5"`)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a read whose caller left: %v", err)
	}
	if got, err := o.Read(t.Context()); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestWhatIsNoText tests which answers mean that the control plane is away, that no policy is
// published, or that somebody has to correct something, and that the token goes to no other host.
func TestWhatIsNoText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status       int
		detail, want string
		away, none   bool
	}{
		{401, "this one is revoked", "answered 401: this one is revoked", false, false},
		{403, "", "answered 403", false, false},
		{404, "no policy of this name is published", "penstock control policy publish", false, true},
		{404, "", "correct the URL", false, false},
		{422, "the name", "answered 422: the name", false, false},
		{429, "too many", "answered 429: too many", true, false},
		{503, "Redis is away", "answered 503: Redis is away", true, false},
		{502, "", "answered 502", true, false},
		{302, "", `sends to "http://elsewhere.invalid":`, false, false},
		{304, "", "answered 304", false, false},
	} {
		p := newPlane(t)
		p.deny(c.status, c.detail)
		_, err := p.origin(t).Read(t.Context())
		_, away := errors.AsType[*follow.AwayError](err)
		if err == nil || !strings.Contains(err.Error(), c.want) || away != c.away || errors.Is(err, follow.ErrNone) != c.none {
			t.Errorf("%d: %v, away %t", c.status, err, away)
		}
	}
}

// TestDenialsThatVaryAreReportedOnce tests that each kind of denial is reported once, although a
// login proxy, a gateway or a page of another server has other words each time.
func TestDenialsThatVaryAreReportedOnce(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	var looks atomic.Int64
	vary := func(answer func(w http.ResponseWriter, look int64)) {
		p.do(func(w http.ResponseWriter, _ *http.Request) { answer(w, looks.Add(1)) })
	}
	p.give(sealed(t, 5, signer), `"5"`)
	s, err := follow.New(follow.Options{Origin: p.origin(t), Policy: "shop", Keys: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}, Node: "n",
		Every: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1000)
	f, err := s.Follow(func(_ *policyfile.Document, err error) { told <- fmt.Sprint(err) })
	if err != nil {
		t.Fatal(err)
	}
	if got := <-told; got != "<nil>" {
		t.Fatal(got)
	}
	for want, answer := range map[string]func(w http.ResponseWriter, look int64){
		`sends to "https://login.invalid"`: func(w http.ResponseWriter, look int64) {
			w.Header().Set("Location", fmt.Sprintf("https://login.invalid/?state=%d", look))
			w.WriteHeader(http.StatusFound)
		},
		"answered 403: request ": func(w http.ResponseWriter, look int64) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"detail":"request %d"}`, look)
		},
		"is not a published policy": func(w http.ResponseWriter, look int64) { _, _ = fmt.Fprintf(w, "<html>%d", look) },
	} {
		vary(answer)
		if got := <-told; !strings.Contains(got, want) || strings.Contains(got, "state=") {
			t.Errorf("told %q, want %q", got, want)
		}
		begun := looks.Load()
		eventually.Until(t, patience, "further looks", func() bool { return looks.Load() > begun+5 })
		if len(told) > 0 {
			t.Errorf("%q is reported again, as %q", want, <-told)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestAControlPlaneThatIsAway tests that each interruption is logged once, whatever its cause, and
// that a text which ends early is not used.
func TestAControlPlaneThatIsAway(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	o := p.origin(t)
	text := sealed(t, 5, signer)
	for _, away := range []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = w.Write(text[:len(text)/2])
		},
	} {
		p.do(away)
		for range 2 {
			_, err := o.Read(t.Context())
			if _, away := errors.AsType[*follow.AwayError](err); !away {
				t.Errorf("%v", err)
			}
		}
	}
	p.give(text, `"5"`)
	if got, err := o.Read(t.Context()); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if log := p.log.String(); strings.Count(log, "does not give the policy") != 1 || strings.Count(log, "answers for the policy again") != 1 {
		t.Errorf("the log is %s", log)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := o.Read(ended); err == nil || strings.Count(p.log.String(), "does not give the policy") != 1 {
		t.Errorf("the end of a node is logged: %v, %s", err, p.log.String())
	}
}

// TestASourceFollowsTheAPI follows a control plane through everything that it can answer: only
// policies that are signed and not older than the last one come into force, what is wrong is
// reported once, and the last policy is kept for a start.
func TestASourceFollowsTheAPI(t *testing.T) {
	t.Parallel()
	p, folder := newPlane(t), t.TempDir()
	source := func(o *Origin) *follow.Source {
		s, err := follow.New(follow.Options{Origin: o, Policy: "shop", Keys: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}, Folder: folder, Node: "n",
			Every: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&p.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	p.give(sealed(t, 5, signer), `"5"`)
	s := source(p.origin(t))
	if d, err := s.Load(); err != nil || d.Rules[0].Limit[0] != "5/1m" || s.String() != "http:shop" {
		t.Fatal(err)
	}
	told := make(chan string, 100)
	f, err := s.Follow(func(d *policyfile.Document, err error) {
		if err != nil {
			told <- err.Error()
			return
		}
		s.Keep(d)
		told <- d.Rules[0].Limit[0]
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		set  func()
		want string
	}{
		{func() { p.give(sealed(t, 6, signer), `"6"`) }, "6/1m"},
		{func() { p.give(sealed(t, 7, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))), `"7"`) }, "not signed by a key that this node trusts"},
		{func() { p.give(sealed(t, 4, signer), `"4"`) }, "somebody has restored an old one"},
		{func() { p.deny(401, "the token is unknown") }, "answered 401: the token is unknown"},
		{func() { p.give(sealed(t, 8, signer)[:200], `"8"`) }, "not signed"},
		{func() { p.give(make([]byte, published.TextBytesMax+1), `"9"`) }, "sends more than 1048576 bytes"},
		{func() { p.give(sealed(t, 10, signer), `"10"`) }, "10/1m"},
	} {
		step.set()
		select {
		case got := <-told:
			if !strings.Contains(got, step.want) {
				t.Fatalf("told %q, want %q", got, step.want)
			}
		case <-time.After(patience):
			t.Fatalf("nothing was told; want %q", step.want)
		}
	}
	if err := f.Close(); err != nil || len(told) > 0 {
		t.Errorf("%v, and %d reports more", err, len(told))
	}
	nobody := &plane{url: "http://" + freeport.Address(t)}
	if d, err := source(nobody.origin(t)).Load(); err != nil || d.Rules[0].Limit[0] != "10/1m" {
		t.Errorf("without a control plane: %v", err)
	}
	folder = filepath.Join(folder, "none")
	if _, err := source(nobody.origin(t)).Load(); err == nil || !strings.Contains(err.Error(), "did not answer for the policy") {
		t.Errorf("without a control plane and a copy: %v", err)
	}
}

// TestTheTokenStaysSecret tests that an unusable URL is an error, and that New warns if the network
// can read the token.
func TestTheTokenStaysSecret(t *testing.T) {
	t.Parallel()
	var log eventually.Journal
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, err := New(Options{Target: controlcall.Target{URL: "control"}, Policy: "shop", Logger: logger}); err == nil || !strings.Contains(err.Error(), "is no URL") {
		t.Error(err)
	}
	for _, url := range []string{"http://127.0.0.1:1", "https://control"} {
		if _, err := New(Options{Target: controlcall.Target{URL: url}, Policy: "shop", Logger: logger}); err != nil || log.String() != "" {
			t.Errorf("%s: %v, %s", url, err, log.String())
		}
	}
	if _, err := New(Options{Target: controlcall.Target{URL: "http://control"}, Policy: "shop", Logger: logger}); err != nil || !strings.Contains(log.String(), "write https://") {
		t.Errorf("%v, %s", err, log.String())
	}
}
