-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The role of nodes, which send events and usage.
ALTER TABLE penstock.tokens DROP CONSTRAINT tokens_role_check,
	ADD CONSTRAINT tokens_role_check CHECK (role IN ('viewer', 'support', 'editor', 'admin', 'node'));

-- The last batch of each feed that is in the tables. Each process of a node has a feed. A batch and
-- its feed's row are written in one transaction, so a batch is counted once, however often it is
-- sent.
CREATE TABLE penstock.feeds (
	feed     text PRIMARY KEY CHECK (feed ~ '^[0-9a-f]{32}$'),
	node     text NOT NULL CHECK (octet_length(node) <= 255),
	number   bigint NOT NULL CHECK (number > 0),
	at       timestamptz NOT NULL,     -- when the last batch came
	batches  bigint NOT NULL,
	lines    bigint NOT NULL,
	redated  bigint NOT NULL           -- lines whose time was beyond the bounds
);
CREATE INDEX ON penstock.feeds (at);

-- What nodes reported. An event stands for several equal decisions of one second.
CREATE SEQUENCE penstock.event_numbers CACHE 100;
CREATE TABLE penstock.rate_limit_events (
	at       timestamptz NOT NULL,
	event    bigint NOT NULL DEFAULT nextval('penstock.event_numbers'),
	kind     text NOT NULL,            -- denied, admitted (sampled), degraded or dropped
	policy   text NOT NULL,
	version  text NOT NULL,
	rule     text NOT NULL,
	limited  text NOT NULL,            -- the limit, such as 100/1h
	decision text NOT NULL,
	status   smallint NOT NULL,
	client   text NOT NULL,            -- KIND:ID
	tier     text NOT NULL,
	ip       inet,
	method   text NOT NULL,
	path     text NOT NULL,
	state    text NOT NULL,
	reason   text NOT NULL,
	node     text NOT NULL,
	seconds  double precision NOT NULL,
	share    real NOT NULL,            -- the reported share of decisions; 1 if all are
	events   bigint NOT NULL,          -- the number of decisions
	PRIMARY KEY (at, event)
) PARTITION BY RANGE (at);
CREATE INDEX ON penstock.rate_limit_events (client, at DESC);
CREATE INDEX ON penstock.rate_limit_events (rule, at DESC);
CREATE INDEX ON penstock.rate_limit_events (decision, at DESC);

-- The exact usage of clients, for billing. The client '' stands for all clients beyond a node's
-- bound.
CREATE TABLE penstock.client_usage (
	day      date NOT NULL,
	client   text NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	tier     text NOT NULL,
	admitted bigint NOT NULL,          -- requests
	denied   bigint NOT NULL,          -- requests
	units    bigint NOT NULL,          -- of the requests that were admitted
	PRIMARY KEY (client, policy, rule, tier, day)
) PARTITION BY RANGE (day);
CREATE INDEX ON penstock.client_usage (day);

-- Denied requests by client and hour.
CREATE TABLE penstock.client_denials (
	at       timestamptz NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	client   text NOT NULL,
	denied   bigint NOT NULL,
	PRIMARY KEY (at, policy, rule, client)
) PARTITION BY RANGE (at);
CREATE INDEX ON penstock.client_denials (client, at DESC);

-- Sums over all clients by minute, hour and day, exactly.
CREATE TABLE penstock.rate_limit_metrics (
	granularity text NOT NULL CHECK (granularity IN ('minute', 'hour', 'day')),
	at       timestamptz NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	tier     text NOT NULL,
	admitted bigint NOT NULL,
	denied   bigint NOT NULL,
	units    bigint NOT NULL,
	PRIMARY KEY (granularity, at, policy, rule, tier)
) PARTITION BY RANGE (at);

-- Views for psql: the usage of each client in this month, and the clients with most denials in a
-- day.
CREATE VIEW penstock.usage_this_month AS
	SELECT client, policy, rule, tier, sum(admitted)::bigint AS admitted, sum(denied)::bigint AS denied, sum(units)::bigint AS units
	FROM penstock.client_usage
	WHERE day >= date_trunc('month', now() AT TIME ZONE 'UTC')::date
	GROUP BY client, policy, rule, tier;
CREATE VIEW penstock.top_violators AS
	SELECT client, policy, rule, sum(denied)::bigint AS denied
	FROM penstock.client_denials
	WHERE at > now() - interval '1 day'
	GROUP BY client, policy, rule
	ORDER BY denied DESC;
