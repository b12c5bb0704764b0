// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/seed"
)

const editedCaddyfile = `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		on_error deny
		policy {env.POLICY}
	}
}
:SITE {
	penstock
	respond "ok"
}
`

// trio is three Caddys that share one Redis. Each Caddy has a file of its own with the same policy.
type trio struct {
	t     *testing.T
	redis *redistest.Server
	nodes []*process
	files []*policyFile
	// Counts of the answers to the continuous load.
	windowed, bursty tally
}

func startTrio(t *testing.T, text string) *trio {
	f := &trio{t: t, redis: redistest.Start(t)}
	// An edit replaces the file of the last node atomically, so this node never reads a part of a
	// file.
	for _, made := range []func(testing.TB, string) *policyFile{newAlternatingFile, newAlternatingFile, newMountedFile} {
		file := made(t, filepath.Join(t.TempDir(), "policy.yaml"))
		file.edit(text)
		f.files = append(f.files, file)
		f.nodes = append(f.nodes, startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+f.redis.URL(), "POLICY="+file.path))
	}
	return f
}

// trio.edit writes text to all files.
func (f *trio) edit(text string) {
	for _, file := range f.files {
		file.edit(text)
	}
}

// trio.follow waits until all nodes report the same version, other than the version named before,
// and returns the new version.
func (f *trio) follow(before string) (version string) {
	f.t.Helper()
	eventually.Until(f.t, patience, "all nodes follow the edit", func() bool {
		version = f.nodes[0].version("shop")
		return version != "" && version != before && version == f.nodes[1].version("shop") && version == f.nodes[2].version("shop")
	})
	return version
}

// startLoad sends requests for /windowed and /bursty to every node until done is closed. The pace
// is slow enough not to overload the machine, and fast enough to use up new units soon.
func (f *trio) startLoad(done <-chan struct{}) *sync.WaitGroup {
	const connections, pace = 3, 25 * time.Millisecond
	group := new(sync.WaitGroup)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * connections}}
	for _, node := range f.nodes {
		for path, got := range map[string]*tally{"/windowed": &f.windowed, "/bursty": &f.bursty} {
			for range connections {
				group.Go(func() {
					tick := time.NewTicker(pace)
					defer tick.Stop()
					for {
						select {
						case <-done:
							return
						case <-tick.C:
							got.ask(client, "http://"+node.address+path)
						}
					}
				})
			}
		}
	}
	return group
}

// revision is the state that the edits change.
type revision struct {
	number       int
	count, burst int
	shuffled     *rand.Rand
}

// text returns the revision as a policy. It has the rules under test in random order, other rules
// that come and go, and a comment.
func (e *revision) text() string {
	rules := []string{
		fmt.Sprintf("{name: windowed, match: {path: /windowed}, limit: %d/31d fixed_window}", e.count),
		fmt.Sprintf("{name: bursty, match: {path: /bursty}, limit: 1/1h burst %d}", e.burst),
		"{name: everyone, per: [], limit: 1000000/31d fixed_window}",
	}
	for i := range e.number % 4 {
		rules = append(rules, fmt.Sprintf("{name: other-%d, match: {path: /none}, limit: %d/1s}", i, e.number+1))
	}
	e.shuffled.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	return fmt.Sprintf("# revision %d\nname: shop\nrules:\n  - %s\n", e.number, strings.Join(rules, "\n  - "))
}

// revision.next moves to the next revision. Every third revision lowers the limits. The other
// revisions raise them above the limits of all previous revisions.
func (e *revision) next() (raised bool) {
	e.number++
	if e.number%3 == 0 {
		e.count, e.burst = e.count-35, e.burst-12
		return false
	}
	e.count, e.burst = e.count+40, e.burst+14
	return true
}

