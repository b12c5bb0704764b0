// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// examined runs the doctor. It returns the findings by server and subject, and whether none of them
// is wrong.
func examined(t *testing.T, o Options) (found map[string]Finding, ok bool) {
	t.Helper()
	findings := connect(t, o).Doctor(context.Background())
	found = map[string]Finding{}
	for _, f := range findings {
		found[f.Subject] = f
		found[f.Where+" "+f.Subject] = f
	}
	var out strings.Builder
	ok, err := PrintFindings(&out, findings)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("doctor:\n%s", out.String())
	return found, ok
}

// runCommands runs the commands of a finding, as a reader would.
func runCommands(t *testing.T, f Finding) {
	t.Helper()
	if len(f.Do) == 0 {
		t.Fatalf("%s: nothing is said to do", f.Subject)
	}
	for _, command := range f.Do {
		if out := shell(t, command); !strings.HasPrefix(out, "OK") {
			t.Errorf("%s: %s", command, out)
		}
	}
}

// shell runs a command and returns its output.
func shell(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v %s", command, err, out)
	}
	return string(out)
}

func TestDoctorFindsNothingWrong(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "64mb")
	before := contentsOf(t, s)
	found, ok := examined(t, optionsFor(s.URL()))
	if !ok {
		t.Error("something is wrong with a good server")
	}
	for _, subject := range []string{"version", "eviction", "memory", "persistence", "clock", "rights", "script"} {
		if f, there := found[subject]; !there || f.Level != LevelOK {
			t.Errorf("%s: %+v", subject, f)
		}
	}
	if after := contentsOf(t, s); after != before {
		t.Errorf("the doctor left something behind: %q, before it %q", after, before)
	}
}

// contentsOf returns the keys of a server as one text.
func contentsOf(t *testing.T, s *redistest.Server) string {
	t.Helper()
	keys, err := s.Client().Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// TestDoctorsCommandsMendIt: the doctor detects each problem, and the commands that it prints
// correct it.
func TestDoctorsCommandsMendIt(t *testing.T) {
	for _, c := range []struct {
		subject string
		level   Level
		args    []string
		want    string
	}{
		{"eviction", LevelWrong, []string{"--maxmemory-policy", "allkeys-lru"}, `"allkeys-lru": when its memory is full it forgets counters`},
		{"memory", LevelWrong, nil, "Redis rejects new counters (OOM)"},
		{"memory", LevelNote, nil, "maxmemory is not set"},
		{"persistence", LevelNote, []string{"--appendonly", "yes", "--appendfsync", "always"}, "waits for the disk"},
		{"persistence", LevelNote, []string{"--save", "60 1000"}, "snapshots only"},
		{"connections", LevelWrong, []string{"--maxclients", "6"}, "more nodes than that cannot connect"},
	} {
		t.Run(c.subject+" "+c.level.String(), func(t *testing.T) {
			s := redistest.Start(t, c.args...)
			if c.subject == "memory" && c.level == LevelWrong {
				set(t, s, "maxmemory", strconv.FormatInt(s.Memory()*9/8, 10))
			}
			for range 3 { // connections of other nodes
				other := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Addr})
				defer other.Close()
				if err := other.Ping(context.Background()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			found, ok := examined(t, optionsFor(s.URL()))
			f := found[c.subject]
			if f.Level != c.level || !strings.Contains(f.Text, c.want) || ok == (c.level == LevelWrong) {
				t.Fatalf("found %+v, want %v: %s", f, c.level, c.want)
			}
			runCommands(t, f)
			if found, ok := examined(t, optionsFor(s.URL())); !ok || found[c.subject].Level != LevelOK {
				t.Errorf("after that: %+v", found[c.subject])
			}
		})
	}
}

func TestDoctorNoticesThatSnapshotsFail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t, "--dir", dir, "--save", "3600 1")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	eventually.Until(t, patience, "a snapshot fails", func() bool {
		_ = s.Client().BgSave(ctx).Err()
		info, err := s.Client().Info(ctx, "persistence").Result()
		return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
	})
	found, ok := examined(t, optionsFor(s.URL()))
	if f := found["persistence"]; ok || f.Level != LevelWrong || !strings.Contains(f.Text, "MISCONF") {
		t.Fatalf("found %+v", f)
	}
	if f := found["script"]; f.Level != LevelWrong || !strings.Contains(f.Text, "MISCONF") {
		t.Errorf("the script on a server that refuses to write: %+v", f)
	}
	runCommands(t, found["persistence"])
	if found, ok := examined(t, optionsFor(s.URL())); !ok {
		t.Errorf("after that: %+v", found["persistence"])
	}
}

