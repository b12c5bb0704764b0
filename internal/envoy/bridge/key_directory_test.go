// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/envoy-wasm/filter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/seed"
)

// holders is a policy whose clients have API keys in a directory. Clients of the tier free have no
// limit.
const holders = `
name: shop
lease: auto
identify: [{api_key: {keys: directory, on_invalid: deny}}]
rules:
  - { name: low, match: { path: /low }, limit: 1/1s fixed_window, tiers: { gold: 5/1s fixed_window, free: unlimited } }
  - { name: hot, match: { path: /hot }, limit: 1000000/1h fixed_window }
`

// secret returns a key that contains a name and is long enough.
func secret(name string) string { return "key-of-" + strings.Repeat("-", 16) + name }

// editKey makes a change of keys, and fails the test if it does not succeed.
func editKey(t testing.TB, source directory.Source, e directory.KeyEdit) {
	t.Helper()
	e.Actor, e.Reason = "tester", "a test"
	editor := directory.Editor{Source: source}
	if _, err := editor.ApplyKey(t.Context(), e); err != nil {
		t.Fatalf("%s %s: %v", e.Action, e.Name, err)
	}
}

// hashOf returns the SHA-256 of a key.
func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// createKey creates the key secret(name).
func createKey(t testing.TB, source directory.Source, name, client, tier string) {
	t.Helper()
	editKey(t, source, directory.KeyEdit{Action: directory.KeyCreate, Name: name, Hash: hashOf(secret(name)),
		Record: &directory.KeyRecord{Name: name, Client: client, Tier: tier}})
}

// testBridge.questionWith returns a question about a request with the key secret(name).
func (h *testBridge) questionWith(name, path string) wire.Item {
	item := h.question(path, "192.0.2.1")
	for i, field := range formOf(h.b.policy.Current()).inputs.Headers {
		if field == "X-Api-Key" {
			item.Ask.Headers[i] = wire.Value{Text: secret(name), Given: true}
		}
	}
	return item
}

// stateOf returns the state of the key in an answer. The answer must have one verdict.
func stateOf(t *testing.T, a wire.Answer) policy.CredentialState {
	t.Helper()
	if a.Verdict == nil || len(a.Verdict.Ways) != 1 {
		t.Fatalf("%+v", a)
	}
	return a.Verdict.Ways[0].State
}

// TestKeysOfTheDirectory: the bridge finds keys in the directory, together with their clients,
// tiers and the records of those clients, in two reads for each call. A revoked key is denied.
func TestKeysOfTheDirectory(t *testing.T) {
	memory := &followedSource{new(directory.Memory), make(chan struct{})}
	createKey(t, memory, "gold", "api_key:acme", "gold")
	createKey(t, memory, "ann-ci", "user:ann", "")
	createKey(t, memory, "bad", "user:bad", "gold")
	edit(t, memory, directory.Edit{Client: "user:ann", Action: directory.ActionSetLimits, Rule: "low", Limits: []string{"7/1s fixed_window"}})
	edit(t, memory, directory.Edit{Client: "user:bad", Action: directory.ActionBlock})
	h := openDirected(t, holders, memory, redistestTimeout)
	<-memory.following
	names := []string{"gold", "ann-ci", "bad", "nobody"}
	var items []wire.Item
	for _, name := range names {
		items = append(items, h.questionWith(name, "/low"))
	}
	answers := h.ask(items...)
	for i, want := range []struct {
		state  policy.CredentialState
		client string
		left   int64 // -1: there is no check
	}{
		{policy.CredentialValid, "api_key:acme gold", 4},
		{policy.CredentialValid, "user:ann ", 6},
		{policy.CredentialValid, "user:bad gold", -1},
		{policy.CredentialUnknown, ": ", -1},
	} {
		a, left := &answers[i], int64(-1)
		if len(a.Results) > 0 {
			left = a.Results[0].Remaining
		}
		state := stateOf(t, *a)
		who := &a.Verdict.Ways[0].Identity
		if client := who.Kind + ":" + who.ID + " " + who.Tier; state != want.state || client != want.client || left != want.left || a.Verdict.TTLMicros <= 0 {
			t.Errorf("%s: %v, %q, %d left, %+v", names[i], state, client, left, a)
		}
	}
	if records := recordsOf(t, answers[2].Verdict); len(records) != 2 || records[1] == nil || !records[1].Blocked {
		t.Errorf("the records of a blocked client are %+v", records)
	}
	if reads := h.counted(`penstock_directory_reads_total{result="answered"}`); reads != 2 {
		t.Errorf("%d reads for a call", reads)
	}
	if body := h.post([]byte(`{"path":"/low","ip":"192.0.2.1","headers":{"X-Api-Key":"`+secret("gold")+`"}}`), "application/json").Body.String(); !strings.Contains(body, `"acme"`) {
		t.Errorf("in JSON: %s", body)
	}
	editKey(t, memory, directory.KeyEdit{Action: directory.KeyRevoke, Name: "gold"})
	eventually.Until(t, redistestTimeout, "the key is revoked", func() bool {
		return stateOf(t, h.ask(h.questionWith("gold", "/low"))[0]) == policy.CredentialRevoked
	})
}

