-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The candidates that the control plane publishes to all nodes automatically. A row is valid only
-- for its generation of the policy. Every further step has another generation, even a step by a
-- process of an earlier release.
CREATE TABLE penstock.promotions (
	policy        text PRIMARY KEY REFERENCES penstock.policies ON DELETE CASCADE,
	generation    bigint NOT NULL,
	after_seconds bigint NOT NULL CHECK (after_seconds BETWEEN 60 AND 2678400),
	head          bigint NOT NULL      -- the latest revision when the candidate was published
);

-- What the nodes of each region have reported about such a candidate.
CREATE TABLE penstock.candidate_observations (
	policy          text NOT NULL REFERENCES penstock.policies ON DELETE CASCADE,
	generation      bigint NOT NULL,
	region          text NOT NULL CHECK (octet_length(region) <= 64),
	serves          boolean NOT NULL,      -- whether a node of the region has enforced the policy
	reporting       boolean NOT NULL,      -- whether a node with the candidate reports now
	reported_micros bigint NOT NULL,       -- the last report of such a node, by the clock of this Redis
	observed_micros bigint NOT NULL,       -- how long such nodes have reported
	denied          bigint NOT NULL,       -- requests
	admitted        bigint NOT NULL,       -- requests
	exceeded        boolean NOT NULL,      -- whether the denials ever exceeded the bound
	looked_at       timestamptz NOT NULL,  -- when a process last read the reports
	totals          bytea,                 -- the totals of each node from which its requests count
	PRIMARY KEY (policy, generation, region)
);
