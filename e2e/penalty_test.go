// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// command builds the command penstock, once, beside the Caddy of this run.
var command = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "penstock")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/penstock").CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return path, nil
})

// penalized is what the command tells of a client's penalty.
type penalized struct {
	Violations int64 `json:"violations"`
	InForce    bool  `json:"in_force"`
	WaitMs     int64 `json:"wait_ms"`
}

// penstock runs the command against the admin endpoint and returns the penalty of a client that it tells of.
func (p *process) penstock(verb, client string) penalized {
	p.t.Helper()
	path, err := command()
	if err != nil {
		p.t.Fatalf("building penstock: %v\n%s", err, path)
	}
	out, err := exec.Command(path, verb, "--admin", p.admin, "--client", "api_key:"+client).CombinedOutput()
	if err != nil {
		p.t.Fatalf("penstock %s: %v\n%s", verb, err, out)
	}
	var told struct{ Penalties []penalized }
	if err := json.Unmarshal(out, &told); err != nil || len(told.Penalties) != 1 {
		p.t.Fatalf("penstock %s: %v\n%s", verb, err, out)
	}
	return told.Penalties[0]
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
		rule calm 1000000/30d fixed_window
	}
	respond "ok"
}
`

// client asks two Caddys with a key.
type client struct {
	name  string
	nodes []*process
}

func (c client) get(node int, path string) answer {
	return c.nodes[node].ask(context.Background(), http.MethodGet, path, "X-API-Key", keyOf(c.name))
}

// crowd asks n times at once, over both, and returns how many answers had each status.
func (c client) crowd(n int, path string) map[int]int {
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

// punishing starts two Caddys that punish together, with a client who does nothing wrong and asks all the time until the
// test is over.
func punishing(t *testing.T) (nodes []*process, redis *redistest.Server) {
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
		await.Until(t, patience, "the good client has asked often enough", func() bool { return asked.Load() >= 10 })
		close(done)
		<-ended
		if told := nodes[0].penstock("client", "good"); told.Violations != 0 || told.InForce {
			t.Errorf("the good client, after %d requests: %+v", asked.Load(), told)
		}
	})
	return nodes, redis
}

// TestTwentyRefusalsAreOneViolation: over two Caddys at once, and for as long as the limit says to wait. A second limit
// that refuses is the second violation; the penalty that follows holds on both and can be seen and lifted.
func TestTwentyRefusalsAreOneViolation(t *testing.T) {
	t.Parallel()
	nodes, _ := punishing(t)
	bad := client{"bad", nodes}
	for range 2 {
		bad.crowd(20, "/first")
		if told := nodes[1].penstock("client", "bad"); told.Violations != 1 || told.InForce {
			t.Errorf("after refusals by one limit: %+v", told)
		}
	}
	if a := bad.get(0, "/"); a.status != http.StatusOK {
		t.Errorf("a path with room, with one violation: status %d", a.status)
	}
	if statuses := bad.crowd(20, "/second"); statuses[http.StatusOK] != 1 || statuses[http.StatusTooManyRequests] != 19 {
		t.Errorf("twenty at once under a limit of one: %v", statuses)
	}
	for node := range nodes {
		for _, path := range []string{"/", "/elsewhere", "/first"} {
			a := bad.get(node, path)
			// The limit of /first lasts longer than the penalty, as a rule: that is when the request would pass.
			if wait := a.number("Retry-After"); !isPenalty(a) || wait < 3500 || wait > 3600 && path != "/first" {
				t.Errorf("%s of a penalized client: %d, Retry-After %d, %s", path, a.status, wait, a.body)
			}
		}
		told := nodes[node].penstock("client", "bad")
		if told.Violations != 2 || !told.InForce || told.WaitMs < 3_500_000 || told.WaitMs > 3_600_000 {
			t.Errorf("two limits have refused: %+v", told)
		}
	}
	nodes[0].penstock("lift", "bad")
	if a := bad.get(0, "/"); a.status != http.StatusOK {
		t.Errorf("after the penalty was lifted: status %d", a.status)
	}
	// What another node has lifted is felt when what is remembered ends.
	await.Until(t, patience, "the other node admits", func() bool { return bad.get(1, "/").status == http.StatusOK })
	for _, p := range nodes {
		if told := p.penstock("client", "bad"); told.Violations != 0 || told.InForce {
			t.Errorf("after the penalty was lifted: %+v", told)
		}
	}
	if a := bad.get(0, "/first"); a.status != http.StatusTooManyRequests || isPenalty(a) {
		t.Errorf("lifting a penalty gave a limit back: %d %s", a.status, a.body)
	}
}

// TestPenaltiesEscalate: each violation after the threshold makes a longer penalty, which ends when its Retry-After says,
// and which asking again does not make longer.
func TestPenaltiesEscalate(t *testing.T) {
	t.Parallel()
	nodes, redis := punishing(t)
	worse := client{"worse", nodes}
	ends := func() time.Time {
		t.Helper()
		micros, err := redis.Client().Get(context.Background(), "rl1:who:~penalty:{api_key:worse}:until").Int64()
		if err != nil {
			t.Fatal(err)
		}
		return time.UnixMicro(micros)
	}
	if worse.crowd(20, "/breath"); nodes[0].penstock("client", "worse").InForce {
		t.Error("a penalty for the first violation")
	}
	for n, longest := range []time.Duration{6 * time.Second, 12 * time.Second} { // 3 s, by the multipliers
		// The unit comes back, is taken, and the next is refused: until then there is no new violation.
		await.Until(t, patience, "a penalty", func() bool { return isPenalty(worse.get(0, "/breath")) })
		end := ends()
		if left := time.Until(end); left > longest || left < longest/4 {
			t.Errorf("penalty %d lasts %v more, want up to %v", n+1, left, longest)
		}
		worse.crowd(20, "/breath")
		if told := nodes[1].penstock("client", "worse"); told.Violations != int64(n+2) || !ends().Equal(end) {
			t.Errorf("asking again during penalty %d: %+v, and it ends %v later", n+1, told, ends().Sub(end))
		}
		most := int64(time.Until(end).Seconds())
		a := worse.get(1, "/")
		if wait, least := a.number("Retry-After"), int64(time.Until(end).Seconds()); !isPenalty(a) || wait < least || wait > most+2 {
			t.Errorf("Retry-After %d with %d to %d s to go: %s", wait, least, most, a.body)
		}
		if n > 0 {
			continue // that one is long enough to be seen; nobody need wait for its end
		}
		await.Until(t, longest+patience, "the penalty ends", func() bool { return worse.get(0, "/").status == http.StatusOK })
		if early := time.Until(end); early > 0 {
			t.Errorf("the penalty has ended %v early", early)
		}
	}
}

// TestWhatIsNoViolation: limits that only log, and limits that everybody shares.
func TestWhatIsNoViolation(t *testing.T) {
	t.Parallel()
	nodes, _ := punishing(t)
	watched := client{"watched", nodes}
	if statuses := watched.crowd(20, "/tried"); statuses[http.StatusOK] != 20 {
		t.Errorf("over a limit that only logs: %v", statuses)
	}
	if n := nodes[0].metric(`penstock_requests_total{outcome="shadow_denied",policy="who",rule="tried"}`) +
		nodes[1].metric(`penstock_requests_total{outcome="shadow_denied",policy="who",rule="tried"}`); n != 19 {
		t.Errorf("%v requests were over the limit that only logs, want 19", n)
	}
	unlucky := client{"unlucky", nodes}
	if statuses := unlucky.crowd(20, "/all"); statuses[http.StatusTooManyRequests] != 19 {
		t.Errorf("over a limit for everybody: %v", statuses)
	}
	for _, c := range []client{watched, unlucky} {
		if told := nodes[0].penstock("client", c.name); told.Violations != 0 || told.InForce {
			t.Errorf("%s: %+v", c.name, told)
		}
		if a := c.get(1, "/"); a.status != http.StatusOK {
			t.Errorf("%s: status %d", c.name, a.status)
		}
	}
}
