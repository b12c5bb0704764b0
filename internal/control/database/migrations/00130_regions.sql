-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- How far the Redis of each region has what the clients say. A control plane without regions has one Redis, of the region ''.
-- Whoever holds the region's lock changes its row. The table publication is left to processes of earlier releases.
CREATE TABLE penstock.region_publications (
	region     text PRIMARY KEY CHECK (octet_length(region) <= 64),
	change     bigint NOT NULL DEFAULT 0,      -- the latest change that this Redis has
	generation text NOT NULL DEFAULT '',       -- that it had then; '' if it never had all
	position   text NOT NULL DEFAULT '',       -- of the history in this Redis
	imported   boolean NOT NULL DEFAULT false, -- what this Redis had before is in the tables
	trouble    text NOT NULL DEFAULT '',       -- why nothing can be published to it; '' if it can
	since      timestamptz NOT NULL DEFAULT now() -- of trouble, or of its end
);
INSERT INTO penstock.region_publications (region, change, generation, position, imported)
	SELECT '', change, generation, position, imported FROM penstock.publication;

-- The publications of policies that the Redis of each region has.
CREATE TABLE penstock.region_policies (
	region     text NOT NULL CHECK (octet_length(region) <= 64),
	policy     text NOT NULL REFERENCES penstock.policies ON DELETE CASCADE,
	generation bigint NOT NULL,
	PRIMARY KEY (region, policy)
);
