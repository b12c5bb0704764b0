// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// controlPath is a proxy between nodes and a control plane. It counts the answers, and can replace
// them.
type controlPath struct {
	url string

	mu      sync.Mutex
	replace func(*http.Response) // if nil, answers are passed on
	seen    map[int]int          // the number of answers, by status
}

// path starts a proxy in front of the control plane.
func (p *policyPlane) path() *controlPath {
	p.t.Helper()
	c := &controlPath{seen: map[int]int{}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.address})
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) }
	proxy.ModifyResponse = func(r *http.Response) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.replace != nil {
			c.replace(r)
		}
		c.seen[r.StatusCode]++
		return nil
	}
	server := httptest.NewServer(proxy)
	p.t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *controlPath) count(status int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[status]
}

// controlPath.answer makes the proxy replace the text of each answer. If text is nil, the proxy
// passes answers on.
func (c *controlPath) answer(text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace = nil
	if text == nil {
		return
	}
	c.replace = func(r *http.Response) {
		r.StatusCode, r.Body = http.StatusOK, io.NopCloser(bytes.NewReader(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		r.Header.Set("Content-Type", "application/octet-stream")
		r.Header.Del("ETag")
		r.ContentLength = int64(len(text))
	}
}

// memoryNode is a Caddy without a Redis. Its counters are in memory.
type memoryNode struct {
	*process
	plane           *policyPlane
	from            *controlPath
	name, tokenFile string
}

func (n *memoryNode) caddyfile() string {
	return `{
	admin ADMIN
}
:SITE {
	penstock {
		policy http shop {
			url ` + n.from.url + `
			token_file ` + n.tokenFile + `
			key ` + n.plane.public + `
			state_dir ` + filepath.Join(n.plane.folder, n.name) + `
			node ` + n.name + `
		}
	}
	respond "hello"
}
`
}

// memoryNode starts a Caddy without Redis.
func (p *policyPlane) memoryNode(from *controlPath, tokenFile, name string) *memoryNode {
	p.t.Helper()
	n := &memoryNode{plane: p, from: from, name: name, tokenFile: tokenFile}
	n.process = startCaddy(p.t, n.caddyfile())
	return n
}

// memoryNode.looks makes the node read its policy now, and returns the limit that the node reports
// to a user.
func (n *memoryNode) looks(user string) string {
	_ = penstock(n.t, "reload", "--admin", n.admin)
	return n.limit(user)
}

func (n *memoryNode) await(limit string) {
	n.t.Helper()
	eventually.Until(n.t, controlPatience, n.name+" has the limit "+limit, func() bool { return n.looks("bob") == limit })
}

// policyPlane.published runs penstock control policy publish, and waits until Redis has the
// publication.
func (p *policyPlane) published(args ...string) {
	p.t.Helper()
	before := p.text()
	p.policy(append(append([]string{"publish"}, args...), "--reason", "a test")...).mustSucceed(p.t)
	eventually.Until(p.t, controlPatience, "Redis has the publication", func() bool { return p.text() != before })
}

// policyPlane.text returns the published text in Redis.
func (p *policyPlane) text() string { return p.redis.Client().Get(p.t.Context(), publishedKey).Val() }

// TestPoliciesOverHTTP publishes policies to nodes without Redis: to all nodes, in shadow, to a
// share of the nodes, and for a share of the clients. It then kills the control plane, and starts
// nodes without it.
func TestPoliciesOverHTTP(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.put(shopLimit("3/1h"))
	p.published("--all")
	path, token := p.path(), p.nodeToken()
	names := map[bool]string{} // the name of a node in a share of half the nodes, and of one outside that share
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprintf("node-%d", i)
		names[published.Place("shop", name) < 5000] = name
	}
	node, other := p.memoryNode(path, token, names[true]), p.memoryNode(path, token, names[false])
	for _, n := range []*memoryNode{node, other} {
		if got := n.limit("ann"); got != "3" {
			t.Errorf("%s has the limit %q", n.name, got)
		}
	}
	sent, unchanged := path.count(http.StatusOK), path.count(http.StatusNotModified)
	eventually.Until(t, controlPatience, "the node asks for the unchanged policy", func() bool {
		node.looks("ann")
		return path.count(http.StatusNotModified) > unchanged
	})
	if again := path.count(http.StatusOK) - sent; again != 0 {
		t.Errorf("an unchanged policy is sent %d times more", again)
	}

	p.put(shopLimit("5/1h"))
	p.published("--all")
	node.await("5")
	other.await("5")
	p.put(shopLimit("1/1h"))
	p.published("--shadow")
	const tried = `penstock_shadow_decisions_total{candidate="refused",policy="shop.shadow",present="admitted"}`
	user := 0
	eventually.Until(t, controlPatience, "a candidate in shadow would deny what the policy in force admits", func() bool {
		user++
		for range 3 {
			node.looks(fmt.Sprint("user-", user))
		}
		return node.metric(tried) > 0
	})
	p.published("3", "--share", "50%")
	node.await("1")
	if got := other.looks("bob"); got != "5" {
		t.Errorf("a node outside of the share has the limit %s", got)
	}
	p.published("3", "--client-share", "50%")
	limits := func(n *memoryNode) (all string) {
		for i := range 20 {
			all += n.limit(fmt.Sprint("client-", i))
		}
		return all
	}
	eventually.Until(t, controlPatience, "both nodes have the candidate for the same clients", func() bool {
		node.looks("bob")
		other.looks("bob")
		of := limits(node)
		return strings.Contains(of, "1") && strings.Contains(of, "5") && of == limits(other)
	})
	p.published("--withdraw")
	node.await("5")
	p.outlives(node)
}

// policyPlane.outlives tests that a node keeps its policy after the control plane was killed, even
// if the node is restarted.
func (p *policyPlane) outlives(node *memoryNode) {
	t := p.t
	t.Helper()
	p.kill()
	if got := node.looks("bob"); got != "5" {
		t.Errorf("without a control plane, the limit is %q", got)
	}
	eventually.Until(t, controlPatience, "the log tells that the control plane is away", func() bool {
		node.looks("bob")
		return strings.Contains(node.log.String(), "the control plane does not give the policy; the one in force stays")
	})
	node.kill()
	node.run(t)
	if a := node.ask(t.Context(), "GET", "/", "X-User", "mallory"); a.status != http.StatusForbidden || node.limit("ann") != "5" {
		t.Errorf("a node that started without a control plane answers %d", a.status)
	}
	if !strings.Contains(node.log.String(), "the policy is the one that was kept on disk") {
		t.Error("the log does not tell of the policy on disk")
	}
	node.name = "without-a-copy"
	node.write(node.caddyfile())
	out, err := exec.Command(caddyProgram(t), "validate", "--config", node.file).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "did not answer for the policy") {
		t.Errorf("without a control plane and a copy: %v, %s", err, out)
	}
}

