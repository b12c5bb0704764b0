// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	pageMax     = 50 * time.Millisecond
	monthMax    = 3 * time.Minute
	monthTarget = 10_000_000
	bytesMax    = 20      // the largest average size of a row in the archive
	active      = 100_000 // number of customers with events
	eventDays   = 30
	usageDays   = 28
	minuteDays  = 14
	named       = 1_000 // number of customers with usage by minute
	// The number of customers with usage is the number of events divided by eventsOfUsage, and the
	// number of rows of minutes is the number of events divided by eventsOfMinute. With 100,000,000
	// events, all customers have usage, and all minutes have rows.
	eventsOfUsage  = 1_000
	eventsOfMinute = 5
)

// eventRows returns the statement that inserts n events into a partition. The times of the events
// lie between two instants. The rows are in the order of these times, as when nodes report events.
// Some customers have many events, and most have few.
func eventRows(partition string, n int, from, to time.Time) string {
	step := to.Sub(from).Seconds() / float64(n)
	return fmt.Sprintf(`INSERT INTO %s (at, event, kind, policy, version, rule, limited, decision, status, client, tier, ip, method, path, state, reason, node,
		region, seconds, share, events)
	SELECT date_trunc('milliseconds', '%s'::timestamptz + (i + random()) * interval '1 second' * %g), i, 'denied', 'shop', '1685a0ccd389',
		'api-' || i::bigint * 7919 %% 10, '100/1m', 'denied', 429, '%s:c' || c, (ARRAY['free', 'gold', 'platinum'])[1 + c %% 3],
		('10.' || c / 256 / 256 || '.' || c / 256 %% 256 || '.' || c %% 256)::inet, (ARRAY['GET', 'POST'])[1 + i %% 2], '/v1/items/' || c %% 20 || '/*', '', '',
		'node-' || (random() * 19)::int, 'eu', 0, 1, 1 + (20 * random() ^ 4)::int
	FROM (SELECT i, (%d * random() ^ 3)::int AS c FROM generate_series(0, %d) i) n`,
		partition, from.UTC().Format(time.RFC3339), step, customerKind, active-1, n-1)
}

// fillEvents replaces the partitions between two instants by partitions with n rows in total. It
// inserts the rows before the indexes exist, which is faster.
func (p *plane) fillEvents(n int, from, to time.Time) error {
	for month := time.Date(from.Year(), from.Month(), 1, 0, 0, 0, 0, time.UTC); month.Before(to); month = month.AddDate(0, 1, 0) {
		next := month.AddDate(0, 1, 0)
		begin, end := from, to
		if begin.Before(month) {
			begin = month
		}
		if end.After(next) {
			end = next
		}
		name := "rate_limit_events_" + month.Format("2006_01")
		rows := int(float64(n) * end.Sub(begin).Seconds() / to.Sub(from).Seconds())
		if rows == 0 {
			continue
		}
		if err := p.sql("DROP TABLE IF EXISTS "+name, "CREATE TABLE "+name+" (LIKE rate_limit_events INCLUDING DEFAULTS)",
			eventRows(name, rows, begin, end), fmt.Sprintf("ALTER TABLE rate_limit_events ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
				name, month.Format(time.DateOnly), next.Format(time.DateOnly))); err != nil {
			return err
		}
	}
	return p.sql("ANALYZE rate_limit_events")
}

// fillUsage inserts all customers, and usage for some of them. The customers with the most events
// get usage by day. The argument customers is the number of these customers. The first 1,000 of
// these also get usage by minute.
func (p *plane) fillUsage(customers, events int) error {
	times := max(1, events/eventsOfMinute/named)
	return p.sql(customerRows[0], fmt.Sprintf(customerRows[1], active), fmt.Sprintf(customerRows[2], active),
		fmt.Sprintf("INSERT INTO client_usage (day, client, policy, rule, tier, admitted, denied, units) SELECT current_date - d, '%s:c' || c, 'shop', 'api', 'gold', "+
			"1000, 10, 1000 FROM generate_series(0, %d) d, generate_series(1, %d) c", customerKind, usageDays-1, customers),
		fmt.Sprintf("INSERT INTO client_minutes (at, client, policy, rule, admitted, denied, units) SELECT date_trunc('minute', now() - m * interval '%d minutes'), "+
			"'%s:c' || c, 'shop', 'api', 10, 1, 10 FROM generate_series(1, %d) m, generate_series(1, %d) c",
			max(1, minuteDays*24*60/times), customerKind, times, named),
		"ANALYZE client_usage, client_minutes, clients, overrides")
}

// customerPage measures the API requests that show one customer: its record, its usage and its
// events.
func (c *controlBench) customerPage() error {
	p, err := c.planeAlone()
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	if err := p.fillEvents(c.events, now.AddDate(0, 0, -eventDays), now); err != nil {
		return err
	}
	withUsage := min(active, max(named, c.events/eventsOfUsage))
	if err := p.fillUsage(withUsage, c.events); err != nil {
		return err
	}
	size := fmt.Sprintf("%s events in %d days of %s customers, %d queries", thousands(float64(c.events)), eventDays, thousands(active), c.queries)
	since := url.QueryEscape(now.AddDate(0, 0, -eventDays).Format(time.RFC3339))
	for _, query := range []struct{ what, path string }{
		{"record", "/v1/clients/%s"},
		{"changes", "/v1/clients/%s/changes"},
		{"usage of this month", "/v1/usage?client=%s"},
		{"active minutes of the day", "/v1/metrics/clients?client=%s"},
		{"last 100 events of the day", "/v1/events?client=%s"},
		{"last 100 events of 30 days", "/v1/events?client=%s&from=" + since},
		{"last 100 events of 30 days under a rule", "/v1/events?client=%s&rule=api-1&from=" + since},
	} {
		var spans []time.Duration
		for range c.queries {
			client := ofHeader(fmt.Sprint("c", 1+int(float64(withUsage)*math.Pow(rand.Float64(), 3))))
			began := time.Now()
			if _, err := p.send("GET", fmt.Sprintf(query.path, url.QueryEscape(client)), nil); err != nil {
				return err
			}
			spans = append(spans, time.Since(began))
		}
		_, p99, text := spread(spans)
		c.reached("a customer's page: "+query.what, "≤ 50 ms on 100,000,000 events", p99 <= pageMax, text, size)
	}
	return nil
}

