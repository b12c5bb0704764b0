// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/survive"
)

// Parameters of reading what servers report about themselves.
const (
	// InfoEvery is the least time between two readings.
	InfoEvery = 5 * time.Second
	// InfoServersMax is the number of servers that are read and shown: the first ones by address.
	// The other servers are only counted.
	InfoServersMax = 64
	// infoTimeout bounds one reading. All servers are read at the same time.
	infoTimeout = time.Second
	// infoPatience is how long a caller of ServerInfos waits for a reading. infoPatience exceeds
	// infoTimeout, because a busy process may be late itself.
	infoPatience = 2 * time.Second
	// infoFigureMax is the greatest figure that is accepted. Greater figures count as unknown.
	infoFigureMax = 1 << 62
)

// Figure is a number that a server reports about itself.
type Figure int

// The figures of a server. The fields from ClusterOK on are only reported in a cluster, where each
// server reports its own view of the whole cluster.
const (
	MemoryUsed Figure = iota // in bytes
	MemoryMax                // in bytes; 0 means no bound
	Fragmentation
	Clients
	ClientsMax
	RejectedConnections
	EvictedKeys
	Hits
	Misses
	Uptime   // in seconds
	Replicas // the number of connected replicas
	// ReplicaLagBytes and ReplicaLagSeconds are the lag of the replica that lags most. Both numbers
	// are unknown without a connected replica.
	ReplicaLagBytes
	ReplicaLagSeconds
	ClusterOK // 1 or 0
	SlotsAssigned
	SlotsOK
	SlotsSuspected // the number of slots whose master may have failed
	SlotsFailed
	FigureCount
)

// infoFields are the names of the figures in the replies to INFO and CLUSTER INFO. The fields about
// a replica's lag are computed.
var infoFields = map[string]Figure{
	"used_memory": MemoryUsed, "maxmemory": MemoryMax, "mem_fragmentation_ratio": Fragmentation,
	"connected_clients": Clients, "maxclients": ClientsMax, "rejected_connections": RejectedConnections,
	"evicted_keys": EvictedKeys, "keyspace_hits": Hits, "keyspace_misses": Misses, "uptime_in_seconds": Uptime,
	"connected_slaves": Replicas, "cluster_slots_assigned": SlotsAssigned, "cluster_slots_ok": SlotsOK,
	"cluster_slots_pfail": SlotsSuspected, "cluster_slots_fail": SlotsFailed,
}

// ServerInfo holds the figures that a server has reported about itself.
type ServerInfo struct {
	Addr string // host:port, or the path of a socket, as in [ServerStats]
	Up   bool   // whether the server answered, even if only to deny INFO
	// Figures are NaN if they are unknown: the server did not answer, does not report them, or the
	// user may not run INFO.
	Figures [FigureCount]float64
}

// infoReader reads the servers at a limited rate. The zero infoReader has read nothing.
type infoReader struct {
	mu      sync.Mutex
	closed  bool
	reading chan struct{} // closed when the current reading has ended; nil if there is none
	read    time.Time     // when the latest reading began
	infos   []ServerInfo
	beyond  int
	denied  sync.Once // used to log that the user may not run INFO
}