// TestDoctorTriesEveryRight removes each right from a user of least privilege: the doctor names the
// missing right, and its command restores it.
func TestDoctorTriesEveryRight(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	set := func(words ...string) {
		t.Helper()
		grantLimiter(t, s, strings.Join(words, " "))
	}
	o := optionsFor(s.URL() + "?db=1")
	o.Redis.Username, o.Redis.Password = "limiter", "secret-secret"
	set()
	if _, ok := examined(t, o); !ok {
		t.Error("least privilege is not enough")
	}
	for word := range strings.FieldsSeq(redisstore.LeastPrivilege) {
		name, command := strings.CutPrefix(word, "+")
		if _, known := tries[name]; command && !known {
			t.Errorf("%s is never tried", word)
		}
		switch {
		case name == "info" || name == "select": // without these rights the doctor cannot even connect
			continue
		case command:
			set("-" + name)
		case word == "~rl1:*":
			set("resetkeys", "~other:*")
		default:
			continue
		}
		found, ok := examined(t, o)
		f := found["rights"]
		if name == "time" {
			f = found["clock"] // the clock is checked first
		}
		if ok || f.Level != LevelWrong || !strings.Contains(found["rights"].Text+found["rights"].Do[0], `limiter`) {
			t.Errorf("without %s: %+v", word, f)
			continue
		}
		runCommands(t, found["rights"])
		if _, ok := examined(t, o); !ok {
			t.Errorf("without %s: what it says does not help: %v", word, f.Do)
		}
	}
}