// TestPoliciesOverHTTPAreVerified tests answers that are not the policy of the control plane. The
// node keeps the policy in force, and logs and counts each such answer once.
func TestPoliciesOverHTTPAreVerified(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.put(shopLimit("3/1h"))
	p.published("--all")
	older := []byte(p.text())
	p.put(shopLimit("4/1h"))
	p.published("--all")
	newer := p.text()
	path, token := p.path(), p.nodeToken()
	node := p.memoryNode(path, token, "a")
	for _, c := range []struct {
		what, want string
		text       []byte
	}{
		{"a forged text", "is not signed by a key that this node trusts", []byte(strings.Replace(newer, `"generation":1`, `"generation":2`, 1))},
		{"an older text", "somebody has restored an old one", older},
		{"the beginning of a text", "is not signed by a key that this node trusts", []byte(newer[:len(newer)-20])},
		{"a text that is too long", "sends more than 1048576 bytes", make([]byte, published.TextBytesMax+1)},
	} {
		path.answer(c.text)
		p.refuses(node, c.what, c.want)
	}
	accepted := func(times int) {
		eventually.Until(t, controlPatience, "the log tells that the policy is accepted again", func() bool {
			node.looks("bob")
			return len(node.logLines(editBack)) >= times
		})
	}
	path.answer(nil)
	accepted(1)
	writeFile(t, token, "pst_0000\n")
	p.refuses(node, "a wrong token", "answered 401")
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	p.refuses(node, "no token", "the token of the control plane: open")
	writeFile(t, token, p.token+"\n") // the token of a person may also read policies
	accepted(2)
}

