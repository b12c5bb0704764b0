// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// printedPenalty is a client's penalty as a command prints it.
type printedPenalty struct {
	Violations int64 `json:"violations"`
	InForce    bool  `json:"in_force"`
	WaitMs     int64 `json:"wait_ms"`
}

// process.penstock runs an operator's command about a client, and returns the penalty that the
// command prints.
func (p *process) penstock(verb, client string) printedPenalty {
	p.t.Helper()
	out, err := exec.Command(penstockProgram(p.t), verb, "--json", "--admin", p.admin, "--client", "api_key:"+client).CombinedOutput()
	if err != nil {
		p.t.Fatalf("penstock %s: %v\n%s", verb, err, out)
	}
	var reported struct{ Penalties []printedPenalty }
	if err := json.Unmarshal(out, &reported); err != nil || len(reported.Penalties) != 1 {
		p.t.Fatalf("penstock %s: %v\n%s", verb, err, out)
	}
	return reported.Penalties[0]
}

const penalties = shared + `:SITE {
	penstock {
		identify api_key {
			keys_file KEYS
		}
		penalty {
			window 1h
			threshold 2
			multipliers 2 4
			max 1h
		}
		rule first 1/30d fixed_window {
			match path /first
		}
		rule second 1/30d fixed_window {
			match path /second
		}
		rule breath 1/3s burst 1 {
			match path /breath
		}
		rule tried 1/30d fixed_window {
			match path /tried
			action log_only
		}
		rule all 1/30d fixed_window {
			match path /all
			per []
		}
		rule experience 1000000/30d fixed_window
	}
	respond "ok"
}
`

// A client sends requests with an API key to two Caddys.
type client struct {
	name  string
	nodes []*process
}

func (c client) get(node int, path string) answer {
	return c.nodes[node].ask(context.Background(), http.MethodGet, path, "X-API-Key", keyOf(c.name))
}

// sendBurst sends n requests at once, half of them to each node. It returns the number of answers
// by status.
func (c client) sendBurst(n int, path string) map[int]int {
	var mu sync.Mutex
	var group sync.WaitGroup
	statuses := map[int]int{}
	for i := range n {
		group.Go(func() {
			a := c.get(i%len(c.nodes), path)
			mu.Lock()
			statuses[a.status]++
			mu.Unlock()
		})
	}
	group.Wait()
	return statuses
}

func isPenalty(a answer) bool {
	return a.status == http.StatusTooManyRequests && strings.Contains(a.body, "#abnormal-usage-detected")
}

// startPenalties starts two Caddys that share penalties. Throughout the test, a client that never
// exceeds a limit sends requests. The test fails if that client is penalized.
func startPenalties(t *testing.T) (nodes []*process, redis *redistest.Server) {
	t.Helper()
	keys := newKeysFile(t, map[string]string{"good": "", "bad": "", "worse": "", "watched": "", "unlucky": ""})
	redis = redistest.Start(t)
	nodes = fleet(t, 2, redis, strings.ReplaceAll(penalties, "KEYS", keys.path))
	good := client{"good", nodes}
	var asked atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			asked.Add(1)
			if a := good.get(n%2, "/"); a.status != http.StatusOK {
				t.Errorf("the good client: status %d %s", a.status, a.body)
			}
		}
	}()
	t.Cleanup(func() {
		eventually.Until(t, patience, "the good client has asked often enough", func() bool { return asked.Load() >= 10 })
		close(done)
		<-ended
		if reported := nodes[0].penstock("client", "good"); reported.Violations != 0 || reported.InForce {
			t.Errorf("the good client, after %d requests: %+v", asked.Load(), reported)
		}
	})
	return nodes, redis
}

