// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/conformance"
)

// decode parses the text of a policy.
func decode(t *testing.T, text string) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// corpus returns the valid policies of the conformance stories, the examples and the tests.
func corpus(t *testing.T) (all []*policyfile.Document) {
	t.Helper()
	filled := strings.NewReplacer("@secret@", strings.Repeat("secret ", 10), "@keys_url@", "https://keys.example.com/")
	for _, s := range conformance.Load(t) {
		all = append(all, decode(t, filled.Replace(s.Policy)))
	}
	stories := len(all)
	for _, root := range []string{"../../../examples", "../../policyfile/testdata", "../../envoy"} {
		if err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			if d, err := policyfile.Load(path); err == nil && d.Check() == nil {
				all = append(all, d)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if stories < 100 || len(all)-stories < 8 {
		t.Fatalf("the corpus has %d stories and %d files, which is too few", stories, len(all)-stories)
	}
	return all
}

// TestRowsAreTheDocument tests that each policy of the corpus is kept as rows, and read back with
// the same content.
func TestRowsAreTheDocument(t *testing.T) {
	t.Parallel()
	l := open(t)
	for i, d := range corpus(t) {
		d.Name = fmt.Sprintf("p%d", i)
		put, err := l.PutPolicy(t.Context(), ops, d, "a test", If{Absent: true})
		if err != nil {
			t.Fatalf("policy %d: %v", i, err)
		}
		read, err := l.Revision(t.Context(), d.Name, 0)
		if err != nil {
			t.Fatalf("policy %d: %v", i, err)
		}
		if read.Document.Hash() != d.Hash() || put.Version != d.Version() || read.Revision != 1 {
			t.Errorf("policy %d differs: %s", i, cmp.Diff(jsonText(d), jsonText(read.Document)))
		}
		if _, err := read.Document.Compile(); err != nil && len(d.Identify) == 0 {
			t.Errorf("policy %d: %v", i, err)
		}
	}
	var rows int
	if err := l.Pool.QueryRow(t.Context(), "SELECT count(*) FROM rate_limit_rules WHERE limits IS NOT NULL AND endpoints IS NOT NULL").Scan(&rows); err != nil || rows < 10 {
		t.Errorf("%d rules have limits and endpoints as columns, %v", rows, err)
	}
}

// TestRevisionsOfAPolicy tests valid, invalid, late and ineffective writes.
func TestRevisionsOfAPolicy(t *testing.T) {
	t.Parallel()
	l := open(t)
	put := func(text string, require If) (*Revision, error) {
		return l.PutPolicy(t.Context(), ops, decode(t, text), "a test", require)
	}
	first, err := put("name: shop\nrules: [{name: api, limit: 3/1m}]", If{Absent: true})
	if err != nil || first.Revision != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := put("name: shop\nrules: [{limit: 3/1m, name: api}] # the same", If{}); err != nil || !again.Unchanged || again.Revision != 1 {
		t.Errorf("the same content: %+v, %v", again, err)
	}
	if second, err := put("name: shop\nrules: [{name: api, limit: 4/1m}]", If{Revision: 1}); err != nil || second.Revision != 2 {
		t.Fatalf("%+v, %v", second, err)
	}
	for what, require := range map[string]If{"a late write": {Revision: 1}, "a write that expects none": {Absent: true}} {
		if _, err := put("name: shop\nrules: [{name: api, limit: 5/1m}]", require); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d := decode(t, "name: shop\nrules: [{name: api, limit: 5/1m}]")
	d.Rules = append(d.Rules, policyfile.Rule{Name: "x", Limit: policyfile.Words{"5/fortnight"}}, policyfile.Rule{Name: "y", Group: "g", Limit: policyfile.Words{"0/1m"}})
	var problems policy.Problems
	if _, err := l.PutPolicy(t.Context(), ops, d, "a test", If{}); !errors.As(err, &problems) || len(problems) < 2 {
		t.Errorf("a policy with two errors: %v", err)
	}
	third, err := l.RollBack(t.Context(), ops, "shop", 1, "a test", If{Revision: 2})
	if err != nil || third.Revision != 3 || third.Version != first.Version {
		t.Fatalf("%+v, %v", third, err)
	}
	if all, err := l.Revisions(t.Context(), "shop", 0, 10); err != nil || len(all) != 3 || all[0].Action != "rollback to 1" || all[2].Actor != "ops" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, statement := range []string{"UPDATE rate_limit_rules SET limits = '{9/1m}'", "DELETE FROM rate_limit_rules", "TRUNCATE policy_revisions CASCADE"} {
		if _, err := l.Pool.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "a revision of a policy does not change") {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if v, broken, err := l.Verify(t.Context()); err != nil || broken != "" || v.Changes != 3 {
		t.Errorf("the audit trail: %+v, %q, %v", v, broken, err)
	}
}

// TestPublicationsTakeSteps tests which step of a publication may follow which.
func TestPublicationsTakeSteps(t *testing.T) {
	t.Parallel()
	l := open(t)
	for i := range 3 {
		if _, err := l.PutPolicy(t.Context(), ops, decode(t, fmt.Sprintf("name: shop\nrules: [{name: api, limit: %d/1m}]", i+1)), "a test", If{}); err != nil {
			t.Fatal(err)
		}
	}
	var generation int64
	for _, step := range []struct {
		publish Publish
		want    string // the revisions and the step, or the error
	}{
		{Publish{Step: StepShadow, Revision: 2}, "no revision is in force yet"},
		{Publish{Step: StepAll, Revision: 4}, "its latest is 3"},
		{Publish{Step: StepAll, Revision: 1}, "1 0 "},
		{Publish{Step: StepWithdraw}, "no candidate"},
		{Publish{Step: StepShare, Revision: 1, Share: Percent(10)}, "is in force already"},
		{Publish{Step: StepShare, Revision: 2}, "needs a share"},
		{Publish{Step: StepShare, Revision: 2, Share: Percent(100)}, "is not between"},
		{Publish{Step: StepAll, Revision: 2, DenialsMax: Percent(5)}, "only the step share"},
		{Publish{Step: "some"}, "is none"},
		{Publish{Step: StepShadow, Revision: 2}, "1 2 shadow"},
		{Publish{Step: StepShare, Revision: 2, Share: Percent(10), DenialsMax: Percent(5)}, "1 2 share"},
		{Publish{Step: StepShare, Revision: 2, ClientShare: Percent(99.99)}, "1 2 share"},
		{Publish{Step: StepShare, Revision: 2, ClientShare: 1, DenialsMax: Percent(5)}, "1 2 share"},
		{Publish{Step: StepShare, Revision: 2, ClientShare: 1, Share: 1}, "or one of the clients"},
		{Publish{Step: StepShare, Revision: 2, ClientShare: Percent(100)}, "is not between"},
		{Publish{Step: StepAll, Revision: 2, ClientShare: 1}, "no other step has one"},
		{Publish{Step: StepShare, Revision: 2, Share: 1, PromoteAfterSeconds: 60}, "write denials_max_percent 5"},
		{Publish{Step: StepShare, Revision: 2, Share: 1, DenialsMax: 1, PromoteAfterSeconds: 59}, "from 60, which is a minute"},
		{Publish{Step: StepShare, Revision: 2, Share: 1, DenialsMax: 1, PromoteAfterSeconds: 31*24*60*60 + 1}, "to 2678400, which is 31 days"},
		{Publish{Step: StepShadow, Revision: 2, PromoteAfterSeconds: 60}, "only a candidate of the step share"},
		{Publish{Step: StepAll, Revision: 2, PromoteAfterSeconds: -1}, "only a candidate of the step share"},
		{Publish{Step: StepShare, Revision: 2, Share: 1, DenialsMax: 1, PromoteAfterSeconds: 60}, "1 2 share"},
		{Publish{Step: StepShare, Revision: 2, ClientShare: 1, DenialsMax: 1, PromoteAfterSeconds: 31 * 24 * 60 * 60}, "1 2 share"},
		{Publish{Step: StepWithdraw, Generation: 1}, ErrChanged.Error()},
		{Publish{Step: StepWithdraw}, "1 0 "},
		{Publish{Step: StepShadow}, "1 3 shadow"},
		{Publish{Step: StepAll}, "3 0 "},
	} {
		encoded := false
		p, err := l.Publish(t.Context(), ops, "shop", step.publish, "a test", func(p *Publication, now, candidate *Revision) error {
			encoded = now.Revision == p.Revision && (candidate == nil) == (p.Candidate == 0)
			return nil
		})
		if err != nil {
			if !strings.Contains(err.Error(), step.want) {
				t.Errorf("%+v: %v; want %q", step.publish, err, step.want)
			}
			continue
		}
		if got := fmt.Sprintf("%d %d %s", p.Revision, p.Candidate, p.Step); got != step.want || p.Generation <= generation || !encoded {
			t.Errorf("%+v: %s, generation %d after %d, encoded %t; want %s", step.publish, got, p.Generation, generation, encoded, step.want)
		}
		if generation = p.Generation; generation < start.UnixMicro() {
			t.Errorf("the generation %d is before its instant", generation)
		}
		if read, err := l.Policy(t.Context(), "shop"); err != nil || *read != *p {
			t.Errorf("%+v is read as %+v, %v", p, read, err)
		}
	}
	if _, err := l.Publish(t.Context(), ops, "other", Publish{Step: StepAll}, "a test", nil); !errors.Is(err, ErrNone) {
		t.Errorf("a policy that is not there: %v", err)
	}
}
