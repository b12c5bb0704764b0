// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"crypto/x509"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/certtest"
)

// TestCertificatesNameRegions tests that an agent answers only callers whose certificate names
// another region of the policy. It also tests that an agent sends a question only to an agent whose
// certificate names the region that the question is for.
func TestCertificatesNameRegions(t *testing.T) {
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca := certtest.NewAuthority(t, file("ca.pem"), file("ca.key"))
	for name, template := range map[string]*x509.Certificate{"us": certtest.Region("us"), "peer": certtest.Region("peer"),
		"mars": certtest.Region("mars"), "nameless": {DNSNames: []string{"peer", "penstock:region:peer"}}} {
		ca.Issue(t, file(name+".pem"), file(name+".key"), template)
	}
	shares := [policy.RegionsMax]uint16{10, 10}
	us := newLender(t, "20/1h fixed_window", shares, 0)
	eu := newLender(t, "20/1h fixed_window", shares, 1)
	server := httptest.NewUnstartedServer(us.Handler())
	server.TLS, server.EnableHTTP2 = certtest.Mutual(t, folder, "us"), true
	server.StartTLS()
	defer server.Close()
	for _, tt := range []struct {
		certificate, asked, failure string
	}{
		{"peer", "us", ""},
		{"us", "us", "403"}, // a region does not ask itself
		{"mars", "us", "403"},
		{"nameless", "us", "403"},
		{"peer", "ap", "does not name region ap"},
		{"peer", "u", "does not name region u:"},
	} {
		peer, err := NewPeer(tt.asked, server.URL, certtest.Mutual(t, folder, tt.certificate))
		if err != nil {
			t.Fatal(err)
		}
		eu.o.Peers = []*Peer{peer}
		eu.tell(t.Context(), peer) // which regions are written off, as it does every second
		if age := `penstock_region_peer_age_seconds{region="` + tt.asked + `"} `; strings.Contains(eu.metrics(), age) != (tt.failure == "") {
			t.Errorf("%s has told %s, the metrics are\n%s", tt.certificate, tt.asked, eu.metrics())
		}
		l, err := peer.ask(t.Context(), &Question{Key: us.key, Limit: us.whole.String(), Want: 1, Short: true, Shares: shares})
		peer.Close()
		switch {
		case tt.failure == "" && (err != nil || l.Units != 1):
			t.Errorf("%s asks %s: %d units, error %v", tt.certificate, tt.asked, l.Units, err)
		case tt.failure != "" && (err == nil || l.Units != 0 || !strings.Contains(err.Error(), tt.failure)):
			t.Errorf("%s asks %s: %d units, error %v, want %q", tt.certificate, tt.asked, l.Units, err, tt.failure)
		}
	}
	if metrics := us.metrics(); !strings.Contains(metrics, "penstock_region_strangers_total 6\n") {
		t.Errorf("three strangers have told and asked:\n%s", metrics)
	}
}
