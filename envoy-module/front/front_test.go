// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// emptyHost is a host without attributes.
type emptyHost struct{}

func (emptyHost) Attribute(string) (string, bool) { return "", false }

// bell is a Waker that lets a test wait until Wake is called.
type bell struct {
	waits     int
	announces bool // the test calls Announce
	rung      chan struct{}
}

func newBell() *bell { return &bell{rung: make(chan struct{}, 1)} }

func (b *bell) Waits()   { b.waits++ }
func (b *bell) Wake()    { b.rung <- struct{}{} }
func (b *bell) Unwaits() { b.waits-- }

func (b *bell) Announces() bool { return b.announces }

// openFront opens a front with the settings until the test ends.
func openFront(t testing.TB, settings string) *Front {
	t.Helper()
	f := openedIn(t, NewProcess(slog.New(slog.DiscardHandler)), settings)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if len(f.process.stores) != 0 {
			t.Error("the store is left open")
		}
	})
	return f
}

// openedIn opens a front of a process. The caller closes the front.
func openedIn(t testing.TB, p *Process, settings string) *Front {
	t.Helper()
	s, err := ReadSettings([]byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// request returns the headers of a GET.
func request(path string, more ...string) [][2]string {
	all := [][2]string{{":method", "GET"}, {":path", path}, {":authority", "example.com"}}
	for i := 0; i < len(more); i += 2 {
		all = append(all, [2]string{more[i], more[i+1]})
	}
	return all
}

const client = "192.0.2.7:4711"

// ask decides a request, and waits for the store if that is necessary.
func ask(t testing.TB, f *Front, headers [][2]string) (v Verdict, fields response.Fields, r Response) {
	t.Helper()
	s, b := f.NewStream(), newBell()
	s.Headers = append(s.Headers, headers...)
	if v = s.Decide(client, emptyHost{}, b); v == Wait {
		<-b.rung
		v = s.Woken()
	}
	of, _ := s.Fields()
	fields, r = cloned(of), *s.Response()
	if settling := s.Settling(); settling != nil {
		settling.End()
	}
	s.Release()
	return v, fields, r
}

// cloned returns fields that outlive their stream.
func cloned(of *response.Fields) (fields response.Fields) {
	for i, text := range of {
		fields[i] = strings.Clone(text)
	}
	return fields
}

const three = "name: shop\nrules: [{name: all, limit: 3/31d}]\n"

func TestDecidesInMemoryAtOnce(t *testing.T) {
	f := openFront(t, three)
	for i := range 5 {
		b, s := newBell(), f.NewStream()
		s.Headers = append(s.Headers, request("/")...)
		v := s.Decide(client, emptyHost{}, b)
		fields, _ := s.Fields()
		if b.waits != 0 || (v == Continue) != (i < 3) || fields[response.FieldRemaining] != strconv.Itoa(max(0, 2-i)) {
			t.Errorf("request %d: verdict %d, %v, waits %d times", i+1, v, fields, b.waits)
		}
		if r := s.Response(); v == Respond && (r.Status != http.StatusTooManyRequests || !strings.Contains(string(r.Body), "quota")) {
			t.Errorf("request %d is answered %d %s", i+1, r.Status, r.Body)
		}
		s.Release()
	}
}

// TestRequestsOwnTheirTexts tests that a decision keeps copies of a request's texts, because Envoy
// reuses their memory after the hook.
func TestRequestsOwnTheirTexts(t *testing.T) {
	f := openFront(t, "name: shop\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: all, limit: 1/31d}]\n")
	envoys := []byte("alice")
	headers := func() [][2]string { return request("/", "x-user", string(envoys)) }
	if v, _, _ := ask(t, f, headers()); v != Continue {
		t.Fatal("the first request is denied")
	}
	copy(envoys, "bobby")
	if v, _, _ := ask(t, f, headers()); v != Continue {
		t.Error("another client is denied")
	}
	copy(envoys, "alice")
	if v, _, _ := ask(t, f, headers()); v != Respond {
		t.Error("the client is not remembered")
	}
}

func TestAsksRedisInTheBackground(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, three+"store: {type: redis, url: \""+redis.URL()+"\", timeout: 5s}\n")
	const requests = 200
	var all sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for range requests {
		all.Go(func() {
			v, _, _ := ask(t, f, request("/"))
			mu.Lock()
			defer mu.Unlock()
			if v == Continue {
				admitted++
			}
		})
	}
	all.Wait()
	if admitted != 3 {
		t.Errorf("%d of %d requests are admitted, want 3", admitted, requests)
	}
	if calls := redis.Calls("evalsha"); calls >= requests {
		t.Errorf("%d calls for %d requests: denials are not remembered", calls, requests)
	}
}

// TestStreamsThatEndWhileTheyWait tests that a request can be decided before or after the hook that
// ends it, and that the front can be closed afterwards.
func TestStreamsThatEndWhileTheyWait(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 100000/31d, cost_after: {estimate: 2, header: X-Cost, default: 1}}]\nstore: {type: redis, url: \""+
		redis.URL()+"\", timeout: 5s}\n")
	for range 200 {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, b); v != Wait {
			t.Fatalf("verdict %d", v)
		}
		s.Gone()
		<-b.rung
	}
	eventually.Until(t, 10*time.Second, "no request waits", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.under == 0
	})
}

