// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// Level is the severity of a finding.
type Level uint8

// The levels.
const (
	LevelOK    Level = iota
	LevelNote        // limits are enforced; the finding is for information
	LevelWrong       // limits fail or will fail
)

// String returns the level's name: "ok", "note" or "wrong".
func (l Level) String() string { return [...]string{"ok", "note", "wrong"}[min(l, LevelWrong)] }

// Finding is a result of the examination of one server, or of all servers together.
type Finding struct {
	Where   string // the server; "" means all servers together
	Level   Level
	Subject string // the subject of the examination, such as "eviction" or "clock"
	Text    string
	Do      []string // commands that correct the problem
}

// Doctor looks for conditions under which limits would fail. Doctor tests the store's script on a
// temporary counter at each master. Doctor takes about a second per server, and longer for slow
// ones.
func (d *Deployment) Doctor(ctx context.Context) []Finding {
	var all []Finding
	for _, n := range d.Nodes {
		e := &examination{d: d, n: n}
		if n.Err != nil {
			e.say(LevelWrong, "answer", n.Err.Error())
		} else {
			e.run(ctx)
		}
		all = append(all, e.findings...)
	}
	return append(all, d.examineTopology(ctx)...)
}

// PrintFindings writes findings as text. PrintFindings reports whether none of them has LevelWrong.
func PrintFindings(out io.Writer, findings []Finding) (ok bool, err error) {
	where, text := "", new(strings.Builder)
	ok = true
	for i, f := range findings {
		if f.Where != where || i == 0 {
			where = f.Where
			if where == "" {
				fmt.Fprintln(text, "all together")
			} else {
				fmt.Fprintln(text, where)
			}
		}
		ok = ok && f.Level != LevelWrong
		fmt.Fprintf(text, "  %-6s %-12s %s\n", f.Level, f.Subject, f.Text)
		for _, command := range f.Do {
			fmt.Fprintf(text, "%22s%s\n", "do: ", command)
		}
	}
	_, err = io.WriteString(out, text.String())
	return ok, err
}

// examination examines one server.
type examination struct {
	d        *Deployment
	n        *Node
	findings []Finding
}

func (e *examination) say(level Level, subject, text string, do ...string) {
	where := e.n.Addr + " (master)"
	if !e.n.Master {
		where = e.n.Addr + " (replica)"
	}
	e.findings = append(e.findings, Finding{where, level, subject, text, do})
}

// examination.set returns commands that change settings at run time and keep them across restarts.
// The arguments are pairs of a name and a value. A server that was started without a configuration
// file loses the changes at a restart, because it takes its settings from its command line.
func (e *examination) set(settings ...string) (commands []string) {
	for i := 0; i < len(settings); i += 2 {
		commands = append(commands, e.n.cli("CONFIG", "SET", settings[i], settings[i+1]))
	}
	if e.n.info["config_file"] != "" {
		commands = append(commands, e.n.cli("CONFIG", "REWRITE"))
	}
	return commands
}

func (e *examination) run(ctx context.Context) {
	e.version()
	e.eviction()
	e.memory()
	e.persistence(ctx)
	e.connections()
	e.clock(ctx)
	switch {
	case e.n.Master:
		e.coverage(ctx)
		e.checkAccess()
		if e.rights(ctx) {
			e.script(ctx)
		}
	case e.d.alone():
		primary := net.JoinHostPort(e.n.info["master_host"], e.n.info["master_port"])
		e.say(LevelWrong, "role", "it is a replica: it takes no writes, and nothing is counted. Name its primary: redis://"+primary)
	default:
		// Users are not replicated, so they are checked here too, because this server might become
		// the master.
		e.rights(ctx)
	}
}

func (e *examination) version() {
	version := e.n.info["redis_version"]
	if flaw := redisstore.VersionFlaw(version); flaw != "" {
		e.say(LevelWrong, "version", flaw, "apt-get install redis-server")
		return
	}
	e.say(LevelOK, "version", version)
}

func (e *examination) eviction() {
	policy := e.n.info["maxmemory_policy"]
	if flaw := redisstore.EvictionFlaw(policy); flaw != "" {
		e.say(LevelWrong, "eviction", flaw, e.set("maxmemory-policy", "noeviction")...)
		return
	}
	e.say(LevelOK, "eviction", policy)
}

// fullPercent is how full a server's memory may be before the doctor reports it. The number of
// counters varies, and an attack creates many at once.
const fullPercent = 80