// wrongEdits returns edits that must be rejected. The texts that the log must contain for an edit
// are separated by |.
func wrongEdits(good string) []struct{ text, wants string } {
	return []struct{ text, wants string }{
		{"name: shop\nrules:\n  - {name: windowed, limit: [\n", "policy.yaml:3: |']' not found"},
		{strings.Replace(good, "limit:", "limits:", 1), `policy.yaml:4: rules[0] "|".limits: |did you mean "limit"?`},
		{good + "  - {name: late, limit: 100/minute}\n", `"100/minute": |write 1m`},
		{good[:strings.LastIndex(good, "limit:")+len("limit: 1")], "policy.yaml:6: |end token '}'"},
		{good + "  - {name: windowed, limit: 1/1s}\n", `name: "windowed": is also the name of rules[|rename one of them`},
		{good + "on_error: maybe\n", `on_error: "maybe": |write allow, deny or local`},
		{good + "identify: [{api_key: {keys_file: keys.toml}}]\n", "identify[0].api_key: cannot be used: keys file: |keys.toml: no such file"},
		{good + "# \xff\n", "is not UTF-8|save the file as UTF-8"},
		{oversized, "is larger than 4194304 bytes|use fewer or shorter rules"},
	}
}

// TestEditsUnderLoadAreExact edits the policy of three Caddys many times under continuous load. The
// edits raise and lower the limits. In the end, exactly as many requests are admitted as the
// highest value of each limit.
func TestEditsUnderLoadAreExact(t *testing.T) {
	t.Parallel()
	const experience = 45
	edits := examOr(100, 64)
	e := &revision{count: 100, burst: 50, shuffled: seed.Random(t)}
	text := e.text()
	f := startTrio(t, text)
	version := f.follow("")
	wrong, refused := wrongEdits(text), 0
	done := make(chan struct{})
	load := f.startLoad(done)
	highest := *e
	for e.number < edits {
		if e.next() {
			highest = *e
		}
		text = e.text()
		f.edit(text)
		switch {
		// edits are made in series of nine, faster than the nodes can read them
		case e.number > experience && e.number%9 != 5:
			continue
		case e.number%7 == 0: // the same policy with another comment
			version = f.follow(version)
			f.edit(text + "# nothing else\n")
		default:
			version = f.follow(version)
		}
		if e.number%5 == 0 && len(wrong) > 0 {
			f.checkWrongEdit(wrong[0].text, wrong[0].wants, version)
			refused, wrong = refused+1, wrong[1:]
		}
		f.awaitAdmitted(highest.count, highest.burst)
	}
	text = highest.text() + "  - {name: last, match: {path: /none}, limit: 1/1s}\n"
	f.edit(text)
	version = f.awaitRule("last")
	f.awaitAdmitted(highest.count, highest.burst)
	f.removeFiles(text, version)
	close(done)
	load.Wait()
	for i, node := range f.nodes {
		// A node may read a file while it is overwritten. It then rejects the incomplete file, in
		// addition to the wrong edits.
		whole := i == len(f.nodes)-1
		if got := node.edits("shop", "refused"); got < refused+1 || whole && got > refused+1 || len(wrong) > 0 {
			t.Errorf("node %d has refused %d edits, want %d; %d were not tried", i, got, refused+1, len(wrong))
		}
	}
	f.checkExact(highest.count, highest.burst)
	t.Logf("%d and %d admitted, %d and %d refused, slowest %v", f.windowed.admitted.Load(), f.bursty.admitted.Load(),
		f.windowed.refused.Load(), f.bursty.refused.Load(), time.Duration(f.windowed.slowest.Load()))
}

// checkWrongEdit makes a wrong edit and waits until every node has logged its mistake.
func (f *trio) checkWrongEdit(text, wants, version string) {
	f.t.Helper()
	var before []int
	for _, node := range f.nodes {
		before = append(before, len(node.logLines(editRefused)))
	}
	f.edit(text)
	for i, node := range f.nodes {
		var lines []logLine
		first, _, _ := strings.Cut(wants, "|")
		eventually.Until(f.t, patience, fmt.Sprintf("node %d refuses what is to be told %s", i, wants), func() bool {
			// before the edit, a node may have read and rejected the file while it was empty
			lines = node.logLines(editRefused)
			return len(lines) > before[i] && strings.Contains(lines[len(lines)-1].Error, first)
		})
		last := lines[len(lines)-1]
		for _, want := range strings.Split(wants, "|") {
			if !strings.Contains(last.Error, want) {
				f.t.Errorf("node %d says %q of an edit, want %q", i, last.Error, want)
			}
		}
		if last.File != f.files[i].path || last.Version != version || node.version("shop") != version {
			f.t.Errorf("node %d refuses an edit of %q with %q in force, metric %q, want %q with %q", i, last.File, last.Version,
				node.version("shop"), f.files[i].path, version)
		}
	}
}

