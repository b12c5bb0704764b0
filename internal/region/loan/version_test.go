// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/certtest"
)

// TestAgentsOfOtherVersions: fields of a later release are ignored, fields that an earlier release
// does not send have no effect, and messages of another version of the protocol are refused.
func TestAgentsOfOtherVersions(t *testing.T) {
	l := newLender(t, "20/1h fixed_window", [policy.RegionsMax]uint16{10, 10}, 0)
	later := strings.TrimSuffix(l.question(4, "[10,10]"), "}") + `,"colour":{"depth":7}}`
	lent, status := l.post(loansPath, later)
	if status != http.StatusOK || lent.Units != 4 {
		t.Fatalf("a question of a later release: status %d, %+v", status, lent)
	}
	back := fmt.Sprintf(`{"question":%s,"loan":{"id":%q,"units":3,"receipt":%d,"at":0,"colour":1},"shape":[]}`, later, lent.ID, lent.Receipt)
	if lent, status = l.post(returnsPath, back); status != http.StatusOK || lent.Units != 3 {
		t.Errorf("a return of a later release: status %d, %+v", status, lent)
	}
	if _, status = l.post(writeoffPath, `{"regions":{},"colour":1}`); status != http.StatusOK {
		t.Errorf("a state of the regions of a later release: status %d", status)
	}
	for _, path := range []string{"/v2/loans", "/v2/gossip", "/", "/v1/loans/"} {
		w := httptest.NewRecorder()
		l.Handler().ServeHTTP(w, fromPeer(path, later))
		if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "version 1 of the protocol") || !strings.Contains(w.Body.String(), "update the older agent") {
			t.Errorf("%s: status %d, %s", path, w.Code, w.Body)
		}
	}
}

// TestAnswersOfOtherVersions tests the same for answers. The reason why an agent does not answer is
// shown until it answers.
func TestAnswersOfOtherVersions(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewAuthority(t, folder+"/ca.pem", folder+"/ca.key")
	for _, name := range []string{"us", "eu"} {
		ca.Issue(t, folder+"/"+name+".pem", folder+"/"+name+".key", certtest.Region(name))
	}
	answers := map[string]string{loansPath: `{"units":2,"receipt":1699999200000000,"colour":{"depth":7}}`, writeoffPath: `{"regions":{},"colour":1}`}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := answers[r.URL.Path]; ok {
			_, _ = w.Write([]byte(text))
			return
		}
		http.Error(w, "this agent speaks version 2", http.StatusNotFound)
	}))
	server.TLS = certtest.Mutual(t, folder, "us")
	server.StartTLS()
	defer server.Close()
	peer, err := NewPeer("us", server.URL, certtest.Mutual(t, folder, "eu"))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	eu := newLender(t, "20/1h fixed_window", [policy.RegionsMax]uint16{10, 10}, 1)
	eu.o.Peers = []*Peer{peer}
	q := &Question{Key: eu.key, Limit: eu.whole.String(), Want: 2, Short: true}
	check := func(want string) {
		t.Helper()
		eu.tell(t.Context(), peer)
		l, err := peer.ask(t.Context(), q)
		shown := eu.Status("eu").Peers[0].Failure
		if want == "" && (err != nil || l.Units != 2 || shown != "") || want != "" && (err == nil || l.Units != 0 || !strings.Contains(shown, want)) {
			t.Errorf("%d units, error %v, and %q is shown, want %q", l.Units, err, shown, want)
		}
	}
	check("")
	known := answers
	answers = nil
	check("version 2")
	answers = map[string]string{loansPath: known[loansPath]} // as of a release that cannot write regions off
	eu.tell(t.Context(), peer)
	if l, err := peer.ask(t.Context(), q); err != nil || l.Units != 2 || !strings.Contains(eu.Status("eu").Peers[0].Failure, "version 2") {
		t.Errorf("%d units, error %v, and %+v is shown", l.Units, err, eu.Status("eu").Peers[0])
	}
	answers = known
	check("")
}
