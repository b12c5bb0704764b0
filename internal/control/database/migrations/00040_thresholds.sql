-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Thresholds of usage: each names the receiver that is called when a client has used a share of a
-- quota in a calendar month.
CREATE TABLE penstock.thresholds (
	threshold  text PRIMARY KEY CHECK (threshold ~ '^[A-Za-z0-9._-]{1,64}$'),
	policy     text NOT NULL CHECK (octet_length(policy) BETWEEN 1 AND 512),
	rule       text NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 512),
	client     text NOT NULL DEFAULT '' CHECK (octet_length(client) <= 600),  -- KIND:ID; '' for each client
	tier       text NOT NULL DEFAULT '' CHECK (octet_length(tier) <= 512),    -- '' for every tier
	units      bigint NOT NULL CHECK (units > 0),
	percents   int[] NOT NULL CHECK (cardinality(percents) BETWEEN 1 AND 10 AND array_position(percents, NULL) IS NULL),
	url        text NOT NULL CHECK (octet_length(url) BETWEEN 1 AND 1000),
	revision   bigint NOT NULL CHECK (revision > 0),
	updated_at timestamptz NOT NULL
);

-- The notices that were sent, or are to be sent. There is one for each client, threshold, month and
-- share.
CREATE TABLE penstock.notices (
	notice       text PRIMARY KEY,
	threshold    text NOT NULL,
	client       text NOT NULL,
	month        date NOT NULL,
	percent      int NOT NULL,
	policy       text NOT NULL,
	rule         text NOT NULL,
	used         numeric NOT NULL,      -- when the notice was made
	units        bigint NOT NULL,       -- the quota of the threshold
	url          text NOT NULL,
	made_at      timestamptz NOT NULL,
	attempts     int NOT NULL DEFAULT 0,
	next_at      timestamptz,           -- NULL if the notice was delivered or given up
	delivered_at timestamptz,
	trouble      text NOT NULL DEFAULT '',
	UNIQUE (threshold, client, month, percent)
);
CREATE INDEX ON penstock.notices (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX ON penstock.notices (threshold, made_at DESC, notice DESC);