// TestKeysNeedADirectory: a bridge that counts in memory rejects a policy whose keys are in the
// directory, and names the remedy.
func TestKeysNeedADirectory(t *testing.T) {
	h := open(t, shop, nil)
	h.write(holders)
	if err := h.b.Reload(); err == nil || !strings.Contains(err.Error(), "keys: directory needs a directory") || !strings.Contains(err.Error(), "--redis") {
		t.Error(err)
	}
}

// TestKeysWithoutRedis: while Redis does not answer, a key that the bridge knows stays valid. A key
// that the bridge has not read is invalid, and the filter must not remember this verdict.
func TestKeysWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	source := sourceIn(t, server)
	createKey(t, source, "seen", "api_key:seen", "")
	createKey(t, source, "unseen", "api_key:unseen", "")
	h := openDirected(t, holders, source, redistestTimeout)
	eventually.Until(t, redistestTimeout, "the key is read", func() bool {
		a := h.ask(h.questionWith("seen", "/low"))[0]
		return a.Verdict != nil && stateOf(t, a) == policy.CredentialValid
	})
	server.Kill()
	answers := h.ask(h.questionWith("seen", "/low"), h.questionWith("unseen", "/low"))
	if state := stateOf(t, answers[0]); state != policy.CredentialValid || answers[0].Verdict.TTLMicros <= 0 {
		t.Errorf("a key that was read: %v, %+v", state, answers[0])
	}
	if state := stateOf(t, answers[1]); state != policy.CredentialInvalid || answers[1].Verdict.TTLMicros != 0 {
		t.Errorf("a key that was not read: %v, %+v", state, answers[1])
	}
}

// TestAFloodOfMadeUpKeys: keys that do not exist take bounded memory and at most two reads for a
// call. A request is denied if the records of its keys are evicted before they are used. No valid
// key is mistaken for an unknown one.
func TestAFloodOfMadeUpKeys(t *testing.T) {
	const most, calls = 64, 20
	memory := new(directory.Memory)
	createKey(t, memory, "acme", "api_key:acme", "gold")
	h := open(t, holders, func(o *Options) {
		o.OpenDirectory = func() (*directory.Directory, error) {
			return directory.Open(directory.Options{Source: memory, Timeout: redistestTimeout, ClientsMax: most})
		}
	})
	statuses := map[string]int{}
	for call := range calls {
		items := make([]wire.Item, wire.ItemsMax)
		for i := range items {
			items[i] = h.questionWith(fmt.Sprint(call, "-", i), "/low")
		}
		items[call] = h.questionWith("acme", "/low")
		for i, a := range h.ask(items...) {
			switch {
			case a.Status == wire.StatusBusy:
				statuses["busy"]++
			case i == call && stateOf(t, a) == policy.CredentialValid:
				statuses["valid"]++
			case i != call && stateOf(t, a) == policy.CredentialUnknown && len(a.Results) == 0:
				statuses["unknown"]++
			default:
				t.Fatalf("question %d: %+v", i, a)
			}
		}
	}
	t.Log(statuses)
	if statuses["unknown"] == 0 || statuses["busy"] == 0 {
		t.Errorf("too little was tried: %v", statuses)
	}
	if n := h.counted("penstock_directory_keys"); n < 1 || n > most {
		t.Errorf("%d keys are remembered, and %d may be", n, most)
	}
	if reads := h.counted(`penstock_directory_reads_total{result="answered"}`); reads > 2*calls {
		t.Errorf("%d reads for %d calls", reads, calls)
	}
	if a := h.ask(h.questionWith("acme", "/low"))[0]; stateOf(t, a) != policy.CredentialValid {
		t.Errorf("after the flood: %+v", a)
	}
}

