// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
)

// memorySource is a source of a policy whose text the test sets.
type memorySource struct {
	mu      sync.Mutex
	text    string
	fails   error
	panics  bool
	changed func(*policyfile.Document, error)
}

func (m *memorySource) Load() (*policyfile.Document, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.panics {
		panic("provoked by the source")
	}
	if m.fails != nil {
		return nil, m.fails
	}
	return policyfile.Decode("memory", policyfile.YAML, []byte(m.text))
}

func (m *memorySource) Follow(changed func(*policyfile.Document, error)) (live.Follower, error) {
	m.changed = changed
	return m, nil
}

func (m *memorySource) Reload() error {
	d, err := m.Load()
	m.changed(d, err)
	return err
}

func (m *memorySource) Close() error   { return nil }
func (m *memorySource) String() string { return "memory" }

// memorySource.edit sets the text and reloads the policy.
func (m *memorySource) edit(text string) {
	m.text = text
	_ = m.Reload()
}

func policy(rules ...string) string {
	return "name: shop\nrules: [" + strings.Join(rules, ", ") + "]\n"
}

// openFollowed opens a policy over a source in memory and follows it.
func openFollowed(t *testing.T, change func(*live.Options)) (*live.Policy, *memorySource, *eventually.Journal) {
	t.Helper()
	source, log := &memorySource{text: policy("{name: a, limit: 1/1m}")}, new(eventually.Journal)
	o := live.Options{Source: source, Metrics: metrics.New(), Logger: log.Logger(), Verifiers: live.NewVerifiers(log.Logger())}
	if change != nil {
		change(&o)
	}
	p, err := live.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if n := o.Verifiers.Len(); n != 0 {
			t.Errorf("%d verifiers are left open", n)
		}
	})
	if err := p.Follow(); err != nil {
		t.Fatal(err)
	}
	return p, source, log
}

func TestEditsComeIntoForceFromAnySource(t *testing.T) {
	var calls []string
	p, source, _ := openFollowed(t, func(o *live.Options) {
		o.FormerMin = 1
		o.Changed = func(before, now *live.Version) {
			calls = append(calls, fmt.Sprintf("changed %t %d", before != nil, now.Ruleset.Len()))
		}
		o.Edited = func(name string, accepted bool) { calls = append(calls, fmt.Sprintf("edited %s %t", name, accepted)) }
	})
	first := p.Current()
	source.edit(source.text + "# a comment is no edit\n")
	if p.Current() != first {
		t.Error("a comment made a version")
	}
	source.edit(policy("{name: a, limit: 1/1m}", "{name: b, limit: 1/1h}"))
	second := p.Current()
	if second == first || second.Ruleset.Len() != 2 || p.Of(first.ID) != first {
		t.Errorf("in force: %+v, known: %v", second, p.Known())
	}
	source.edit("rules: [")
	if p.Current() != second || p.Err() == nil || p.Reload() == nil {
		t.Errorf("an edit that cannot be read: in force %v, error %v", p.Current(), p.Err())
	}
	source.edit(policy("{name: c, limit: 1/1m}"))
	if p.Err() != nil || p.Of(first.ID) != nil || len(p.Known()) != 2 {
		t.Errorf("error %v, known: %v", p.Err(), p.Known())
	}
	want := []string{"changed false 1", "edited shop true", "changed true 2", "edited shop false", "edited shop false",
		"edited shop true", "changed true 1"}
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
}

// TestAPanicRejectsTheEdit: wherever an edit causes a panic, the previous version remains in force,
// a later edit is applied, and no verifier remains open.
func TestAPanicRejectsTheEdit(t *testing.T) {
	stage := ""
	at := func(name string) {
		if stage == name {
			panic("provoked by " + name)
		}
	}
	p, source, log := openFollowed(t, func(o *live.Options) {
		o.Complete = func(*policyfile.Document) error { at("complete"); return nil }
		o.Prepare = func(*live.Version) error { at("prepare"); return nil }
		o.Admit = func(*live.Version) error { at("admit"); return nil }
	})
	const jwt = "identify: [{jwt: {secret: \"a shared secret of 32 characters\"}}, ip]\n"
	for i, name := range []string{"complete", "prepare", "admit"} {
		before := p.Current()
		stage = name
		source.edit(jwt + policy(fmt.Sprintf("{name: r%d, limit: 1/1m}", i)))
		panicked := new(policyfile.PanicError)
		if err := p.Err(); !errors.As(err, &panicked) || !strings.Contains(string(panicked.Stack), "policy_test.go") {
			t.Errorf("%s: error %v", name, err)
		}
		if p.Current() != before || !strings.Contains(log.String(), "provoked by "+name) {
			t.Errorf("%s: in force is %v, the log says\n%s", name, p.Current(), log.String())
		}
		stage = ""
		if err := p.Reload(); err != nil || p.Current() == before {
			t.Errorf("%s: the edit without the panic: %v", name, err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	o := live.Options{Metrics: metrics.New(), Logger: new(eventually.Journal).Logger()}
	o.Verifiers = live.NewVerifiers(o.Logger)
	away := errors.New("away")
	for want, source := range map[string]*memorySource{
		"away":                   {fails: away},
		"provoked by the source": {panics: true},
		`rules[0] "a".limit`:     {text: policy("{name: a, limit: 1/hour}")},
		"identify[0].api_key":    {text: "identify: [{api_key: {keys_file: /nonexistent}}]\n" + policy("{name: a, limit: 1/1m}")},
	} {
		o.Source = source
		_, err := live.Open(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
		if n := o.Verifiers.Len(); n != 0 {
			t.Errorf("%d verifiers are left open", n)
		}
	}
}

func TestAdmitCanRejectAVersion(t *testing.T) {
	taken := errors.New("the name is taken")
	p, source, _ := openFollowed(t, func(o *live.Options) {
		o.Admit = func(next *live.Version) error {
			if next.Ruleset.RuleName(0) == "taken" {
				return taken
			}
			return nil
		}
	})
	before := p.Current()
	source.edit(policy("{name: taken, limit: 1/1m}"))
	if p.Current() != before || !errors.Is(p.Err(), taken) {
		t.Errorf("error %v", p.Err())
	}
}

// TestReplacedVersionsAreKeptByNumberAndAge: the last few replaced versions are kept, and also
// those that were replaced recently, up to a bound.
func TestReplacedVersionsAreKeptByNumberAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, source, _ := openFollowed(t, func(o *live.Options) { o.FormerMin, o.FormerMax, o.FormerAge = 2, 8, 10*time.Second })
		limit := 1
		edit := func(times int, apart time.Duration) {
			for range times {
				limit++
				source.edit(policy(fmt.Sprintf("{name: a, limit: %d/1m}", limit)))
				time.Sleep(apart)
			}
		}
		for _, c := range []struct {
			times int
			apart time.Duration
			kept  int
		}{
			{5, 20 * time.Second, 2},
			{5, 3 * time.Second, 4}, // replaced 0, 3, 6 and 9 s before the edit
			{1, 0, 4},
			{20, time.Millisecond, 8},
			{1, time.Hour, 8},
			{1, 0, 2},
		} {
			edit(c.times, c.apart)
			if n := len(p.Known()) - 1; n != c.kept {
				t.Errorf("after %d edits %v apart, %d versions are kept, want %d", c.times, c.apart, n, c.kept)
			}
		}
	})
}