func (e *examination) memory() {
	used, most := e.n.number("used_memory"), e.n.number("maxmemory")
	switch {
	case most == 0:
		e.say(LevelNote, "memory", megabytes(used)+" used, and maxmemory is not set: many clients can use all memory of the machine, and the "+
			"system then ends some process", e.set("maxmemory", "1gb")...)
	case 100*used > fullPercent*most:
		e.say(LevelWrong, "memory", fmt.Sprintf("%s of %s used: when it is full Redis rejects new counters (OOM), and on_error decides",
			megabytes(used), megabytes(most)), e.set("maxmemory", fmt.Sprint(2*most))...)
	default:
		e.say(LevelOK, "memory", fmt.Sprintf("%s of %s used", megabytes(used), megabytes(most)))
	}
}

// examination.config returns a setting. If the setting cannot be read, the result named unknown
// contains the reason, and says how to read the setting. The caller must then draw no conclusion
// from value.
func (e *examination) config(ctx context.Context, name string) (value, unknown string) {
	values, err := e.n.send(ctx, "config", "get", name).Slice()
	switch {
	case redis.IsPermissionError(err):
		return "", fmt.Sprintf("%s is not known: the user %q may not ask for it; ask as one with +config|get", name, e.n.user())
	case err != nil:
		return "", fmt.Sprintf("%s is not known: CONFIG GET is answered %.100q", name, err)
	case len(values) != 2:
		return "", fmt.Sprintf("%s is not known: the server has no such setting", name)
	}
	return fmt.Sprint(values[1]), ""
}

// sayUnknown reports what depends on a setting that cannot be read, and how to read it.
func (e *examination) sayUnknown(subject, name, text, unknown string) {
	e.say(LevelNote, subject, text+"; "+unknown, e.n.cli("CONFIG", "GET", name))
}

func (e *examination) persistence(ctx context.Context) {
	appending := e.n.info["aof_enabled"] == "1"
	switch {
	case appending && e.n.info["aof_last_write_status"] == "err":
		e.say(LevelWrong, "persistence", "the append-only file cannot be written: Redis rejects every charge (MISCONF); make room on the disk, or",
			e.set("appendonly", "no")...)
	case e.n.info["rdb_last_bgsave_status"] == "err" && e.snapshotFailed(ctx):
	case appending:
		e.appendOnly(ctx)
	default:
		e.snapshots(ctx)
	}
}

// snapshotFailed adds a finding if the last snapshot failed, and reports whether it added one.
func (e *examination) snapshotFailed(ctx context.Context) bool {
	const stop = "stop-writes-on-bgsave-error"
	stops, unknown := e.config(ctx, stop)
	switch {
	case unknown != "":
		e.sayUnknown("persistence", stop, "the last snapshot failed: unless "+stop+" is no, Redis rejects every charge (MISCONF) until one "+
			"succeeds; make room on the disk", unknown)
	case stops == "no":
		return false
	default:
		e.say(LevelWrong, "persistence", "the last snapshot failed: Redis rejects every charge (MISCONF) until one succeeds; make room on "+
			"the disk, or", e.set("save", "", stop, "no")...)
	}
	return true
}

// appendOnly reports the cost and the durability of the append-only file.
func (e *examination) appendOnly(ctx context.Context) {
	switch syncs, unknown := e.config(ctx, "appendfsync"); {
	case unknown != "":
		e.sayUnknown("persistence", "appendfsync", "appendonly: with appendfsync always each charge waits for the disk, and with everysec the "+
			"charges of about the last second are forgotten after a crash", unknown)
	case syncs == "always":
		e.say(LevelNote, "persistence", "appendonly with appendfsync always: each charge waits for the disk",
			e.set("appendfsync", "everysec")...)
	default:
		e.say(LevelOK, "persistence", "appendonly: after a crash the charges of about the last second are forgotten")
	}
}

// examination.snapshots reports what survives a restart without an append-only file.
func (e *examination) snapshots(ctx context.Context) {
	replicated := !e.d.alone() || e.n.number("connected_slaves") > 0
	const emptied = "a master that is restarted before its replica takes over comes back empty, and its replica empties itself with it"
	switch save, unknown := e.config(ctx, "save"); {
	case unknown != "" && replicated:
		e.sayUnknown("persistence", "save", "no appendonly: with snapshots counters are after a restart as old as the last one, and without, "+
			emptied, unknown)
	case unknown != "":
		e.sayUnknown("persistence", "save", "no appendonly: after a restart counters are as old as the last snapshot, or forgotten if none is made",
			unknown)
	case save != "":
		e.say(LevelNote, "persistence", "snapshots only: after a restart counters are as old as the last snapshot, and units used since are "+
			"granted again", e.set("appendonly", "yes", "save", "")...)
	case replicated:
		e.say(LevelNote, "persistence", "off: "+emptied+"; let nothing restart it at once, or", e.set("appendonly", "yes")...)
	default:
		e.say(LevelOK, "persistence", "off: a restart forgets every counter")
	}
}

