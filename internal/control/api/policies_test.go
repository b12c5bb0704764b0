// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
)

// served.policies calls each operation on policies, with valid and with invalid requests.
func (s *served) policies() {
	const shop = "/v1/policies/shop"
	body := func(text string) string { return `{"format":"yaml","text":"` + text + `",` + reason + `}` }
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`rules: [{name: api, limit: 3/1m}]`)), 428)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`rules: [{name: api, limit: 3/1m}]`), "If-None-Match", "*"), 200, `"revision":1`, `"action":"put"`)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`rules: [{name: api, limit: 3/1m}]`), "If-None-Match", "*"), 412)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`name: other\nrules: [{name: api, limit: 3/1m}]`), "If-Match", `"1"`), 422, `the policy's name is \"other\"`)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`rules:\n - {name: api, limit: 3/x, lmit: 4}\n - {name: api, limit: 3/y}`), "If-Match", `"1"`), 422,
		"policy.yaml:2", "policy.yaml:3", "lmit", "3/y")
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(`rules: [{name: api, limit: 4/1h}]`), "If-Match", `"1"`), 200, `"revision":2`)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/policies/a%2Fb", body(`rules: [{name: api, limit: 3/1m}]`), "If-None-Match", "*"), 422, "path.policy")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", shop, ""), 200, `"head":2`, `"document":{"name":"shop"`, `"generation":0`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", shop+"?revision=1", ""), 200, `"revision":1`, "3/1m")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", shop+"?revision=9", ""), 404)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", shop+"/revisions?limit=1", ""), 200, `"revision":2`, `"next":2`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", shop+"/diff?from=1&to=2", ""), 200, `"changed":["api (limit)"]`, `"anew":["api 4/1h`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/policies?limit=1", ""), 200, `"policy":"shop"`, `"next":"shop"`)
	publish := func(body string) answer {
		return s.ask(ledger.Editor, "POST", shop+"/publication", `{`+body+`,`+reason+`}`)
	}
	s.checkAnswer(publish(`"step":"share","share_percent":10`), 422, "no revision is in force yet")
	s.checkAnswer(publish(`"step":"all","revision":1`), 200, `"revision":1`)
	s.checkAnswer(publish(`"step":"share","share_percent":12.5,"denials_max_percent":5`), 200, `"candidate":2`, `"share_percent":12.5`, `"denials_max_percent":5`)
	s.checkAnswer(publish(`"step":"withdraw","generation":1`), 412)
	s.checkAnswer(publish(`"step":"share","client_share_percent":0.01,"denials_max_percent":5`), 200, `"candidate":2`, `"client_share_percent":0.01`)
	s.checkAnswer(publish(`"step":"share","client_share_percent":1,"share_percent":1`), 422, "body.client_share_percent", "or one of the clients")
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/policies/bridged/publication", `{"step":"share","client_share_percent":1,`+reason+`}`), 422,
		"body.client_share_percent", "cannot decide by the client")
	s.checkAnswer(publish(`"step":"share","share_percent":100`), 422)
	s.checkAnswer(publish(`"step":"share","share_percent":1,"promote_after_seconds":3600`), 422, "body.promote_after_seconds", `"value":3600`, "write denials_max_percent 5")
	s.checkAnswer(publish(`"step":"share","share_percent":1,"denials_max_percent":5,"promote_after_seconds":59`), 422, "body.promote_after_seconds", `"value":59`, "write a number from 60")
	s.checkAnswer(publish(`"step":"share","share_percent":1,"denials_max_percent":5,"promote_after_seconds":3600`), 200, `"promote_after_seconds":3600`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/policies?limit=1", ""), 200, `"promotion":{"observed_seconds":0,"obstacle":"no process of the control plane reads the reports"}`)
	s.checkAnswer(s.ask(ledger.Editor, "POST", shop+"/rollback", `{"revision":1,`+reason+`}`), 200, `"revision":3`, `"rollback to 1"`)
	s.checkAnswer(s.ask(ledger.Editor, "POST", shop+"/rollback", `{"revision":9,`+reason+`}`), 404)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", shop, body(strings.Repeat("#", policyBodyBytesMax)), "If-Match", `"3"`), 413)
	s.checkAnswer(s.ask(ledger.Support, "PUT", shop, body("rules: []"), "If-Match", `"3"`), 403)
	s.checkAnswer(s.ask(ledger.Support, "POST", shop+"/publication", `{"step":"all",`+reason+`}`), 403)
}

// TestAPolicyNeedsAKey tests that a control plane without a key publishes no policy.
func TestAPolicyNeedsAKey(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.api.o.Encode = func(*ledger.Publication, *ledger.Revision, *ledger.Revision) error {
		return &ledger.Invalid{Text: "no key"}
	}
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/policies/shop", `{"format":"yaml","text":"rules: [{name: api, limit: 3/1m}]",`+reason+`}`, "If-None-Match", "*"), 200)
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/policies/shop/publication", `{"step":"all",`+reason+`}`), 422, "no key")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/policies/shop", ""), 200, `"revision":0`)
}
