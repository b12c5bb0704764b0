// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// The metrics of Redis servers. The label is a server's address, as given in the options or by the
// servers themselves. At most [redisstore.InfoServersMax] servers have series.
var (
	serverUpDesc = prometheus.NewDesc("penstock_redis_up",
		"Whether the server answered the latest INFO within a second: 1 or 0.", serverLabel, nil)
	serversOmittedDesc = prometheus.NewDesc("penstock_redis_servers_omitted",
		"Servers without metrics of their own, because there are too many.", nil, nil)
	slotsDesc = prometheus.NewDesc("penstock_redis_cluster_slots",
		"Slots of the cluster as the server sees them, by state: assigned, ok, suspected or failed.", []string{"server", "state"}, nil)
	nodesDesc = prometheus.NewDesc("penstock_nodes",
		"Nodes that use the same Redis, including this one.", nil, nil)

	serverLabel = []string{"server"}
)

// figureMetric is how a figure of a server is shown.
type figureMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	slot string // the state of the slots that the figure counts; "" for other figures
}

// figureMetrics are the metrics of the figures, by figure.
var figureMetrics = func() (all [redisstore.FigureCount]figureMetric) {
	gauge := func(f redisstore.Figure, name, help string) {
		all[f] = figureMetric{desc: prometheus.NewDesc(name, help, serverLabel, nil), kind: prometheus.GaugeValue}
	}
	total := func(f redisstore.Figure, name, help string) {
		all[f] = figureMetric{desc: prometheus.NewDesc(name, help, serverLabel, nil), kind: prometheus.CounterValue}
	}
	slots := func(f redisstore.Figure, state string) {
		all[f] = figureMetric{desc: slotsDesc, kind: prometheus.GaugeValue, slot: state}
	}
	gauge(redisstore.MemoryUsed, "penstock_redis_memory_used_bytes", "Memory that the server uses.")
	gauge(redisstore.MemoryMax, "penstock_redis_memory_max_bytes", "The server's maxmemory; 0 if it has none.")
	gauge(redisstore.Fragmentation, "penstock_redis_memory_fragmentation_ratio",
		"Memory that the server has from the system, divided by the memory that it uses.")
	gauge(redisstore.Clients, "penstock_redis_clients", "Connections to the server, from all its clients.")
	gauge(redisstore.ClientsMax, "penstock_redis_clients_max", "The server's maxclients.")
	total(redisstore.RejectedConnections, "penstock_redis_rejected_connections_total", "Connections beyond maxclients.")
	total(redisstore.EvictedKeys, "penstock_redis_evicted_keys_total", "Keys that the server evicted because its memory was full.")
	total(redisstore.Hits, "penstock_redis_keyspace_hits_total", "Reads of keys that exist.")
	total(redisstore.Misses, "penstock_redis_keyspace_misses_total", "Reads of keys that do not exist.")
	gauge(redisstore.Uptime, "penstock_redis_uptime_seconds", "Time since the server was started.")
	gauge(redisstore.Replicas, "penstock_redis_replicas", "Connected replicas.")
	gauge(redisstore.ReplicaLagBytes, "penstock_redis_replica_lag_bytes",
		"What the replica that lags most has not acknowledged yet.")
	gauge(redisstore.ReplicaLagSeconds, "penstock_redis_replica_lag_seconds",
		"Time since the replica that lags most was heard of.")
	gauge(redisstore.ClusterOK, "penstock_redis_cluster_ok", "Whether the server reports its cluster as ok: 1 or 0.")
	slots(redisstore.SlotsAssigned, "assigned")
	slots(redisstore.SlotsOK, "ok")
	slots(redisstore.SlotsSuspected, "suspected")
	slots(redisstore.SlotsFailed, "failed")
	return all
}()

// describeServers describes the metrics of collectServers.
func describeServers(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{serverUpDesc, serversOmittedDesc, slotsDesc, nodesDesc} {
		ch <- desc
	}
	for _, m := range figureMetrics {
		if m.slot == "" {
			ch <- m.desc
		}
	}
}

// collectServers reports what the servers report about themselves. A server of several stores is
// reported once.
func collectServers(ch chan<- prometheus.Metric, now time.Time, stores ...*redisstore.Store) {
	servers := map[string]redisstore.ServerInfo{}
	omitted, nodes := 0, 0
	for _, store := range stores {
		infos, beyond := store.ServerInfos(now)
		for _, info := range infos {
			info.Addr = labelOf(info.Addr)
			if known, ok := servers[info.Addr]; !ok || info.Up && !known.Up {
				servers[info.Addr] = info
			}
		}
		omitted += beyond
		nodes = max(nodes, store.Nodes())
	}
	shown := slices.SortedFunc(maps.Values(servers), func(a, b redisstore.ServerInfo) int { return cmp.Compare(a.Addr, b.Addr) })
	if beyond := len(shown) - redisstore.InfoServersMax; beyond > 0 {
		omitted += beyond
		shown = shown[:redisstore.InfoServersMax]
	}
	for i := range shown {
		collectServer(ch, &shown[i])
	}
	ch <- prometheus.MustNewConstMetric(serversOmittedDesc, prometheus.GaugeValue, float64(omitted))
	if nodes > 0 { // otherwise the number is unknown
		ch <- prometheus.MustNewConstMetric(nodesDesc, prometheus.GaugeValue, float64(nodes))
	}
}

// collectServer sends to ch the metrics of a Redis server: whether it is up, and the figures that
// are known of it.
func collectServer(ch chan<- prometheus.Metric, info *redisstore.ServerInfo) {
	up := 0.0
	if info.Up {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(serverUpDesc, prometheus.GaugeValue, up, info.Addr)
	for figure, value := range info.Figures {
		m := &figureMetrics[figure]
		switch {
		case math.IsNaN(value):
		case m.slot != "":
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, info.Addr, m.slot)
		default:
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, info.Addr)
		}
	}
}

// labelOf returns a text from outside as the value of a label, which must be valid UTF-8.
func labelOf(text string) string {
	const most = 255
	return strings.ToValidUTF8(text[:min(len(text), most)], "?")
}
