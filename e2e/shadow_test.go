// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

const candidateCaddyfile = `{
	admin ADMIN
	penstock {
		name trial
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		on_error deny
		policy {env.POLICY}
		shadow policy {env.CANDIDATE}
	}
}
:SITE {
	penstock
	respond "ok"
}
`

// The candidate policy is stricter than the policy in force for /tight, looser for /loose, and
// blocks /blocked.
const (
	inForcePolicy = `rules:
  - {name: tight, match: {path: /tight}, limit: 500/31d fixed_window}
  - {name: loose, match: {path: /loose}, limit: 100/31d fixed_window}
  - {name: same, match: {path: /same}, limit: 200/31d fixed_window}
`
	candidatePolicy = `rules:
  - {name: tight, match: {path: /tight}, limit: 60/31d fixed_window}
  - {name: loose, match: {path: /loose}, limit: 100000/31d fixed_window}
  - {name: same, match: {path: /same}, limit: 200/31d fixed_window}
  - {name: candidate-only, match: {path: /blocked}, action: block}
`
)

// trial is two Caddys over one Redis that evaluate a candidate policy.
type trial struct {
	nodes             [2]*process
	policy, candidate *policyFile
}

func startTrial(t *testing.T) *trial {
	redis, dir := redistest.Start(t), t.TempDir()
	tr := &trial{policy: newRenamedFile(t, filepath.Join(dir, "policy.yaml")), candidate: newRenamedFile(t, filepath.Join(dir, "candidate.yaml"))}
	tr.policy.edit(inForcePolicy)
	tr.candidate.edit(candidatePolicy)
	for i := range tr.nodes {
		tr.nodes[i] = startCaddy(t, candidateCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+tr.policy.path,
			"CANDIDATE="+tr.candidate.path)
	}
	return tr
}

// trial.ask sends n requests for each path to both nodes, over several connections. It returns the
// number of admitted requests by path.
func (tr *trial) ask(t *testing.T, n int, paths ...string) map[string]int64 {
	t.Helper()
	const connections = 8
	var got [4]tally
	var asking sync.WaitGroup
	for i, path := range paths {
		more := times(int64(n))
		for c := range connections {
			asking.Go(func() {
				client := &http.Client{Timeout: 10 * time.Second}
				for more() {
					got[i].ask(client, "http://"+tr.nodes[c%2].address+path)
				}
			})
		}
	}
	asking.Wait()
	admitted := map[string]int64{}
	for i, path := range paths {
		admitted[path] = got[i].admitted.Load()
		if all := admitted[path] + got[i].refused.Load(); all != int64(n) {
			t.Errorf("%s: %d admitted or refused of %d", path, all, n)
		}
	}
	return admitted
}

// countDecided returns the number of requests with the given decisions of the policy in force and
// of the candidate, on both nodes together.
func (tr *trial) countDecided(present, candidate string) (n int) {
	for _, node := range tr.nodes {
		n += int(node.metric(fmt.Sprintf(`penstock_shadow_decisions_total{candidate=%q,policy="trial.shadow",present=%q}`, candidate, present)))
	}
	return n
}

// trial.outcome returns the number of times that a rule of the candidate had an outcome, on both
// nodes together.
func (tr *trial) outcome(rule, outcome string) (n int) {
	for _, node := range tr.nodes {
		n += int(node.metric(fmt.Sprintf(`penstock_requests_total{outcome=%q,policy="trial.shadow",rule=%q}`, outcome, rule)))
	}
	return n
}

// TestACandidateUnderLoad tests that clients see only the policy in force, and that the metrics
// count the decisions of the candidate exactly.
func TestACandidateUnderLoad(t *testing.T) {
	t.Parallel()
	const each = 900 // the evaluation queue has room for all requests together, so none is skipped
	tr := startTrial(t)
	admitted := tr.ask(t, each, "/tight", "/loose", "/same", "/blocked")
	for path, want := range map[string]int64{"/tight": 500, "/loose": 100, "/same": 200, "/blocked": each} {
		if admitted[path] != want {
			t.Errorf("%s: %d admitted, want the %d of the policy in force", path, admitted[path], want)
		}
	}
	eventually.Until(t, patience, "all requests are tried", func() bool {
		return tr.countDecided("admitted", "admitted")+tr.countDecided("admitted", "refused")+tr.countDecided("refused", "admitted")+
			tr.countDecided("refused", "refused")+tr.countDecided("admitted", "untried")+tr.countDecided("refused", "untried") == 4*each
	})
	for _, c := range []struct {
		rule, outcome string
		want          int
	}{
		{"tight", "allowed", 60}, {"tight", "denied", each - 60},
		{"loose", "allowed", each},
		{"same", "allowed", 200}, {"same", "denied", each - 200},
		{"candidate-only", "blocked", each},
	} {
		if got := tr.outcome(c.rule, c.outcome); got != c.want {
			t.Errorf("the candidate's rule %s has %s %d, want %d", c.rule, c.outcome, got, c.want)
		}
	}
	// The number of requests for /tight and /same that the candidate admits is fixed. Which
	// requests these are depends on their order.
	if got, want := tr.countDecided("admitted", "refused")+tr.countDecided("refused", "refused"), each-60+each-200+each; got != want {
		t.Errorf("the candidate would have refused %d, want %d", got, want)
	}
	if got, want := tr.countDecided("refused", "admitted")+tr.countDecided("refused", "refused"), each-500+each-100+each-200; got != want {
		t.Errorf("the policy in force has refused %d, want %d", got, want)
	}
	if got := tr.countDecided("refused", "admitted"); got < each-100 {
		t.Errorf("the candidate would have admitted %d that were refused, want at least the %d for /loose", got, each-100)
	}
	a := tr.nodes[0].get("/same")
	if text := fmt.Sprint(a.header, a.body); a.status != 429 || strings.Contains(text, "shadow") || strings.Contains(text, "candidate") ||
		a.header.Get("RateLimit-Policy") != `"same";q=200;w=2678400` {
		t.Errorf("the client sees %d %s", a.status, text)
	}
}