// TestDenialsOfKeys: a filter's report of denied requests with a key is counted for the client of
// that key.
func TestDenialsOfKeys(t *testing.T) {
	memory, log, all := new(directory.Memory), events.New(events.Options{}), new(eventCollector)
	createKey(t, memory, "ann-ci", "user:ann", "gold")
	detach := log.Attach(all)
	h := open(t, "events: {}\n"+holders, func(o *Options) {
		o.Events = log
		o.OpenDirectory = func() (*directory.Directory, error) {
			return directory.Open(directory.Options{Source: memory, Timeout: redistestTimeout})
		}
	})
	h.ask(h.questionWith("ann-ci", "/low")) // this reads the key
	report := h.questionWith("ann-ci", "/low")
	report.Kind, report.Units = wire.KindDenied, []wire.Units{{Cost: 7}}
	if a := h.ask(report)[0]; a.Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
	detach()
	var got []string
	for _, e := range *all {
		got = append(got, fmt.Sprint(e.Client, " ", e.Rule, " ", e.Count))
	}
	if want := "[user:ann low 7]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// holder is a worker whose clients have keys, and whose answers are checked.
type holder struct {
	*worker
	sought map[uint32]userRequest // the requests sent so far, by their numbers
	answer func(userRequest, int)
}

func (j *holder) Resume(id uint32)                     { j.answer(j.sought[id], 200) }
func (j *holder) Respond(id uint32, r filter.Response) { j.answer(j.sought[id], int(r.Status)) }

// holder.ask sends a request with a key, and checks the answer.
func (j *holder) ask(s userRequest) {
	j.next++
	j.sought[j.next] = s
	headers := [][2]string{{":method", "GET"}, {":path", s.path}, {":authority", "shop.example"}, {"x-api-key", secret(s.user)}}
	if j.f.NewStream(j.next).RequestHeaders(headers) == filter.Continue {
		j.answer(s, 200)
	}
}

// keyState is the state that operators have given a key, and the instant of the change.
type keyState struct {
	made, off, revoked bool
	since              time.Time
}

// keyState.change creates the key, switches it off or on, or revokes it.
func (k *keyState) change(t *testing.T, source directory.Source, name string, random *rand.Rand) {
	k.since = time.Now()
	switch {
	case !k.made:
		createKey(t, source, name, "api_key:acme", "free")
		k.made = true
	case random.IntN(4) == 0:
		editKey(t, source, directory.KeyEdit{Action: directory.KeyRevoke, Name: name})
		k.revoked = true
	case k.off:
		editKey(t, source, directory.KeyEdit{Action: directory.KeyEnable, Name: name})
		k.off = false
	default:
		editKey(t, source, directory.KeyEdit{Action: directory.KeyDisable, Name: name})
		k.off = true
	}
}

// keyState.allows reports whether an answer to a request with the key is right. Within a second
// after a change, any answer is right.
func (k *keyState) allows(status int) bool {
	return time.Since(k.since) < time.Second || status == 200 && k.made && !k.off && !k.revoked ||
		status == 401 && (!k.made || k.off || k.revoked)
}

// TestKeysHoldInFilters: operators create keys of one client, switch them off and on, and revoke
// them. At the same time, workers of several Envoys admit requests with these keys, without a limit
// or from leased units, or deny them. One second after each change, every worker decides by the new
// state.
func TestKeysHoldInFilters(t *testing.T) {
	seed := seed.First(t)
	synctest.Test(t, func(t *testing.T) {
		memory := new(directory.Memory)
		d, err := policyfile.Decode("shop", policyfile.YAML, []byte(holders))
		if err != nil {
			t.Fatal(err)
		}
		w := &world{random: rand.New(rand.NewPCG(seed, 1)), testBridge: open(t, holders, func(o *Options) {
			o.PolicyFile, o.Policy = "", d
			o.OpenDirectory = func() (*directory.Directory, error) { return directory.Open(directory.Options{Source: memory}) }
		})}
		names, paths := []string{"one", "two", "three", "four", "five"}, []string{"/low", "/hot"}
		keys, statuses := map[string]*keyState{}, map[string]int{}
		for _, name := range names {
			keys[name] = new(keyState)
		}
		check := func(s userRequest, status int) {
			statuses[fmt.Sprint(s.path, " ", status)]++
			if k := keys[s.user]; !k.allows(status) {
				t.Errorf("%v after a change to %+v: %s %s has status %d", time.Since(k.since), *k, s.user, s.path, status)
			}
		}
		for range 3 {
			j := &holder{worker: &worker{w: w, started: time.Now()}, sought: map[uint32]userRequest{}, answer: check}
			if j.f, err = filter.New(j, []byte("on_error: deny")); err == nil {
				err = j.f.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			w.run(5 * time.Millisecond)
			var send func()
			send = func() {
				j.ask(userRequest{names[w.random.IntN(len(names))], paths[w.random.IntN(len(paths))]})
				w.in(time.Duration(w.random.ExpFloat64()*float64(time.Millisecond)), send)
			}
			w.in(0, send)
		}
		for range 16 {
			w.run(time.Duration(300+w.random.IntN(1200)) * time.Millisecond)
			name := names[w.random.IntN(len(names))]
			if k := keys[name]; !k.revoked {
				k.change(t, memory, name, w.random)
			}
		}
		w.run(1500 * time.Millisecond)
		t.Logf("%v; %d without a call", statuses, w.aside)
		if w.aside == 0 || statuses["/low 200"] == 0 || statuses["/hot 200"] == 0 || statuses["/low 401"] == 0 {
			t.Errorf("too little was tried: %v, %d without a call", statuses, w.aside)
		}
	})
}