// TestAClientThatLeavesAThrottleQueueIsGone tests that a request in a throttle queue ends at once
// if its client leaves, and is not charged.
func TestAClientThatLeavesAThrottleQueueIsGone(t *testing.T) {
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 4/3m burst 1, action: throttle, throttle: {max_delay: 1m}}]\n")
	if v, _, _ := ask(t, f, request("/")); v != Continue {
		t.Fatal("the first request is denied")
	}
	var waiting []*bell
	start := time.Now()
	for range 100 {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, b); v != Wait {
			t.Fatalf("verdict %d", v)
		}
		s.Gone()
		waiting = append(waiting, b)
	}
	for _, b := range waiting {
		<-b.rung
	}
	// The first unit becomes available after 45 seconds.
	if n, took := f.process.lines.Waiting(), time.Since(start); n != 0 || took > 30*time.Second {
		t.Errorf("%d requests wait after %v", n, took)
	}
}

// TestTooManyWaitingRequestsAreDenied tests that a request is denied at once if the queue is full,
// and that the requests that wait are decided.
func TestTooManyWaitingRequestsAreDenied(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 1000000/31d}]\nstore: {type: redis, url: \""+redis.URL()+"\", timeout: 10s}\n")
	redis.Pause()
	var waiting []*bell
	denied := 0
	for range waitingMax + askersMax*batchMax + 100 {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		switch v := s.Decide(client, emptyHost{}, b); v {
		case Wait:
			waiting = append(waiting, b)
			defer s.Release()
		case Respond:
			denied++
			if r := s.Response(); r.Status != http.StatusServiceUnavailable {
				t.Errorf("status %d", r.Status)
			}
			s.Release()
		default:
			t.Fatalf("verdict %d", v)
		}
	}
	redis.Resume()
	for _, b := range waiting {
		<-b.rung
	}
	if denied < 100 {
		t.Errorf("%d requests are denied, %d wait", denied, len(waiting))
	}
}

// panickingHost is a host that panics.
type panickingHost struct{}

func (panickingHost) Attribute(string) (string, bool) { panic("broken") }

func TestAPanicIsDecidedByOnError(t *testing.T) {
	for word, want := range map[string]Verdict{"allow": Continue, "deny": Respond} {
		f := openFront(t, "name: shop\non_error: "+word+"\nidentify: [{attr: request.protocol}]\nrules: [{name: all, limit: 3/31d}]\n")
		s := f.NewStream()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, panickingHost{}, newBell()); v != want || f.process.Panics() != 1 {
			t.Errorf("%s: verdict %d, %d panics", word, v, f.process.Panics())
		}
		s.Release()
	}
}

