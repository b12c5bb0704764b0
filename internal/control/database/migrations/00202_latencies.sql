-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Histograms of how long decisions took, for each path pattern of a rule. The counts of a bucket
-- can be added up over nodes, and from minutes to hours and days. penstock.latency_bounds has the
-- bounds of a bucket.
CREATE TABLE penstock.rate_limit_latencies (
	granularity text NOT NULL CHECK (granularity IN ('minute', 'hour', 'day')),
	at       timestamptz NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	endpoint text NOT NULL,            -- '' for a rule without a path
	region   text NOT NULL,
	bucket   smallint NOT NULL CHECK (bucket BETWEEN 0 AND 103),
	admitted bigint NOT NULL,
	denied   bigint NOT NULL,
	PRIMARY KEY (granularity, at, policy, rule, endpoint, region, bucket)
) PARTITION BY RANGE (at);

-- The bounds of a bucket in microseconds: from_us belongs to the bucket, and to_us does not.
CREATE VIEW penstock.latency_bounds AS
	SELECT bucket::smallint,
		CASE WHEN bucket < 4 THEN bucket ELSE (4 + bucket % 4) * 2::bigint ^ (bucket / 4 - 1) END::bigint AS from_us,
		CASE WHEN bucket < 4 THEN bucket + 1 ELSE (5 + bucket % 4) * 2::bigint ^ (bucket / 4 - 1) END::bigint AS to_us
	FROM generate_series(0, 103) bucket;

-- The usage of clients in each minute. When a minute is over, its most active clients keep rows of
-- their own. The usage of all other clients is added up in rows of the client ''.
CREATE TABLE penstock.client_minutes (
	at       timestamptz NOT NULL,
	client   text NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	admitted bigint NOT NULL,
	denied   bigint NOT NULL,
	units    bigint NOT NULL,
	PRIMARY KEY (at, client, policy, rule)
) PARTITION BY RANGE (at);
CREATE INDEX ON penstock.client_minutes (client, at DESC);

-- The minutes for which usage has arrived since their least active clients were last added up.
CREATE TABLE penstock.minutes_changed (at timestamptz PRIMARY KEY);
