// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/credential"
)

// testKeys calls every operation on API keys.
func (s *served) testKeys() {
	t := s.t
	t.Helper()
	var made struct{ Key string }
	a := s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys", `{"record":{"name":"ci","client":"user:ann","limits":{"api":["9/1s"]}},`+reason+`}`), 201, `"changed":1`)
	if err := json.Unmarshal([]byte(a.body), &made); err != nil || made.Key == "" {
		t.Fatalf("no key was made: %v", err)
	}
	hash, err := credential.HashKey(made.Key)
	if err != nil || !strings.Contains(a.body, credential.Digits(hash)) {
		t.Errorf("the key is not the one of the hash: %v", err)
	}
	seen := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys/ci", ""), 200, `"state":"valid"`).body +
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys?client=user:ann&limit=1", ""), 200, `"name":"ci"`, `"next":`).body +
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys/ci/changes", ""), 200, `"action":"key create ci`).body
	if strings.Contains(seen, made.Key) {
		t.Error("a key is shown twice")
	}
	if strings.Contains(seen, "last_used_at") {
		t.Error("a key was used that no node has seen")
	}
	line := `{"time":"` + time.Now().UTC().Format(time.RFC3339) + `","kind":"usage","keys":["` + credential.Digits(hash) + `"]}`
	s.checkAnswer(s.ask(ledger.Node, "PUT", "/v1/batches/"+strings.Repeat("2", 32)+"/1", line, "Content-Type", "application/x-ndjson"), 200, `"repeated":false`)
	for _, path := range []string{"/v1/keys/ci", "/v1/keys?client=user:ann"} {
		s.checkAnswer(s.ask(ledger.Viewer, "GET", path, ""), 200, `"last_used_at":"`)
	}
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys/ci/edits", `{"action":"rotate","until":"2999-01-01T00:00:00Z",`+reason+`}`), 200, `"key":"`, `"changed":2`)
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys/ci/edits", `{"action":"revoke",`+reason+`}`), 200, `"state":"revoked"`)
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys/ci/edits", `{"action":"forget",`+reason+`}`), 200, `"keys":[]`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys/ci", ""), 404)
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys/ci/edits", `{"action":"revoke",`+reason+`}`), 404)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys?after=bogus", ""), 422, "query.after")
	for _, id := range []string{"a", "b"} {
		if _, err := s.ledger.Pool.Exec(t.Context(), "INSERT INTO unpublished (kind, id, problem) VALUES ('user', $1, 'no record')", id); err != nil {
			t.Fatal(err)
		}
	}
	if rows := s.readPages("/v1/unpublished?"); len(rows) != 2 || !strings.Contains(rows[1], `"kind":"user","id":"b","problem":"no record"`) {
		t.Errorf("what is not published is %v", rows)
	}
	s.checkAnswer(s.ask("nobody", "GET", "/metrics", ""), 200, "penstock_control_ready 1\n", "# TYPE penstock_control_invalid_rows gauge\npenstock_control_invalid_rows 0\n")
}

// TestKeysAreForEditors tests that the support role can switch keys off and on, but can neither
// make nor end any. It also tests that hostile names and bodies are answered with a status below
// 500.
func TestKeysAreForEditors(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const create = `{"record":{"name":"ci","client":"user:ann"},` + reason + `}`
	for _, role := range []ledger.Role{ledger.Viewer, ledger.Support, ledger.Node} {
		s.checkAnswer(s.ask(role, "POST", "/v1/keys", create), 403)
	}
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys", create), 201)
	for _, action := range []string{"rotate", "revoke", "forget"} {
		s.checkAnswer(s.ask(ledger.Support, "POST", "/v1/keys/ci/edits", `{"action":"`+action+`",`+reason+`}`), 403, "with disable, the role support is enough")
	}
	s.checkAnswer(s.ask(ledger.Support, "POST", "/v1/keys/ci/edits", `{"action":"disable",`+reason+`}`), 200, `"state":"inactive"`)
	s.checkAnswer(s.ask(ledger.Support, "POST", "/v1/keys/ci/edits", `{"action":"enable",`+reason+`}`), 200, `"state":"valid"`)
	s.checkAnswer(s.ask(ledger.Viewer, "POST", "/v1/keys/ci/edits", `{"action":"disable",`+reason+`}`), 403)
	for _, body := range []string{
		`{"record":{"name":"x","client":"user:x","revoked":{"at":"2026-01-01T00:00:00Z","by":"root","reason":"x"}},` + reason + `}`,
		`{"record":{"name":"x","client":"user:x","created_by":"root"},` + reason + `}`,
		`{"record":{"name":"x","client":"user:x"},"actor":"root",` + reason + `}`,
		`{"record":{"name":"x","client":"user:x"},"import":true,` + reason + `}`,
		`{"record":{"name":"x\u0000","client":"user:x"},` + reason + `}`,
		`{"record":{"name":"x","client":"'; DROP TABLE api_keys; --"},` + reason + `}`,
		`{"record":{"name":"x","client":"user:x"},"hash":"pk_1",` + reason + `}`,
	} {
		s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys", body), 422)
	}
	for _, name := range []string{"%00", "%ff", "%2E%2E", "a%2Fb", "%27%3B%20DROP%20TABLE%20api_keys%3B--"} {
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/keys/"+name, ""), 404)
		if a := s.ask(ledger.Viewer, "GET", "/v1/keys/"+name+"/changes", ""); a.status != 200 && a.status != 422 {
			t.Errorf("the changes of %s: %d %s", name, a.status, a.body)
		}
	}
}