// policyPlane.refuses tests that a node rejects the answer that it gets, and keeps its policy. The
// argument named want is a part of the expected error.
func (p *policyPlane) refuses(node *memoryNode, what, want string) {
	t := p.t
	t.Helper()
	refused := node.edits("shop", "refused")
	eventually.Until(t, controlPatience, what+" is rejected", func() bool { // an answer may be used for a second
		return strings.Contains(penstock(t, "reload", "--admin", node.admin).diagnostics, want)
	})
	eventually.Until(t, controlPatience, what+" is counted", func() bool { return node.edits("shop", "refused") > refused })
	if got := node.limit("bob"); got != "4" {
		t.Errorf("after %s, the limit is %s", what, got)
	}
	if !strings.Contains(node.log.String(), want) {
		t.Errorf("the log does not tell of %s", what)
	}
}

// TestEnvoyTakesPoliciesOverHTTP publishes a policy to a bridge and a native module that have no
// Redis.
func TestEnvoyTakesPoliciesOverHTTP(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.put(shopLimit("3/1h"))
	p.published("--all")
	token, operators := p.nodeToken(), freeport.Address(t)
	arguments := []string{"bridge", "--policy", "http:shop", "--policy-url", "http://" + p.address, "--policy-token-file", token, "--policy-key", p.public}
	b := &bridge{listen: socket(t)}
	b.server = startServer(t, exec.Command(penstockProgram(t), append(arguments, "--listen", "unix:"+b.listen, "--policy-dir", filepath.Join(p.folder, "bridge"))...))
	eventually.Until(t, controlPatience, "the bridge answers", func() bool {
		b.mustRun()
		_, err := os.Stat(b.listen)
		return err == nil
	})
	_, sites := startModule(t, module(t), nil, "policy_http: {name: shop, url: \"http://"+p.address+"\", token_file: "+token+", keys: \""+p.public+"\", state_dir: "+
		filepath.Join(p.folder, "m")+", node: m}\n"+adminAt(operators))
	limit := func() string { return sites[0].get(t, "/", "X-User", "bob").header.Get("X-RateLimit-Limit") }
	if got := limit(); got != "3" {
		t.Errorf("the module has the limit %q", got)
	}
	before := b.version(t)
	p.put(shopLimit("5/1h"))
	p.published("--all")
	eventually.Until(t, controlPatience, "the bridge has the policy", func() bool {
		b.signal(syscall.SIGHUP)
		return b.version(t) != before
	})
	eventually.Until(t, controlPatience, "the module has the policy", func() bool {
		_ = penstock(t, "reload", "--bridge", "http://"+operators)
		return limit() == "5"
	})
	p.kill()
	if r := penstock(t, append(arguments, "--listen", "unix:"+socket(t))...); r.status == 0 || !strings.Contains(r.diagnostics, "did not answer for the policy") {
		t.Errorf("without a control plane and a copy, a bridge ends with %d: %s", r.status, r.diagnostics)
	}
	last := startServer(t, exec.Command(penstockProgram(t), append(arguments, "--listen", "unix:"+socket(t), "--policy-dir", filepath.Join(p.folder, "bridge"))...))
	eventually.Until(t, controlPatience, "a bridge starts with the policy on disk", func() bool {
		last.mustRun()
		return strings.Contains(last.log.String(), "the policy is the one that was kept on disk")
	})
	if limit() != "5" {
		t.Error("the module has lost its policy")
	}
}
