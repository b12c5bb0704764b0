// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/seed"
)

// attackedBridge is a bridge that listens on TCP ports and counts in memory.
type attackedBridge struct {
	*server
	address, rpc string
	token        string
}

const receiptPolicy = `name: receipts
rules:
  - {name: ai, match: {path: /ai}, limit: 1000/31d fixed_window, cost_after: {json: usage.total, estimate: 10, max: 50}}
  - {name: each, match: {path: /each}, limit: 5/31d fixed_window}
`

func startAttackedBridge(t *testing.T, policy, token string, rpc bool) *attackedBridge {
	t.Helper()
	b := &attackedBridge{address: freeport.Address(t), token: token}
	args := []string{"bridge", "--listen", b.address, "--policy", newAlternatingFile(t, filepath.Join(t.TempDir(), "policy.yaml")).write(policy)}
	if token != "" {
		args = append(args, "--token", token)
	}
	if rpc {
		b.rpc = freeport.Address(t)
		args = append(args, "--rls-listen", b.rpc)
	}
	b.server = startServer(t, exec.Command(penstockProgram(t), args...))
	eventually.Until(t, patience, "the bridge answers", func() bool {
		b.mustRun()
		response, err := http.Get("http://" + b.address + "/readyz")
		if err != nil {
			return false
		}
		discard(response.Body)
		return response.StatusCode == http.StatusOK
	})
	return b
}

// policyFile.write stores text in the file and returns its path.
func (f *policyFile) write(text string) string {
	f.edit(text)
	return f.path
}

// attackedBridge.post sends a body to the bridge and returns the answer.
func (b *attackedBridge) post(kind string, body []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequest(http.MethodPost, "http://"+b.address+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", kind)
	if b.token != "" {
		request.Header.Set("Authorization", "Bearer "+b.token)
	}
	response, err := asking.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// checkJSON asks the bridge, with a check in JSON, about a request for the path, and returns the
// decision.
func (b *attackedBridge) checkJSON(t *testing.T, path string) (remaining int, version string) {
	t.Helper()
	status, body, err := b.post("application/json", []byte(`{"path":"`+path+`","ip":"192.0.2.7"}`))
	var said struct {
		Remaining int    `json:"remaining"`
		Version   string `json:"policy_version"`
	}
	if err == nil {
		err = json.Unmarshal(body, &said)
	}
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d: %v: %s", status, err, body)
	}
	return said.Remaining, said.Version
}

// attackedBridge.call sends the items in one binary call, as the filter does, and returns the
// answers.
func (b *attackedBridge) call(version string, items ...wire.Item) (answers []wire.Answer, err error) {
	body := wire.AppendCall(nil, version)
	for i := range items {
		body = wire.AppendItem(body, &items[i])
	}
	status, reply, err := b.post(wire.ContentType, body)
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %w: %s", status, err, reply)
	}
	reader, err := wire.ReadReply(reply)
	if err != nil {
		return nil, err
	}
	for {
		var a wire.Answer
		if ok, err := reader.Next(&a); err != nil || !ok {
			return answers, err
		}
		answers = append(answers, a)
	}
}

// zeroCost returns a settlement in which the response reports a cost of zero.
func zeroCost(receipt string) wire.Item {
	return wire.Item{Kind: wire.KindSettle, Settle: wire.Settle{Receipt: receipt, Status: http.StatusOK,
		Numbers: []wire.Field{{Name: "usage.total", Text: "0"}}}}
}

