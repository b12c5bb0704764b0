-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The changes that are published in the Redis of each region. A control plane without regions has
-- one Redis, of the region ''. Only the process that holds the region's lock changes its row. The
-- table publication is kept for processes of earlier releases.
CREATE TABLE penstock.region_publications (
	region     text PRIMARY KEY CHECK (octet_length(region) <= 64),
	change     bigint NOT NULL DEFAULT 0,      -- the latest change that this Redis has
	generation text NOT NULL DEFAULT '',       -- of this Redis then; '' if it never had all
	position   text NOT NULL DEFAULT '',       -- up to which the history in this Redis was read
	imported   boolean NOT NULL DEFAULT false, -- the tables have what this Redis had before
	trouble    text NOT NULL DEFAULT '',       -- why publishing fails; '' if it does not
	since      timestamptz NOT NULL DEFAULT now() -- when the trouble began, or ended
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