func (e *examination) connections() {
	now, most := e.n.number("connected_clients"), e.n.number("maxclients")
	if most > 0 && 100*now > fullPercent*most {
		e.say(LevelWrong, "connections", fmt.Sprintf("%d of %d are taken: more nodes than that cannot connect", now, most),
			e.set("maxclients", fmt.Sprint(2*most))...)
	}
}

// examination.coverage examines how a cluster behaves after the loss of a master.
func (e *examination) coverage(ctx context.Context) {
	const name = "cluster-require-full-coverage"
	const rejecting = "while a master is down and its replica has not taken over, the other masters reject every call, too"
	if e.d.Mode != ModeCluster {
		return
	}
	switch full, unknown := e.config(ctx, name); {
	case unknown != "":
		e.sayUnknown("coverage", name, "if "+name+" is yes, "+rejecting, unknown)
	case full == "yes":
		e.say(LevelNote, "coverage", rejecting, e.set(name, "no")...)
	}
}

// examination.checkAccess examines passwords and users.
func (e *examination) checkAccess() {
	own := e.n.cli("ACL", "SETUSER", "limiter", "on", ">PASSWORD") + " " + rightsFor(e.d.leastRights(), e.n.info["redis_version"])
	switch {
	case e.n.user() != "default":
	case e.n.server.Password == "" && !e.n.local():
		e.say(LevelWrong, "access", "it asks for no password, and listens beyond this machine: everyone that can connect can reset any counter",
			append([]string{own}, e.set("requirepass", "ANOTHER_PASSWORD")...)...)
	default:
		e.say(LevelNote, "access", "the user is default, which may run every command, even FLUSHALL; create a user with fewer rights", own)
	}
}

// rightsFor returns ACL rights in the syntax of a Redis version, quoted for a shell.
func rightsFor(rights, version string) string {
	if strings.HasPrefix(version, "6.") {
		rights = strings.ReplaceAll(rights, "+script|load", "+script")
	}
	var words []string
	for _, word := range strings.Fields(rights) {
		words = append(words, quoteWord(word))
	}
	return strings.Join(words, " ")
}

// Node.local reports whether the server's address is reachable only from this machine.
func (n *Node) local() bool {
	host, _, err := net.SplitHostPort(n.Addr)
	ip := net.ParseIP(host)
	return n.server.Network == "unix" || err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// examineTopology examines the topology.
func (d *Deployment) examineTopology(ctx context.Context) (all []Finding) {
	say := func(level Level, subject, text string, do ...string) {
		all = append(all, Finding{"", level, subject, text, do})
	}
	for _, wrong := range d.topologyProblems() {
		say(LevelWrong, string(d.Mode), wrong)
	}
	switch d.Mode {
	case ModeCluster:
		for i := range d.moves {
			say(LevelNote, "moves", d.moveText(&d.moves[i]), d.fixMoves())
		}
		for _, n := range d.Nodes {
			if n.Master && len(n.Slots) > 0 && !slices.ContainsFunc(d.Nodes, func(r *Node) bool { return r.Of == n.Addr && r.info != nil }) {
				say(LevelNote, "cluster", n.Addr+" has no replica that answers: when it fails, no server has "+slotsText(n.Slots),
					n.clusterCLI("add-node", "NEW_HOST:PORT", d.answers().Addr, "--cluster-slave", "--cluster-master-id", n.id))
			}
		}
	case ModeRing:
		for _, n := range d.Nodes {
			named, err := n.send(ctx, "get", redisstore.RingKey).Text()
			if here := redisstore.RingNames(d.addrs()); err == nil && !redisstore.RingsCountTogether(named, here) {
				say(LevelWrong, "ring", fmt.Sprintf("at %s the last node that connected named the servers %.500q, and here they are %q: nodes that "+
					"name them otherwise count apart, and limits do not hold; write the same addresses everywhere, or tell those of the nodes by "+
					"--redis-addrs", n.Addr, named, here))
			}
		}
	case ModeSentinel:
		d.examineSentinels(ctx, say)
	}
	if len(all) == 0 && d.Mode != ModeSingle {
		say(LevelOK, string(d.Mode), d.summary())
	}
	return all
}
