// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/directory"
)

// Directories is a collector of the figures of directories of clients, which it reads at each
// scrape. The figures of several directories are added up. Without a directory, there are no
// figures.
type Directories iter.Seq[*directory.Directory]

var (
	lookupsDesc = prometheus.NewDesc("penstock_directory_lookups_total",
		"Lookups of clients: hit if the client was remembered, miss if its record had to be read.", []string{"result"}, nil)
	readsDesc = prometheus.NewDesc("penstock_directory_reads_total",
		"Reads of records, of many clients each: answered or failed.", []string{"result"}, nil)
	undirectedDesc = prometheus.NewDesc("penstock_directory_undirected_total",
		"Requests that were decided without the record of a client, because it could not be read.", nil, nil)
	overloadsDesc = prometheus.NewDesc("penstock_directory_overloads_total",
		"Requests that were denied because too many clients waited to be read.", nil, nil)
	badRecordsDesc = prometheus.NewDesc("penstock_directory_bad_records_total",
		"Records that were read and have no force, because they are not valid.", nil, nil)
	clientsDesc = prometheus.NewDesc("penstock_directory_clients",
		"Clients that are remembered, with or without a record.", nil, nil)
	directoryKeysDesc = prometheus.NewDesc("penstock_directory_keys",
		"API keys that are remembered, with or without a record.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (Directories) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{lookupsDesc, readsDesc, undirectedDesc, overloadsDesc, badRecordsDesc, clientsDesc,
		directoryKeysDesc} {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector].
func (s Directories) Collect(ch chan<- prometheus.Metric) {
	var sum struct{ hits, misses, reads, failures, undirected, overloads, bad, clients, keys uint64 }
	used := false
	for d := range s {
		used = true
		f := d.Figures()
		sum.hits, sum.misses = sum.hits+d.Hits(), sum.misses+f.Misses.Load()
		sum.reads, sum.failures = sum.reads+f.Reads.Load(), sum.failures+f.Failures.Load()
		sum.undirected, sum.bad = sum.undirected+f.Undirected.Load(), sum.bad+f.Bad.Load()
		sum.overloads += f.Overloads.Load()
		sum.clients, sum.keys = sum.clients+uint64(d.Len()), sum.keys+uint64(d.KeysLen())
	}
	if !used {
		return
	}
	count := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	count(lookupsDesc, sum.hits, "hit")
	count(lookupsDesc, sum.misses, "miss")
	count(readsDesc, sum.reads-min(sum.failures, sum.reads), "answered")
	count(readsDesc, sum.failures, "failed")
	count(undirectedDesc, sum.undirected)
	count(overloadsDesc, sum.overloads)
	count(badRecordsDesc, sum.bad)
	ch <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(sum.clients))
	ch <- prometheus.MustNewConstMetric(directoryKeysDesc, prometheus.GaugeValue, float64(sum.keys))
}