// TestAttacksOnReceipts tests that a receipt refunds the units that its request reserved, even if
// it is sent many times. An altered receipt refunds nothing.
func TestAttacksOnReceipts(t *testing.T) {
	t.Parallel()
	b := startAttackedBridge(t, receiptPolicy, bridgeToken, false)
	random := seed.Random(t)
	before, version := b.checkJSON(t, "/ai")
	ask := wire.Item{Kind: wire.KindAsk, Ask: wire.Ask{Path: "/ai", Method: http.MethodGet, Host: "h", Peer: netip.MustParseAddr("192.0.2.7")}}
	admitted, err := b.call(version, ask, ask)
	if err != nil || len(admitted) != 2 || admitted[0].Receipt == "" {
		t.Fatalf("%v: %+v", err, admitted)
	}
	receipt := admitted[0].Receipt
	for range chooseLength(200, 20_000) {
		forged := []byte(receipt)
		switch at := random.IntN(len(forged)); random.IntN(3) {
		case 0:
			forged[at] ^= byte(1 + random.IntN(255))
		case 1:
			forged = forged[:at]
		default:
			forged = append(forged, byte(random.IntN(256)))
		}
		answers, err := b.call(version, zeroCost(string(forged)))
		if err != nil || answers[0].Status == wire.StatusOK {
			t.Fatalf("a forged receipt: %v, %+v", err, answers)
		}
	}
	var group sync.WaitGroup
	for range 16 { // many goroutines send the genuine receipt
		group.Go(func() {
			for range chooseLength(10, 200) {
				if _, err := b.call(version, zeroCost(receipt), zeroCost(receipt)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	eventually.Until(t, patience, "what was reserved once is given back once", func() bool {
		var left int
		left, version = b.checkJSON(t, "/ai") // each of these checks reserves ten units
		before -= 10
		return left == before-10
	})
}

// TestAttacksOnTheBridgesForm tests that malformed calls neither crash the bridge nor make its
// memory grow beyond a bound.
func TestAttacksOnTheBridgesForm(t *testing.T) {
	t.Parallel()
	b := startAttackedBridge(t, receiptPolicy, bridgeToken, false)
	random := seed.Random(t)
	_, version := b.checkJSON(t, "/ai")
	ask := wire.Item{Kind: wire.KindAsk, Ask: wire.Ask{Path: "/each", Method: http.MethodGet, Peer: netip.MustParseAddr("192.0.2.7")}}
	good, before := wire.AppendCall(nil, version), b.residentKB()
	good = wire.AppendItem(good, &ask)
	for range chooseLength(1_000, 50_000) {
		body := bytes.Clone(good)
		for range 1 + random.IntN(4) {
			body[random.IntN(len(body))] = byte(random.IntN(256))
		}
		if status, answer, err := b.post(wire.ContentType, body[:1+random.IntN(len(body))]); err != nil || status >= 500 {
			t.Fatalf("%q: status %d, %v: %s", body, status, err, answer)
		}
	}
	for _, text := range []string{"{", strings.Repeat("[", 1<<19), strings.Repeat(`{"headers":`, 1<<15), `{"path":"/each","path":"/x"}`, `{"ip":"::1%eth0"}`,
		`{"path":"/` + strings.Repeat(`;\\`, 1<<17) + `"}`, `{"headers":{"a":"` + strings.Repeat("x", 1<<19) + `"}}`, "\xff\xfe", `{"path":"\ud800"}`} {
		if status, _, err := b.post("application/json", []byte(text)); err != nil || status >= 500 {
			t.Errorf("%.40q: status %d, %v", text, status, err)
		}
	}
	b.mustRun()
	if grown := b.residentKB() - before; grown > growthMax {
		t.Errorf("the bridge has grown by %d KB", grown)
	}
}

// TestAttacksOnTheBridgesPorts tests that connections which send nothing but a preface are soon
// closed, and that clients with the token are then served on both ports.
func TestAttacksOnTheBridgesPorts(t *testing.T) {
	t.Parallel()
	const prefaces = 4_200
	b := startAttackedBridge(t, "name: ports\nrules:\n  - {name: each, match: {path: /each}, limit: 5/31d fixed_window}\n", bridgeToken, true)
	for what, address := range map[string]string{"--listen": b.address, "--rls-listen": b.rpc} {
		before := b.residentKB()
		var held []net.Conn
		for range prefaces {
			c, err := connectFrom("127.66.6.6", address)
			if err != nil {
				break
			}
			held = append(held, c)
			_, _ = io.WriteString(c, http2.ClientPreface+emptySettings)
		}
		begun, served := time.Now(), false
		for !served && time.Since(begun) < patience/2 {
			served = b.checks(address)
		}
		took := time.Since(begun)
		t.Logf("%s: %d prefaces, a caller with the token is served: %v, after %v; %+d KB", what, len(held), served, took.Round(time.Millisecond),
			b.residentKB()-before)
		if !served {
			t.Errorf("%s: not served in %v", what, took)
		}
		for _, c := range held {
			c.Close()
		}
	}
	b.mustRun()
}

// attackedBridge.checks asks the bridge for its health over a new connection, and reports whether
// the answer is 200. On the port for gRPC it calls the health service, and otherwise /readyz.
func (b *attackedBridge) checks(address string) bool {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	path, method, body := "/readyz", http.MethodGet, ""
	if address == b.rpc {
		path, method, body = "/grpc.health.v1.Health/Check", http.MethodPost, "\x00\x00\x00\x00\x00"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer "+b.token)
	request.Header.Set("Content-Type", "application/grpc")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	discard(response.Body)
	return response.StatusCode == http.StatusOK && (address != b.rpc || response.Trailer.Get("Grpc-Status") == "0")
}

// TestAttacksFromAPage tests a bridge without a token. A web page in a browser on this machine,
// even one whose host name resolves to this machine, cannot use the routes of the bridge.
func TestAttacksFromAPage(t *testing.T) {
	t.Parallel()
	b := startAttackedBridge(t, receiptPolicy, "", false)
	for _, route := range []string{"POST /v1/check", "GET /v1/policy", "GET /metrics"} {
		for _, header := range []http.Header{{"Host": {"evil.example"}}, {"Origin": {"http://evil.example"}}} {
			method, path, _ := strings.Cut(route, " ")
			request, err := http.NewRequest(method, "http://"+b.address+path, strings.NewReader(`{"path":"/each","ip":"192.0.2.9"}`))
			if err != nil {
				t.Fatal(err)
			}
			request.Header = header.Clone()
			request.Host = header.Get("Host")
			response, err := asking.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			discard(response.Body)
			if response.StatusCode < 400 {
				t.Errorf("%s with %v: status %d", route, header, response.StatusCode)
			}
		}
	}
}