// ServerInfos returns what the servers report about themselves, ordered by address, and how many
// servers are beyond [InfoServersMax]. If the latest reading is older than [InfoEvery], it starts a
// goroutine that reads the servers, and waits for at most two seconds. So the servers are read only
// if a caller needs the figures, and once for all callers. Use it for metrics, never for a request.
func (s *Store) ServerInfos(now time.Time) (infos []ServerInfo, beyond int) {
	r := &s.infos
	r.mu.Lock()
	if r.reading == nil && !r.closed && (r.read.IsZero() || now.Sub(r.read) >= InfoEvery) {
		r.read, r.reading = now, make(chan struct{})
		survive.Go(&s.running, s.settings.logger, s.readInfos)
	}
	reading := r.reading
	r.mu.Unlock()
	if reading != nil {
		patience := time.NewTimer(infoPatience)
		defer patience.Stop()
		select {
		case <-reading:
		case <-patience.C:
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.infos, r.beyond
}

// infoReader.close prevents further readings.
func (r *infoReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// readInfos reads all servers at the same time.
func (s *Store) readInfos() {
	nodes := slices.SortedFunc(slices.Values(s.nodes()), func(a, b *node) int {
		return cmp.Compare(a.address.target, b.address.target)
	})
	beyond := max(0, len(nodes)-InfoServersMax)
	nodes = nodes[:len(nodes)-beyond]
	infos := make([]ServerInfo, len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		survive.Go(&asking, s.settings.logger, func() { infos[i] = n.readInfo() })
	}
	asking.Wait()
	r := &s.infos
	r.mu.Lock()
	defer r.mu.Unlock()
	r.infos, r.beyond = infos, beyond
	close(r.reading)
	r.reading = nil
}

// readInfo reads what the server reports about itself.
func (n *node) readInfo() ServerInfo {
	info := ServerInfo{Addr: n.address.target}
	for i := range info.Figures {
		info.Figures[i] = math.NaN()
	}
	ctx, cancel := context.WithTimeout(n.ctx, infoTimeout)
	defer cancel()
	// Servers before 7.0 take at most one section, so all sections are requested.
	text, err := n.client.Info(ctx).Result()
	info.Up = err == nil || redis.IsPermissionError(err)
	if err == nil {
		info.parse(text)
	}
	if info.Up && n.store.settings.mode == ModeCluster {
		var inCluster error
		if text, inCluster = n.client.ClusterInfo(ctx).Result(); inCluster == nil {
			info.parse(text)
		} else if err == nil {
			err = inCluster
		}
	}
	if redis.IsPermissionError(err) {
		n.store.infos.denied.Do(func() {
			n.store.settings.logger.Warn("the user may not ask the server about itself, so its metrics are missing; let the user do "+
				"that: ACL SETUSER … +info, and in a cluster +cluster|info", "redis", n.reporter.server, "error", err)
		})
	}
	return info
}

// ServerInfo.parse reads the figures in a reply to INFO or CLUSTER INFO. The server is not trusted:
// a figure that is not a number in a sensible range stays unknown.
func (info *ServerInfo) parse(text string) {
	written, sent := math.NaN(), math.NaN() // the master's offset, and that of the replica that lags most
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		figure, known := infoFields[name]
		switch {
		case !ok:
		case known:
			info.Figures[figure] = parseFigure(value)
		case name == "cluster_state":
			info.Figures[ClusterOK] = 0
			if value == "ok" {
				info.Figures[ClusterOK] = 1
			}
		case name == "master_repl_offset":
			written = parseFigure(value)
		case strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online"):
			offset, lag := replicaOf(value)
			sent = lesserKnown(sent, offset)
			if seconds := &info.Figures[ReplicaLagSeconds]; math.IsNaN(*seconds) || lag > *seconds {
				*seconds = lag
			}
		}
	}
	if behind := written - sent; !math.IsNaN(behind) {
		info.Figures[ReplicaLagBytes] = max(0, behind)
	}
}

// replicaOf returns the offset and the lag in seconds of a connected replica, described as
// "ip=…,port=…,state=online,offset=…,lag=…".
func replicaOf(text string) (offset, lag float64) {
	offset, lag = math.NaN(), math.NaN()
	for pair := range strings.SplitSeq(text, ",") {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case "offset":
			offset = parseFigure(value)
		case "lag":
			lag = parseFigure(value)
		}
	}
	return offset, lag
}

// lesserKnown returns the lesser of two numbers, or the known one if the other is unknown.
func lesserKnown(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

// parseFigure returns a number of a reply, or NaN.
func parseFigure(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 || n > infoFigureMax {
		return math.NaN()
	}
	return n
}