// TestDoctorDoesNotGuessWhereUsersAreKept: CONFIG REWRITE does not save users that are in an ACL
// file, so the doctor must not recommend CONFIG REWRITE if it cannot find out whether there is such
// a file.
func TestDoctorDoesNotGuessWhereUsersAreKept(t *testing.T) {
	dir := t.TempDir()
	users, config := filepath.Join(dir, "users.acl"), filepath.Join(dir, "redis.conf")
	for name, text := range map[string]string{users: "user default on nopass ~* &* +@all\n", config: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := redistest.Start(t, "--aclfile", users)
	grantLimiter(t, s, "-pexpire")
	as := func(configFile string) (Finding, string) {
		o := optionsFor(s.URL())
		o.Redis.Username, o.Redis.Password = "limiter", "secret-secret"
		d := connect(t, o)
		d.Nodes[0].info["config_file"] = configFile
		e := &examination{d: d, n: d.Nodes[0]}
		if e.rights(context.Background()) || len(e.findings) != 1 {
			t.Fatalf("found %+v", e.findings)
		}
		return e.findings[0], strings.Join(e.findings[0].Do, "\n")
	}
	for _, configFile := range []string{"", config} {
		f, commands := as(configFile)
		if strings.Contains(commands, "REWRITE") || strings.Contains(commands, "SAVE") {
			t.Errorf("config file %q: it is not known where users are kept, and it says\n%s", configFile, commands)
		}
		if !strings.Contains(f.Text, "aclfile is not known") || !strings.Contains(f.Text, "ACL SAVE if") {
			t.Errorf("config file %q: %s", configFile, f.Text)
		}
	}
	grantLimiter(t, s, "-pexpire +config|get")
	if f, commands := as(config); !strings.Contains(commands, "ACL SAVE") || strings.Contains(f.Text, "not known") {
		t.Errorf("a user who may read aclfile: %s\n%s", f.Text, commands)
	}
}

func TestDoctorSaysWhatTheServersAre(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	found, ok := examined(t, optionsFor(s.Sentinels[0].URL()))
	if !ok || found["sentinel"].Level != LevelOK || len(found[s.Servers[1].Addr+" (replica) clock"].Text) == 0 {
		t.Errorf("in order: %+v", found["sentinel"])
	}
	for i, server := range s.Servers {
		more := redisstore.SentinelPrivilege
		if i == 1 {
			more += " -evalsha"
		}
		grantLimiter(t, server, more)
	}
	found, ok = examined(t, optionsFor("redis://limiter:secret-secret@"+s.Sentinels[0].Addr))
	if ok || found[s.Servers[0].Addr+" (master) rights"].Level != LevelOK || found[s.Servers[1].Addr+" (replica) rights"].Level != LevelWrong {
		t.Error("a replica whose user may not do all is not noticed before it is the master")
	}
	runCommands(t, found[s.Servers[1].Addr+" (replica) rights"])
	if _, ok = examined(t, optionsFor("redis://limiter:secret-secret@"+s.Sentinels[0].Addr)); !ok {
		t.Error("what it says to do does not help")
	}
	found, ok = examined(t, optionsFor(s.Servers[1].URL()))
	if f := found["role"]; ok || !strings.Contains(f.Text, "Name its primary: redis://"+s.Servers[0].Addr) {
		t.Errorf("a replica that was named: %+v", f)
	}
	s.Sentinels[1].Kill()
	s.Sentinels[2].Kill()
	eventually.Until(t, patience, "the sentinel notices", func() bool {
		found, ok := examined(t, optionsFor(s.Sentinels[0].URL()))
		return !ok && strings.Contains(found["sentinel"].Text, "cannot be reached") || strings.Contains(found["sentinel"].Text, "NOQUORUM")
	})
}

func TestDoctorOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--maxmemory", "64mb")
	found, ok := examined(t, optionsFor(c.Nodes[0].URL()))
	if !ok {
		t.Error("something is wrong with a good cluster")
	}
	if f := found[c.Nodes[1].Addr+" (master) coverage"]; f.Level != LevelNote {
		t.Errorf("a cluster that stops as a whole: %+v", f)
	} else {
		runCommands(t, f)
	}
	if found, _ := examined(t, optionsFor(c.Nodes[0].URL())); found[c.Nodes[1].Addr+" (master) coverage"].Text != "" || found["coverage"].Text == "" {
		t.Error("what it says to do does not help, or helps too much")
	}
	for i, node := range c.Nodes[:3] {
		if f := found[node.Addr+" (master) script"]; f.Level != LevelOK || f.Text == "" {
			t.Errorf("master %d: the script was not tried on a slot of its own: %+v", i, f)
		}
	}
	for _, node := range c.Nodes {
		grantLimiter(t, node, redisstore.ClusterPrivilege)
	}
	// a new replica is not listed at once
	eventually.Until(t, patience, "least privilege is enough", func() bool {
		found, ok := examined(t, optionsFor("redis://limiter:secret-secret@"+c.Nodes[0].Addr))
		return ok && found["cluster"].Level == LevelOK
	})
	if err := c.Nodes[1].Client().Do(context.Background(), "acl", "setuser", "limiter", "-asking").Err(); err != nil {
		t.Fatal(err)
	}
	if found, ok := examined(t, optionsFor("redis://limiter:secret-secret@"+c.Nodes[0].Addr)); ok || found[c.Nodes[1].Addr+" (master) rights"].Level != LevelWrong {
		t.Error("a user who may not say ASKING may do all")
	}
	c.Nodes[3].Kill()
	found, ok = examined(t, optionsFor(c.Nodes[0].URL()))
	if f := found["cluster"]; ok || f.Level != LevelNote || !strings.Contains(f.Text, "no server has 0-5460") {
		t.Errorf("a replica is gone: %+v", f)
	}
}

func TestDoctorJudgesTime(t *testing.T) {
	s := redistest.Start(t)
	o := optionsFor(s.URL())
	o.Timeout = time.Nanosecond
	found, ok := examined(t, o)
	if f := found["script"]; ok || !strings.Contains(f.Text, "raise timeout to") {
		t.Errorf("a script slower than the timeout: %+v", f)
	}
	for _, c := range []struct {
		off, within time.Duration
		want        Level
	}{
		{0, time.Millisecond, LevelOK}, {time.Second, 0, LevelOK}, {-time.Second - 1, 0, LevelWrong}, {time.Hour, time.Second, LevelWrong},
		{2 * time.Second, 2 * time.Second, LevelOK}, // the clocks might be right
	} {
		e := &examination{n: &Node{Master: true}}
		if e.reportClock(c.off, c.within); e.findings[0].Level != c.want {
			t.Errorf("off by %v within %v: %+v", c.off, c.within, e.findings[0])
		}
	}
}
