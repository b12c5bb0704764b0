// SPDX-License-Identifier: Apache-2.0

package front

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// countPolicies returns how many policies the metrics of a process show.
func countPolicies(t *testing.T, p *Process) (n int) {
	t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		if family.GetName() == "penstock_policy_info" {
			n += len(family.GetMetric())
		}
	}
	return n
}

// shadowSettings returns settings with a candidate policy that is evaluated but not enforced, and
// the path of its file.
func shadowSettings(t *testing.T) (s *Settings, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "shadow.yaml")
	edit(t, path, 1)
	s, err := ReadSettings([]byte(three + "shadow_policy: " + path + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s, path
}

// edit replaces a policy file atomically. The policy has so many rules that it takes longer to load
// than anything else in these tests.
func edit(t *testing.T, path string, limit int) {
	t.Helper()
	next := path + ".next"
	text := []byte("name: next\nrules:\n")
	for i := range 300 {
		text = fmt.Appendf(text, "- {name: rule%d, group: g, limit: %d/31d}\n", i, limit)
	}
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// TestARejectedPolicyIsNotShown tests that the metrics show no policy of a configuration whose
// candidate is rejected.
func TestARejectedPolicyIsNotShown(t *testing.T) {
	s, path := shadowSettings(t)
	if err := os.WriteFile(path, []byte("rules: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := NewProcess(slog.New(slog.DiscardHandler))
	if f, err := p.Open(s); err == nil {
		t.Errorf("the candidate is accepted; the front closes with %v", f.Close())
	}
	if n := countPolicies(t, p); n != 0 || len(p.stores) != 0 {
		t.Errorf("the metrics show %d policies, and %d stores are open", n, len(p.stores))
	}
}

// TestAClosedPolicyIsNotShown tests that the metrics show no policy of a closed front, even if the
// candidate was edited while the front was being closed.
func TestAClosedPolicyIsNotShown(t *testing.T) {
	s, path := shadowSettings(t)
	for range 10 {
		p := NewProcess(slog.New(slog.DiscardHandler))
		f, err := p.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		if n := countPolicies(t, p); n != 2 {
			t.Errorf("the metrics show %d policies, want 2", n)
		}
		closed, editing := make(chan struct{}), make(chan struct{})
		var edits sync.WaitGroup
		edits.Go(func() {
			for limit := 1; ; limit++ {
				edit(t, path, limit)
				_ = f.candidate.policy.Reload()
				if limit == 2 {
					close(editing)
				}
				select {
				case <-closed:
					return
				default:
				}
			}
		})
		<-editing
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
		edits.Wait()
		if n := countPolicies(t, p); n != 0 {
			t.Fatalf("the metrics show %d policies of a front that has closed", n)
		}
	}
}

// TestMetricsAreReadWhileAFrontOpens reads metrics while a front opens, so that the race detector
// would find an access to a policy that is still being opened.
func TestMetricsAreReadWhileAFrontOpens(t *testing.T) {
	s, _ := shadowSettings(t)
	p := NewProcess(slog.New(slog.DiscardHandler))
	opened := make(chan struct{})
	var reads sync.WaitGroup
	reads.Go(func() {
		for {
			select {
			case <-opened:
				return
			default:
				countPolicies(t, p)
			}
		}
	})
	for range 5 {
		f, err := p.Open(s)
		if err != nil {
			t.Error(err)
			break
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	close(opened)
	reads.Wait()
}
