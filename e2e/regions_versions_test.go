// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// standIn takes the place of the agent of the region us, as if that agent were of another release.
// It was written from the format of the messages alone. Its part of each client's limit is 15
// units.
type standIn struct {
	t      *testing.T
	client *http.Client
	server *http.Server

	mu       sync.Mutex
	paths    []string                  // the paths that the stand-in serves
	more     map[string]any            // fields that the stand-in adds to its messages
	lent     map[string]int64          // units, by the key of the counter
	question map[string]map[string]any // the last question about each key
}

// startStandIn starts a stand-in in place of the agent of the region us.
func (l *lending) startStandIn() *standIn {
	l.t.Helper()
	l.agents["us"].kill()
	s := &standIn{t: l.t, paths: []string{"/v1/loans", "/v1/returns"}, lent: map[string]int64{}, question: map[string]map[string]any{}}
	pair, err := tls.LoadX509KeyPair(filepath.Join(l.folder, "us.pem"), filepath.Join(l.folder, "us.key"))
	if err != nil {
		l.t.Fatal(err)
	}
	config := newTrustingConfig(l.t, l.folder)
	config.Certificates, config.ClientCAs, config.ClientAuth = []tls.Certificate{pair}, config.RootCAs, tls.RequireAndVerifyClientCert
	config.NextProtos, config.ServerName = []string{"h2", "http/1.1"}, "127.0.0.1"
	s.client = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	listener, err := net.Listen("tcp", l.listen["us"])
	if err != nil {
		l.t.Fatal(err)
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), TLSConfig: config, ReadHeaderTimeout: patience}
	go s.server.ServeTLS(listener, "", "") //nolint:errcheck // ServeTLS returns when it is closed
	l.t.Cleanup(s.close)
	return s
}

func (s *standIn) close() {
	_ = s.server.Close()
	s.client.CloseIdleConnections()
}

// standIn.serve lends the remaining units of a counter on request, and takes returned units back.
func (s *standIn) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.paths, r.URL.Path) {
		http.Error(w, "this stand-in speaks "+strings.Join(s.paths, ", "), http.StatusNotFound)
		return
	}
	var m map[string]any
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		s.t.Error(err)
	}
	answer := maps.Clone(s.more)
	if answer == nil {
		answer = map[string]any{}
	}
	if loan, ok := m["loan"].(map[string]any); ok {
		question, _ := m["question"].(map[string]any)
		key, _ := question["key"].(string)
		units, _ := loan["units"].(float64)
		s.lent[key] -= int64(units)
		answer["units"] = units
	} else {
		key, _ := m["key"].(string)
		want, _ := m["want"].(float64)
		units := min(int64(want), 15-s.lent[key])
		s.lent[key], s.question[key] = s.lent[key]+units, m
		window := (31 * 24 * time.Hour).Microseconds()
		answer["units"], answer["receipt"] = units, time.Now().UnixMicro()/window*window
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// standIn.borrow asks the agent of a region for units of a counter about which the stand-in was
// asked before. The question has only the fields of the first release, and those that the
// stand-in's release added.
func (s *standIn) borrow(address, path, key string, units int) (status int, answer string) {
	s.t.Helper()
	s.mu.Lock()
	q := maps.Clone(s.question[key])
	for _, field := range []string{"need", "id", "of", "source"} {
		delete(q, field)
	}
	q["want"], q["short"] = units, true
	maps.Copy(q, s.more)
	s.mu.Unlock()
	text, err := json.Marshal(q)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := s.client.Post("https://"+address+path, "application/json", bytes.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// standIn.keys returns the keys of the counters about which the stand-in was asked.
func (s *standIn) keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.question {
		keys = append(keys, key)
	}
	return keys
}

// TestAgentsOfTwoReleases tests agents of this release with an agent of another release in the
// region us. An agent of an earlier release lacks fields and paths, and an agent of a later release
// has more fields. Agents of both kinds lend and borrow, and clients get exactly the limit. If the
// other agent speaks another version of the protocol, both sides refuse and say so. When the region
// us has an agent of this release again, clients get the whole limit.
func TestAgentsOfTwoReleases(t *testing.T) {
	t.Parallel()
	l := startLending(t, lendingPolicy)
	s := l.startStandIn()
	shown := func() string { return penstock(t, "regions", "--agent", "unix:"+l.admin["eu"]).out }
	for _, release := range []struct {
		name string
		more map[string]any
	}{
		{"an earlier release", nil},
		{"a later release", map[string]any{"colour": map[string]any{"depth": 7}, "id": "x", "version": 9}},
	} {
		s.mu.Lock()
		s.more, s.question = release.more, map[string]map[string]any{}
		s.mu.Unlock()
		ann := "ann of " + release.name
		admitted := l.drain(ann, "eu", "ap")
		if admitted != 30 {
			t.Errorf("%s: %d units were admitted in eu and ap, 30 are there", release.name, admitted)
		}
		for _, key := range s.keys() {
			if status, answer := s.borrow(l.listen["eu"], "/v1/loans", key, 3); status != http.StatusOK || !strings.Contains(answer, `"units":0`) {
				t.Errorf("%s borrows of what is used up: status %d, %s", release.name, status, answer)
			}
			if status, answer := s.borrow(l.listen["eu"], "/v2/loans", key, 3); status != http.StatusNotFound || !strings.Contains(answer, "version 1") {
				t.Errorf("%s speaks version 2: status %d, %s", release.name, status, answer)
			}
		}
	}
	if out := shown(); !strings.Contains(out, "us did not answer the last message") || !strings.Contains(out, "this stand-in speaks /v1/loans") {
		t.Errorf("penstock regions prints\n%s", out)
	}

	s.mu.Lock()
	s.paths = []string{"/v2/loans"}
	s.mu.Unlock()
	if admitted := l.drain("bob", "eu", "ap"); admitted != 15 {
		t.Errorf("%d units were admitted in eu and ap without us, which have 15", admitted)
	}
	if out := shown(); !strings.Contains(out, "this stand-in speaks /v2/") {
		t.Errorf("penstock regions prints\n%s", out)
	}

	s.close()
	since := time.Now()
	l.startAgent("us")
	l.checkNormal("eu", "carol", since)
	if out := shown(); strings.Contains(out, "did not answer") {
		t.Errorf("penstock regions prints\n%s", out)
	}
}
