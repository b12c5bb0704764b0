// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/lua"
)

// callUntilFailure calls Take until a call fails in the given way. The breaker can open first,
// because the first replies can be lost when a connection ends; Check then reports the failure.
func callUntilFailure(t *testing.T, s *Store, want string) {
	t.Helper()
	limit, last := limittest.New(t, "1000000/1d"), error(nil)
	defer func() {
		if t.Failed() {
			t.Logf("the last error: %v", last)
		}
	}()
	waitUntil(t, "a failure that says "+want, func() bool {
		last = s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1))
		if last == nil || !errors.Is(last, counter.ErrUnavailable) {
			return false
		}
		if s.Stats().Breaker != BreakerClosed {
			last = errors.Join(last, s.Check(context.Background()))
		}
		return strings.Contains(last.Error(), want)
	})
}

// callUntilAnswered makes calls until one is answered.
func callUntilAnswered(t *testing.T, s *Store) {
	t.Helper()
	limit := limittest.New(t, "1000000/1d")
	waitUntil(t, "a call is answered", func() bool {
		return s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)) == nil
	})
}

// callUntilOpen makes calls until the breaker opens.
func callUntilOpen(t *testing.T, s *Store) {
	t.Helper()
	limit := limittest.New(t, "1000000/1d")
	waitUntil(t, "the breaker opens", func() bool {
		_ = s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1))
		return s.Stats().Breaker == BreakerOpen
	})
}

func configure(t *testing.T, server *redistest.Server, args ...any) {
	t.Helper()
	if err := server.Client().Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func TestReplicaIsNotWrittenTo(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	callUntilAnswered(t, s)
	configure(t, server, "replicaof", "127.0.0.1", "1")
	callUntilFailure(t, s, "give the primary's")
	callUntilOpen(t, s)
	configure(t, server, "replicaof", "no", "one")
	callUntilAnswered(t, s)
}

func TestBusyServer(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "config", "set", "busy-reply-threshold", "1")
	s := open(t, Options{URL: server.URL(), Timeout: slowest})
	ready(t, s)
	hung := make(chan error)
	go func() {
		hung <- server.Client().Eval(context.Background(), "while true do end", nil).Err()
	}()
	callUntilFailure(t, s, "BUSY")
	callUntilOpen(t, s)
	configure(t, server, "script", "kill")
	<-hung
	callUntilAnswered(t, s)
}

func TestOneBadKeyDoesNotOpenTheBreaker(t *testing.T) {
	server := redistest.Start(t)
	log := &eventually.Journal{}
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax, Logger: log.Logger()})
	configure(t, server, "lpush", "rl1:bad", "x")
	limit := limittest.New(t, "10/1m")
	for range 100 {
		err := s.Take(context.Background(), take1("rl1:bad", limit), make([]counter.Result, 1))
		if kindOf(err) != "script" || !errors.Is(err, counter.ErrUnavailable) {
			t.Fatalf("a key of another type: error %v (%s), want one of kind script", err, kindOf(err))
		}
	}
	if !strings.Contains(log.String(), "WRONGTYPE") || strings.Contains(log.String(), "rl1:bad") {
		t.Errorf("the log must tell of the failure and not of the key, which may name a client:\n%s", log.String())
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Errorf("the breaker is %s after 100 refusals of one key, want closed", state)
	}
	if err := s.Take(context.Background(), take1("rl1:good", limit), make([]counter.Result, 1)); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func TestScriptThatCannotBeLoaded(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "acl", "setuser", "me", "on", ">secret", "~rl1:*", "+@all", "-script")
	s := open(t, Options{URL: server.URL(), Username: "me", Password: "secret"})
	callUntilFailure(t, s, "the ACL user needs more rights")
	configure(t, server, "acl", "setuser", "me", "+script|load")
	callUntilAnswered(t, s)
}

func TestStoreWithLeastPrivilege(t *testing.T) {
	server := redistest.Start(t)
	rules := leastPrivilege()
	configure(t, server, append([]any{"acl", "setuser", "penstock", "on", ">secret"}, rules...)...)
	log := &eventually.Journal{}
	s := open(t, Options{URL: server.URL() + "?db=1", Username: "penstock", Password: "secret", Timeout: TimeoutMax,
		Logger: log.Logger()})
	for i, text := range []string{"10/1m fixed_window", "10/1m sliding_window", "10/1m sliding_log", "10/1m token_bucket"} {
		limit, key := limittest.New(t, text), []byte{'r', 'l', '1', ':', 'a' + byte(i)}
		var receipt counter.Micros
		for _, op := range []counter.Op{counter.OpTake, counter.OpUpTo, counter.OpLook, counter.OpForce, counter.OpRefund, counter.OpReset} {
			check := counter.Check{Key: key, Limit: limit, Op: op, Cost: 2, Receipt: receipt}
			if op == counter.OpUpTo {
				check.Min, check.Max = 1, 2
			}
			results := make([]counter.Result, 1)
			if err := s.Take(context.Background(), []counter.Check{check}, results); err != nil {
				t.Errorf("%s, operation %d: %v", text, op, err)
			}
			receipt = max(receipt, results[0].Receipt)
		}
	}
	penalized := append(request(t), dailyCheck(t, counter.Micros(time.Now().UnixMicro())))
	for _, op := range []counter.Op{counter.OpTake, counter.OpTake, counter.OpTake, counter.OpLook, counter.OpReset} {
		for i := range penalized {
			penalized[i].Op = op
		}
		ask(t, s, penalized...)
	}
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("check: %v", err)
	}
	if (&nodeCounter{store: s, name: "me"}).turn(time.Now()); s.Nodes() != 1 {
		t.Errorf("%d nodes are known of", s.Nodes())
	}
	err := s.Take(context.Background(), take1("other:k", limittest.New(t, "10/1m")), make([]counter.Result, 1))
	if !errors.Is(err, counter.ErrUnavailable) || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("a key of others: error %v, want NOPERM", err)
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log shows the password:\n%s", log.String())
	}
}

// TestLeastPrivilegeIsExact compares the rights with the commands that the script and this package
// use.
func TestLeastPrivilegeIsExact(t *testing.T) {
	want := map[string]bool{"+ping": true, "+info": true, "+select": true, "+script|load": true, "+evalsha": true, "+client|setname": true}
	for _, match := range regexp.MustCompile(`call\(\s*['"]([A-Za-z]+)`).FindAllStringSubmatch(lua.Take, -1) {
		want["+"+strings.ToLower(match[1])] = true
	}
	got := map[string]bool{}
	for _, rule := range leastPrivilege() {
		if strings.HasPrefix(rule.(string), "+") {
			got[rule.(string)] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights (-used +granted):\n%s", diff)
	}
}

// TestAllScriptsHaveTheirRights compares the rights with the commands of every script, including
// the scripts that run if regions tell each other what they count.
func TestAllScriptsHaveTheirRights(t *testing.T) {
	files, err := filepath.Glob("../../../lua/*.lua")
	if err != nil || len(files) < 10 {
		t.Fatalf("the scripts are %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`call\(\s*['"]([A-Za-z]+)`).FindAllStringSubmatch(string(text), -1) {
			if right := "+" + strings.ToLower(match[1]); !slices.Contains(leastPrivilege(), any(right)) {
				t.Errorf("%s needs the right %s", filepath.Base(file), right)
			}
		}
	}
}

func leastPrivilege() (rules []any) {
	for _, word := range strings.Fields(LeastPrivilege) {
		rules = append(rules, word)
	}
	return rules
}
