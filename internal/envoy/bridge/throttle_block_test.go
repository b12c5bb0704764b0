// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
)

// waited is a policy under which requests of users and of API keys wait.
const waited = `
name: shop
directory: true
identify:
  - api_key: {keys: directory, on_invalid: deny}
  - header: {name: X-User, unverified: true}
rules:
  - { name: slow, per: [], limit: 1/1s fixed_window, action: throttle, throttle: { max_delay: 5s, max_waiting: 3 } }
`

// queuingBridge is a bridge in simulated time whose requests wait.
type queuingBridge struct {
	*testBridge
	source *directory.Memory
	begin  time.Time
}

// withQueue runs a test whose bridge has already admitted one request in the first second.
func withQueue(t *testing.T, story func(*queuingBridge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		document, err := policyfile.Decode("shop", policyfile.YAML, []byte(waited))
		if err != nil {
			t.Fatal(err)
		}
		q := &queuingBridge{source: new(directory.Memory)}
		q.testBridge = open(t, shop, func(o *Options) {
			o.PolicyFile, o.Policy = "", document
			o.OpenDirectory = func() (*directory.Directory, error) {
				return directory.Open(directory.Options{Source: q.source, Timeout: redistestTimeout})
			}
		})
		q.ask(q.questionOf("ann"))
		q.begin = time.Now()
		story(q)
	})
}

// questionOf returns a question of a user, or of an API key.
func (q *queuingBridge) questionOf(credential string) wire.Item {
	item := q.question("/", "192.0.2.1")
	for i, name := range formOf(q.b.policy.Current()).inputs.Headers {
		if (name == "X-Api-Key") == (credential == secret("acme")) {
			item.Ask.Headers[i] = wire.Value{Text: credential, Given: true}
		}
	}
	return item
}

// queuingBridge.wait asks a question that waits. The returned function waits for the answer, and
// returns it with the time that it took.
func (q *queuingBridge) wait(credential string) func() (a wire.Answer, after time.Duration) {
	item := q.questionOf(credential)
	item.Kind = wire.KindWait
	var a wire.Answer
	var after time.Duration
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a, after = q.ask(item)[0], time.Since(q.begin)
	}()
	synctest.Wait()
	return func() (wire.Answer, time.Duration) {
		<-ended
		return a, after
	}
}

// TestABlockReachesThoseThatWait blocks a client while one of its requests waits. The request is
// denied at its turn and takes no unit. The unit goes to the next request.
func TestABlockReachesThoseThatWait(t *testing.T) {
	withQueue(t, func(q *queuingBridge) {
		bob, ann := q.wait("bob"), q.wait("ann")
		edit(q.t, q.source, directory.Edit{Client: "header.x-user:bob", Action: directory.ActionBlock})
		a, after := bob()
		blocked := a.Verdict != nil
		if blocked {
			records := recordsOf(t, a.Verdict)
			blocked = len(records) == 2 && records[1] != nil && *records[1] == (policy.ClientRecord{Blocked: true})
		}
		if a.Status != wire.StatusOK || len(a.Results) != 0 || !blocked || after != time.Second {
			q.t.Errorf("the blocked client: %+v after %v", a, after)
		}
		if a, after := ann(); a.Status != wire.StatusOK || len(a.Results) != 1 || a.Results[0].Denied || after != time.Second {
			q.t.Errorf("the client behind it: %+v after %v", a, after)
		}
	})
}

// TestARevocationReachesThoseThatWait revokes an API key while a request with that key waits. The
// request is denied at its turn.
func TestARevocationReachesThoseThatWait(t *testing.T) {
	withQueue(t, func(q *queuingBridge) {
		createKey(q.t, q.source, "acme", "api_key:acme", "")
		acme, ann := q.wait(secret("acme")), q.wait("ann")
		editKey(q.t, q.source, directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"})
		a, after := acme()
		if a.Status != wire.StatusOK || len(a.Results) != 0 || a.Verdict == nil || len(a.Verdict.Ways) != 1 ||
			a.Verdict.Ways[0].State != policy.CredentialRevoked || after != time.Second {
			q.t.Errorf("the revoked key: %+v after %v", a, after)
		}
		if a, after := ann(); a.Status != wire.StatusOK || len(a.Results) != 1 || a.Results[0].Denied || after != time.Second {
			q.t.Errorf("the client behind it: %+v after %v", a, after)
		}
	})
}
