// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/eventually"
)

// origin is an origin whose answer a test sets.
type origin struct {
	mu    sync.Mutex
	text  []byte
	err   error
	reads []time.Time
}

func (o *origin) String() string { return "test:shop" }

func (o *origin) Read(context.Context) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads = append(o.reads, time.Now())
	return o.text, o.err
}

func (o *origin) Listen(ctx context.Context, _ func()) { <-ctx.Done() }

func (o *origin) set(text []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text, o.err, o.reads = text, err, nil
}

// origin.pauses returns the pauses between the reads since the last call of set.
func (o *origin) pauses() (pauses []time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := 1; i < len(o.reads); i++ {
		pauses = append(pauses, o.reads[i].Sub(o.reads[i-1]))
	}
	return pauses
}

var signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))

func sealed(t *testing.T, generation int64) []byte {
	t.Helper()
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"5/1m"}}}}
	text, err := (&published.Message{Policy: "shop", Generation: generation, Now: published.Content{Revision: 1, Document: d}}).Seal(signer)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// followed starts to follow an origin. The function named delivered returns what was delivered
// since its last call: the limit of each policy and the text of each error. The function named end
// stops following.
func followed(t *testing.T, o *origin, logs *eventually.Journal) (delivered func() []string, end func()) {
	t.Helper()
	s, err := New(Options{Origin: o, Policy: "shop", Keys: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}, Node: "n",
		Logger: slog.New(slog.NewTextHandler(logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []string
	f, err := s.Follow(func(d *policyfile.Document, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			all = append(all, err.Error())
		} else {
			all = append(all, d.Rules[0].Limit[0])
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		now := all
		all = nil
		return now
	}, func() { _ = f.Close() }
}

// TestAnOriginThatDenies tests that an answer which is not a text is reported once, and that the
// policy in force is passed on again when the origin gives it again.
func TestAnOriginThatDenies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, logs := new(origin), new(eventually.Journal)
		o.set(sealed(t, 5), nil)
		delivered, end := followed(t, o, logs)
		defer end()
		time.Sleep(10 * lookEvery)
		if got := delivered(); len(got) != 1 || got[0] != "5/1m" {
			t.Errorf("told %q", got)
		}
		o.set(nil, errors.New("the token is not valid"))
		time.Sleep(10 * lookEvery)
		if got := delivered(); len(got) != 1 || got[0] != "the token is not valid" {
			t.Errorf("told %q", got)
		}
		for _, pause := range o.pauses() {
			if pause < lookEvery-lookEvery/10 {
				t.Errorf("an origin that denies is asked again after %v", pause)
			}
		}
		o.set(sealed(t, 5), nil)
		time.Sleep(2 * lookEvery)
		if got := delivered(); len(got) != 1 || got[0] != "5/1m" {
			t.Errorf("told %q", got)
		}
		o.set(nil, ErrNone)
		time.Sleep(10 * lookEvery)
		if got := delivered(); len(got) != 0 || strings.Count(logs.String(), "no published policy any more") != 1 {
			t.Errorf("told %q and logged %s", got, logs.String())
		}
	})
}

// TestAnOriginThatIsAway tests that an origin which does not answer is read again soon, and then
// less and less often. Nothing is reported.
func TestAnOriginThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, logs := new(origin), new(eventually.Journal)
		o.set(sealed(t, 5), nil)
		delivered, end := followed(t, o, logs)
		defer end()
		time.Sleep(2 * lookEvery)
		delivered()
		o.set(nil, &AwayError{errors.New("nobody there")})
		time.Sleep(6 * lookEvery)
		pauses := o.pauses()
		for i, want := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, lookEvery, lookEvery} {
			if len(pauses) <= i || pauses[i] < want-want/10 || pauses[i] > want+want/10 {
				t.Fatalf("the pauses are %v", pauses)
			}
		}
		o.set(sealed(t, 6), nil)
		time.Sleep(2 * lookEvery)
		if got := delivered(); len(got) != 1 || got[0] != "5/1m" {
			t.Errorf("told %q", got)
		}
		if logs.String() != "" {
			t.Errorf("logged %s", logs.String())
		}
	})
}

// TestTheLookFindsAChangeIn36Seconds tests the pause between two looks without an announcement. A
// change is in the origin a second after its commit, and a look takes at most two seconds.
func TestTheLookFindsAChangeIn36Seconds(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if span := about(lookEvery); span < 27*time.Second || span+3*time.Second > 36*time.Second {
			t.Fatalf("a pause of %v", span)
		}
	}
}