// awaitRule waits until all nodes have logged that the rule was added, and returns their version.
func (f *trio) awaitRule(rule string) (version string) {
	f.t.Helper()
	for i, node := range f.nodes {
		eventually.Until(f.t, patience, fmt.Sprintf("node %d has the last edit", i), func() bool {
			lines := node.logLines(editInForce)
			last := lines[len(lines)-1]
			version = last.Version
			return strings.Contains(last.Changes+";", "rules added: "+rule+";") // it may be the only change
		})
		if got := node.version("shop"); got != version || version != f.nodes[0].version("shop") {
			f.t.Errorf("the metric of node %d tells of version %s, its log of %s", i, got, version)
		}
	}
	return version
}

// removeFiles removes two of the files and empties the third, and then restores all of them.
func (f *trio) removeFiles(text, version string) {
	f.t.Helper()
	f.files[0].remove()
	f.files[1].edit("")
	f.files[2].remove()
	for i, want := range []string{"no such file or directory; create it", "policy.yaml: policy: is empty", "no such file"} {
		eventually.Until(f.t, patience, fmt.Sprintf("node %d misses its file", i), func() bool {
			lines := f.nodes[i].logLines(editRefused)
			last := lines[len(lines)-1]
			return last.File == f.files[i].path && last.Version == version && strings.Contains(last.Error, want)
		})
	}
	f.edit(text)
	for i, node := range f.nodes {
		eventually.Until(f.t, patience, fmt.Sprintf("node %d has its file back", i), func() bool {
			lines := node.logLines(editBack)
			return len(lines) > 0 && lines[len(lines)-1].Version == version
		})
		if got := node.version("shop"); got != version {
			f.t.Errorf("node %d: version %s, want still %s", i, got, version)
		}
	}
}

// awaitAdmitted waits until as many requests are admitted as the limits allow.
func (f *trio) awaitAdmitted(windowed, bursty int) {
	f.t.Helper()
	eventually.Until(f.t, patience, "what the limits allow is admitted", func() bool {
		return f.windowed.admitted.Load() >= int64(windowed) && f.bursty.admitted.Load() >= int64(bursty)
	})
}

// checkExact compares the numbers of admitted requests with the limits and with the counters.
func (f *trio) checkExact(windowed, bursty int) {
	f.t.Helper()
	if got := f.windowed.admitted.Load(); got != int64(windowed) {
		f.t.Errorf("%d admitted by count, want exactly %d", got, windowed)
	}
	if got := f.bursty.admitted.Load(); got != int64(bursty) {
		f.t.Errorf("%d admitted by burst, want exactly %d", got, bursty)
	}
	for _, got := range []*tally{&f.windowed, &f.bursty} {
		if got.serverErrors.Load()+got.broken.Load() > 0 || got.refused.Load() == 0 {
			f.t.Errorf("%d answers of 5xx, %d broken, %d refused", got.serverErrors.Load(), got.broken.Load(), got.refused.Load())
		}
	}
	for key, want := range map[string]int{
		"rl1:shop:windowed:{ip:127.0.0.1}:2678400s:fw": windowed,
		"rl1:shop:everyone:{everyone}:2678400s:fw":     windowed + bursty,
	} {
		if got := sum(readUsed(f.t, f.redis, key)); got != int64(want) {
			f.t.Errorf("%s has counted %d, want %d", key, got, want)
		}
	}
}