// The S3 server of the tests, its bucket, and the keys of the benchmark.
const (
	rclone    = ".cache/rclone/bin/rclone"
	bucket    = "events"
	accessKey = "bench-access"
	secretKey = "bench-secret-key"
)

// s3 starts an S3 server.
func (c *controlBench) s3() (endpoint string, err error) {
	port, err := laterPort()
	if err != nil {
		return "", err
	}
	root := filepath.Join(c.dir, "s3")
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if err := os.MkdirAll(filepath.Join(root, bucket), 0o700); err != nil {
		return "", err
	}
	server, err := c.start("rclone", nil, rclone, "--config=", "serve", "s3", "--addr="+address, "--auth-key="+accessKey+","+secretKey, root)
	if err != nil {
		return "", fmt.Errorf("the archive needs an S3 server: run make setup: %w", err)
	}
	return "http://" + address, server.until(planePatience, "listens", func() bool { return listens(address) })
}

// monthArchived measures how long it takes to archive and verify a month of events.
func (c *controlBench) monthArchived() error {
	endpoint, err := c.s3()
	if err != nil {
		return err
	}
	p, err := c.planeAlone()
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month()-6, 1, 0, 0, 0, 0, time.UTC)
	if err := p.fillEvents(c.archived, month, month.AddDate(0, 1, 0)); err != nil {
		return err
	}
	environment := []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "PENSTOCK_DATABASE=" + p.database}
	place := []string{"--archive=s3://" + bucket + "/bench", "--archive-endpoint=" + endpoint, "--archive-region=us-east-1"}
	began := time.Now()
	if _, err := command(environment, append([]string{"control", "archive", "run"}, place...)...); err != nil {
		return err
	}
	took := time.Since(began)
	text, err := command(environment, "control", "archive", "list", "--json")
	if err != nil {
		return err
	}
	var months []struct {
		State       string
		Rows, Bytes int64
		Verified    *time.Time `json:"verified_at"`
	}
	if err := json.Unmarshal([]byte(text), &months); err != nil {
		return err
	}
	if len(months) != 1 || months[0].Verified == nil || months[0].State != "dropped" || months[0].Rows < int64(c.archived)-1 {
		return fmt.Errorf("the archive has %s", strings.TrimSpace(text))
	}
	m := months[0]
	began = time.Now()
	if _, err := command(environment, append([]string{"control", "archive", "verify"}, place...)...); err != nil {
		return err
	}
	bytes, perSecond := float64(m.Bytes)/float64(m.Rows), float64(m.Rows)/took.Seconds()
	c.reached("a month of events archived, read back, and its partition dropped", "10,000,000 in ≤ 3 min: 55,556/s; ≤ 20 B a row",
		perSecond >= monthTarget/monthMax.Seconds() && bytes <= bytesMax,
		fmt.Sprintf("%s, %s/s; %s B a row; a further verification %s", formatSpan(took), thousands(perSecond), strconv.FormatFloat(bytes, 'f', 1, 64), formatSpan(time.Since(began))),
		thousands(float64(m.Rows))+" rows")
	return nil
}

// rulesImported measures how long it takes to import a table of rules as a revision.
func (c *controlBench) rulesImported() error {
	p, err := c.planeAlone()
	if err != nil {
		return err
	}
	var table strings.Builder
	table.WriteString("rule_name,priority,user_tier,endpoint_pattern,algorithm,requests_per_hour,action\n")
	for i := range c.rules {
		fmt.Fprintf(&table, "rule-%d,%d,%s,/v1/service-%d/*,sliding_window,%d,reject\n", i, i+1, []string{"free", "gold", ""}[i%3], i, 100+i)
	}
	file, err := c.file("rules.csv", table.String())
	if err != nil {
		return err
	}
	base, err := c.file("base.yaml", "name: shop\nidentify: [{api_key: {keys_file: keys.toml}}, ip]\n")
	if err != nil {
		return err
	}
	began := time.Now()
	policy, err := command(nil, "import-rules", file, "--into", base, "--enforce", "first")
	if err != nil {
		return err
	}
	read := time.Since(began)
	document, err := c.file("policy.json", policy)
	if err != nil {
		return err
	}
	began = time.Now()
	if _, err := command([]string{"PENSTOCK_TOKEN=" + p.token}, "control", "policy", "put", document, "--control=http://"+p.address, "--reason=bench"); err != nil {
		return err
	}
	put := time.Since(began)
	var rows int
	if err := p.rows.QueryRow(context.Background(), "SELECT count(*) FROM rate_limit_rules WHERE policy = 'shop' AND revision = 1").Scan(&rows); err != nil {
		return err
	}
	if rows != c.rules {
		return fmt.Errorf("the revision has %d rules of %d", rows, c.rules)
	}
	const most = 5 * time.Second
	c.reached("rules imported as one revision", "10,000 in ≤ 5 s", read+put <= most,
		fmt.Sprintf("%s: the table read %s, the revision written %s", formatSpan(read+put), formatSpan(read), formatSpan(put)), thousands(float64(rows))+" rules of a CSV")
	return nil
}