func TestSettlesResponses(t *testing.T) {
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 100/31d, cost_after: {estimate: 1, json: usage.total, default: 1}}]\n")
	begin := func() *Settling {
		s := f.NewStream()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, newBell()); v != Continue {
			t.Fatalf("verdict %d", v)
		}
		defer s.Release()
		return s.Settling()
	}
	settling := begin()
	fields, listens := settling.Begin(&Beginning{Headers: [][2]string{{":status", "200"}, {"content-type", "application/json"}},
		Complete: true, Details: "via_upstream"})
	if fields.Empty() || !listens {
		t.Fatalf("fields %v, listens %t", fields, listens)
	}
	if !settling.Body([]byte(`{"usage":{"to`), false) || settling.Body([]byte(`tal":40}}`), true) {
		t.Error("the body is not read to its end")
	}
	settling.End()
	eventually.Until(t, 10*time.Second, "the cost is charged", func() bool {
		_, fields, _ := ask(t, f, request("/"))
		n, _ := strconv.Atoi(fields[response.FieldRemaining])
		return n <= 60
	})
}

// TestSettlesByHeaders tests which cost is charged for a header of a response. It also tests that
// the header's text is copied, because Envoy reuses the memory after the hook.
func TestSettlesByHeaders(t *testing.T) {
	for _, c := range []struct {
		what            string
		header, trailer []string // the lines of X-Cost
		want            int
	}{
		{"one line", []string{"12"}, nil, 12},
		{"two lines", []string{"12", "7"}, nil, 2},
		{"no line", nil, nil, 2},
		{"an empty line", []string{""}, nil, 2},
		{"in the trailers", nil, []string{"9"}, 9},
		{"in the header and the trailers", []string{"12"}, []string{"9"}, 12},
	} {
		f := openFront(t, "name: shop\nrules: [{name: all, limit: 100/31d, cost_after: {estimate: 20, header: X-Cost, default: 2}}]\n")
		s := f.NewStream()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, newBell()); v != Continue {
			t.Fatalf("%s: verdict %d", c.what, v)
		}
		settling := s.Settling()
		s.Release()
		var envoys [][]byte
		lines := func(texts []string) (fields [][2]string) {
			for _, text := range texts {
				value := []byte(text)
				envoys = append(envoys, value)
				fields = append(fields, [2]string{"x-cost", unsafe.String(unsafe.SliceData(value), len(value))})
			}
			return fields
		}
		settling.Begin(&Beginning{Headers: append([][2]string{{":status", "200"}}, lines(c.header)...), Complete: true, Details: "via_upstream"})
		for _, value := range envoys {
			copy(value, "9999")
		}
		settling.Trailers(lines(c.trailer))
		settling.End()
		eventually.Until(t, 10*time.Second, "the charge is corrected", func() bool { return settling.holds.Load() == 0 })
		const estimate = 20
		if _, fields, _ := ask(t, f, request("/")); fields[response.FieldRemaining] != strconv.Itoa(100-c.want-estimate) {
			t.Errorf("%s: %s remain, want %d to be charged", c.what, fields[response.FieldRemaining], c.want)
		}
	}
}

func TestSettingsSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"polciy: x":                  "polciy",
		"name: shop":                 "policy is missing",
		"policy: x\n" + three:        "write the rules and all settings but on_error and lease into the policy file",
		"policy: x\nheaders: [none]": "settings of a policy beside it",
		"policy: x\non_error: denny": `did you mean "deny"`,
		"policy: x\nlease: always":   "write auto or off",
		three + "admin: {}":          "listen is missing",
		three + "admin: {listen: 127.0.0.1:1, token: short}":                                                          "can be guessed",
		three + "events_to: nowhere":                                                                                  "is no place for events",
		three + "events_to: none\ncontrol: {url: x}":                                                                  "keep one",
		three + "control: {url: \"http://127.0.0.1:1\", spool: x}":                                                    "token_file is missing",
		three + "otlp: {}":                                                                                            "write a URL",
		three + "otlp: {endpoint: \"http://c:1\", headers: {x: \"{env.PENSTOCK_NOT_SET}\"}}":                          "PENSTOCK_NOT_SET",
		three + "otlp: {endpoint: \"http://c:1\", interval: soon}":                                                    "interval \"soon\"",
		three + "otlp: {endpoint: \"http://c:1\", interval: 1ms}":                                                     "interval 1ms is too short",
		three + "otlp: {endpoint: \"http://me:secret@c:1\"}":                                                          "write headers",
		three + "policy_redis: {name: x}":                                                                             "the counters are in memory",
		"policy_http: {name: x, keys: [y]}":                                                                           "policy_http: url is missing",
		"policy_http: {name: x, keys: [y], url: \"http://h\"}":                                                        "policy_http: token_file is missing",
		"policy_http: {name: x, keys: [y], url: h, token_file: t}":                                                    "is no URL",
		"policy_http: {name: x, url: \"http://h\", token_file: t}":                                                    "policy_http: keys are missing",
		"policy_http: {keys: [y]}":                                                                                    "policy_http: name is missing",
		"policy_http: {name: x, keys: [y], url: \"http://h\", token_file: t}":                                         "policy_http: the key \"y\"",
		"policy_http: {name: x, keys: [y], url: \"http://{env.PENSTOCK_NOT_SET}\"}":                                   "PENSTOCK_NOT_SET",
		"policy_http: {name: x}\npolicy_redis: {name: x}":                                                             "policy_redis and policy_http are both given",
		"policy_http: {name: x, keys: [y]}\nshadow_policy: x":                                                         "leave shadow_policy out",
		"policy_http: {name: x, keys: [y], url: \"http://h\"}\ncontrol: {url: \"http://o\", token_file: t, spool: x}": "policy_http: token_file is missing",
		three + "status_path: limits":                                                                                 "is not a path",
		"policy: x\npolicy_redis: {name: x}":                                                                          "are both given",
		"policy_redis: {name: x}\nstore: {type: redis, url: \"redis://h\"}":                                           "keys are missing",
		"policy_redis: {name: x, keys: [y]}\nshadow_policy: x\nstore: {type: redis, url: \"redis://h\"}":              "leave shadow_policy out",
		three + "store: {url: x}":                                                                                     "need type: redis",
		three + "store: {type: x}":                                                                                    "neither memory nor redis",
		three + "store: {type: redis, url: \"redis://h\", timeout: soon}":                                             "timeout \"soon\"",
		three + "store: {type: redis, url: \"redis://{env.PENSTOCK_NOT_SET}\"}":                                       "PENSTOCK_NOT_SET",
		"rules: [{name: r, limit: 1/1m}]\nstore: {type: redis, url: \"redis://localhost:1\"}":                         "the policy has no name",
		"name: a\ndirectory: {clients_max: -1}\nrules: [{name: r, limit: 1/1m}]":                                      "clients_max -1",
		"name: a\nidentify: [{attr: xds.route_name}]\nrules: [{name: r, limit: 1/1m}]":                                "does not read yet",
	} {
		s, err := ReadSettings([]byte(text))
		if err == nil {
			var f *Front
			if f, err = NewProcess(slog.New(slog.DiscardHandler)).Open(s); err == nil {
				err = errors.Join(errors.New("it is accepted"), f.Close())
			}
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error lacks %q: %v", text, want, err)
		}
	}
}

// TestAnAttributeThatEnvoyLacks tests that a policy is rejected if it reads an attribute that this
// version of Envoy does not provide.
func TestAnAttributeThatEnvoyLacks(t *testing.T) {
	const name = "connection.requested_server_name"
	s, err := ReadSettings([]byte("name: a\nrules: [{name: r, match: {attr: {" + name + ": [b.example]}}, limit: 1/1m}]"))
	if err != nil {
		t.Fatal(err)
	}
	p := NewProcess(slog.New(slog.DiscardHandler))
	p.Lacks(name)
	if f, err := p.Open(s); err == nil {
		t.Errorf("the policy is accepted: %v", f.Close())
	} else if !strings.Contains(err.Error(), "use Envoy 1.39 or later") {
		t.Error(err)
	}
}

// TestSettingsBesideAPolicyFile tests that on_error and lease in the configuration have an effect
// only if the policy file does not set them.
func TestSettingsBesideAPolicyFile(t *testing.T) {
	own := filepath.Join(t.TempDir(), "policy.yaml")
	for policy, denies := range map[string]bool{three: true, three + "on_error: allow\n": false} {
		if err := os.WriteFile(own, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		f := openFront(t, "policy: "+own+"\non_error: deny\nlease: auto\n")
		if d := f.policy.Current().Document; f.Denies() != denies || d.Lease != "auto" {
			t.Errorf("%q: on_error %q, lease %q", policy, d.OnError, d.Lease)
		}
	}
}
