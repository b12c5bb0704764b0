-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The region of the node that reported an event; '' if it has none.
ALTER TABLE penstock.rate_limit_events ADD COLUMN region text NOT NULL DEFAULT '';

-- The part of client_usage that was reported by nodes with a region, by region.
CREATE TABLE penstock.client_usage_regions (
	day      date NOT NULL,
	client   text NOT NULL,
	policy   text NOT NULL,
	rule     text NOT NULL,
	tier     text NOT NULL,
	region   text NOT NULL,
	admitted bigint NOT NULL,          -- requests
	denied   bigint NOT NULL,          -- requests
	units    bigint NOT NULL,          -- of the requests that were admitted
	PRIMARY KEY (client, policy, rule, tier, region, day)
) PARTITION BY RANGE (day);
CREATE INDEX ON penstock.client_usage_regions (day);