// TestTwentyDenialsAreOneViolation tests that all denials by one limit are one violation until the
// denied client may try again, even if two Caddys deny the requests. Denials by a second limit are
// the second violation. The penalty applies on both nodes, and operators can inspect and lift it.
func TestTwentyDenialsAreOneViolation(t *testing.T) {
	t.Parallel()
	nodes, _ := startPenalties(t)
	bad := client{"bad", nodes}
	for range 2 {
		bad.sendBurst(20, "/first")
		if reported := nodes[1].penstock("client", "bad"); reported.Violations != 1 || reported.InForce {
			t.Errorf("after refusals by one limit: %+v", reported)
		}
	}
	if a := bad.get(0, "/"); a.status != http.StatusOK {
		t.Errorf("a path with room, with one violation: status %d", a.status)
	}
	if statuses := bad.sendBurst(20, "/second"); statuses[http.StatusOK] != 1 || statuses[http.StatusTooManyRequests] != 19 {
		t.Errorf("twenty at once under a limit of one: %v", statuses)
	}
	for node := range nodes {
		for _, path := range []string{"/", "/elsewhere", "/first"} {
			a := bad.get(node, path)
			// The limit of /first usually lasts longer than the penalty, and then determines the
			// wait.
			if wait := a.number("Retry-After"); !isPenalty(a) || wait < 3500 || wait > 3600 && path != "/first" {
				t.Errorf("%s of a penalized client: %d, Retry-After %d, %s", path, a.status, wait, a.body)
			}
		}
		reported := nodes[node].penstock("client", "bad")
		if reported.Violations != 2 || !reported.InForce || reported.WaitMs < 3_500_000 || reported.WaitMs > 3_600_000 {
			t.Errorf("two limits have refused: %+v", reported)
		}
	}
	nodes[0].penstock("lift", "bad")
	if a := bad.get(0, "/"); a.status != http.StatusOK {
		t.Errorf("after the penalty was lifted: status %d", a.status)
	}
	// The other node continues to deny until its remembered denial expires.
	eventually.Until(t, patience, "the other node admits", func() bool { return bad.get(1, "/").status == http.StatusOK })
	for _, p := range nodes {
		if reported := p.penstock("client", "bad"); reported.Violations != 0 || reported.InForce {
			t.Errorf("after the penalty was lifted: %+v", reported)
		}
	}
	if a := bad.get(0, "/first"); a.status != http.StatusTooManyRequests || isPenalty(a) {
		t.Errorf("lifting a penalty gave a limit back: %d %s", a.status, a.body)
	}
}

// TestPenaltiesEscalate tests that each violation beyond the threshold causes a longer penalty. A
// penalty ends at the time that Retry-After says, and further requests do not extend it.
func TestPenaltiesEscalate(t *testing.T) {
	t.Parallel()
	nodes, redis := startPenalties(t)
	worse := client{"worse", nodes}
	ends := func() time.Time {
		t.Helper()
		micros, err := redis.Client().Get(context.Background(), "rl1:who:~penalty:{api_key:worse}:until").Int64()
		if err != nil {
			t.Fatal(err)
		}
		return time.UnixMicro(micros)
	}
	if worse.sendBurst(20, "/breath"); nodes[0].penstock("client", "worse").InForce {
		t.Error("a penalty for the first violation")
	}
	// the wait of the limit, 3 s, multiplied by 2 and by 4
	for n, longest := range []time.Duration{6 * time.Second, 12 * time.Second} {
		// A new violation needs a new unit: it becomes available, a request uses it, and the next
		// request is denied.
		eventually.Until(t, patience, "a penalty", func() bool { return isPenalty(worse.get(0, "/breath")) })
		end := ends()
		if left := time.Until(end); left > longest || left < longest/4 {
			t.Errorf("penalty %d lasts %v more, want up to %v", n+1, left, longest)
		}
		worse.sendBurst(20, "/breath")
		if reported := nodes[1].penstock("client", "worse"); reported.Violations != int64(n+2) || !ends().Equal(end) {
			t.Errorf("asking again during penalty %d: %+v, and it ends %v later", n+1, reported, ends().Sub(end))
		}
		most := int64(time.Until(end).Seconds())
		a := worse.get(1, "/")
		if wait, least := a.number("Retry-After"), int64(time.Until(end).Seconds()); !isPenalty(a) || wait < least || wait > most+2 {
			t.Errorf("Retry-After %d with %d to %d s to go: %s", wait, least, most, a.body)
		}
		if n > 0 {
			continue // the second penalty is long, and the test does not wait for its end
		}
		eventually.Until(t, longest+patience, "the penalty ends", func() bool { return worse.get(0, "/").status == http.StatusOK })
		if early := time.Until(end); early > 0 {
			t.Errorf("the penalty has ended %v early", early)
		}
	}
}

// TestWhatIsNoViolation tests that a client commits no violation if it exceeds a limit that only
// logs, or a limit that all clients share.
func TestWhatIsNoViolation(t *testing.T) {
	t.Parallel()
	nodes, _ := startPenalties(t)
	watched := client{"watched", nodes}
	if statuses := watched.sendBurst(20, "/tried"); statuses[http.StatusOK] != 20 {
		t.Errorf("over a limit that only logs: %v", statuses)
	}
	if n := nodes[0].metric(`penstock_requests_total{outcome="shadow_denied",policy="who",rule="tried"}`) +
		nodes[1].metric(`penstock_requests_total{outcome="shadow_denied",policy="who",rule="tried"}`); n != 19 {
		t.Errorf("%v requests were over the limit that only logs, want 19", n)
	}
	unlucky := client{"unlucky", nodes}
	if statuses := unlucky.sendBurst(20, "/all"); statuses[http.StatusTooManyRequests] != 19 {
		t.Errorf("over a limit for everybody: %v", statuses)
	}
	for _, c := range []client{watched, unlucky} {
		if reported := nodes[0].penstock("client", c.name); reported.Violations != 0 || reported.InForce {
			t.Errorf("%s: %+v", c.name, reported)
		}
		if a := c.get(1, "/"); a.status != http.StatusOK {
			t.Errorf("%s: status %d", c.name, a.status)
		}
	}
}