// TestACandidateIsEdited tests that the candidate's file is watched too. A wrong edit of the file
// is rejected, and the policy in force is not affected.
func TestACandidateIsEdited(t *testing.T) {
	t.Parallel()
	tr := startTrial(t)
	p := tr.nodes[0]
	before, inForce := p.version("trial.shadow"), p.version("trial")
	tr.candidate.edit(strings.Replace(candidatePolicy, "limit: 60/31d", "limit: 60/month", 1) + "  - {name: x, limit: 1/fortnight}\n")
	eventually.Until(t, patience, "the wrong edit is refused", func() bool { return p.edits("trial.shadow", "refused") == 1 })
	eventually.Until(t, patience, "the log says what is wrong", func() bool {
		lines := p.logLines(editRefused)
		return len(lines) == 1 && lines[0].File == tr.candidate.path && strings.Contains(lines[0].Error, `candidate.yaml:6: rules[4] "x".limit[0]: "1/fortnight"`)
	})
	if got := tr.ask(t, 10, "/blocked"); got["/blocked"] != 10 {
		t.Errorf("%d of 10 admitted", got["/blocked"])
	}
	eventually.Until(t, patience, "the candidate before goes on", func() bool { return tr.countDecided("admitted", "refused") == 10 })
	tr.candidate.edit(strings.Replace(candidatePolicy, "action: block", "limit: 4/31d fixed_window", 1))
	for _, node := range tr.nodes {
		eventually.Until(t, patience, "the mended edit is tried", func() bool {
			now := node.version("trial.shadow")
			return now != before && now != "" && node.edits("trial.shadow", "accepted") == 1
		})
	}
	if got := tr.ask(t, 10, "/blocked"); got["/blocked"] != 10 {
		t.Errorf("%d of 10 admitted", got["/blocked"])
	}
	eventually.Until(t, patience, "the candidate now admits four", func() bool {
		return tr.countDecided("admitted", "refused") == 16 && tr.countDecided("admitted", "admitted") == 4
	})
	if p.version("trial") != inForce || p.edits("trial", "accepted")+p.edits("trial", "refused") != 0 {
		t.Errorf("the policy in force was %s and is %s", inForce, p.version("trial"))
	}
	if got := tr.ask(t, 300, "/same"); got["/same"] != 200 {
		t.Errorf("%d admitted by the policy in force, want 200", got["/same"])
	}
}

// TestAWrongCandidateIsNotStarted tests that a reload and "caddy validate" reject a wrong
// candidate. After the reload, the previous configuration remains in force.
func TestAWrongCandidateIsNotStarted(t *testing.T) {
	t.Parallel()
	tr := startTrial(t)
	p := tr.nodes[0]
	wrong := newRenamedFile(t, filepath.Join(t.TempDir(), "wrong.yaml"))
	wrong.edit("rules: [{name: a, limit: 5/minute}]\n")
	p.write(strings.ReplaceAll(candidateCaddyfile, "{env.CANDIDATE}", wrong.path))
	// The backslashes are removed, because each layer that quotes the message adds some.
	const want = `wrong.yaml:1: rules[0] "a".limit[0]: "5/minute": window "minute" has no number; write 1m`
	says := func(text string) bool { return strings.Contains(strings.ReplaceAll(text, `\`, ``), want) }
	if err := p.reload(); err == nil || !says(err.Error()) {
		t.Errorf("a reload with a wrong candidate: %v, want %s", err, want)
	}
	validate := exec.Command(caddyProgram(t), "validate", "--config", p.file)
	validate.Env = append(environment(t), "PENSTOCK_REDIS=unix:///none", "POLICY="+tr.policy.path)
	if out, err := validate.CombinedOutput(); err == nil || !says(string(out)) {
		t.Errorf("caddy validate of a wrong candidate: %v\n%s", err, out)
	}
	if got := tr.ask(t, 300, "/same"); got["/same"] != 200 {
		t.Errorf("%d admitted by the policy in force, want 200", got["/same"])
	}
	// Until the next successful reload, Caddy's admin endpoint shows the metrics of the rejected
	// configuration.
	p.write(candidateCaddyfile)
	if err := p.reload(); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the candidate went on", func() bool {
		return tr.outcome("same", "allowed") == 200 && tr.outcome("same", "denied") == 100
	})
}
