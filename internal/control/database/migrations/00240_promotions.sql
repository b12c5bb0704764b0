-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The candidates that the control plane publishes to all by itself. A row holds for one generation
-- of its policy: each step has another, also one that a process of an earlier release takes.
CREATE TABLE penstock.promotions (
	policy        text PRIMARY KEY REFERENCES penstock.policies ON DELETE CASCADE,
	generation    bigint NOT NULL,
	after_seconds bigint NOT NULL CHECK (after_seconds BETWEEN 60 AND 2678400),
	head          bigint NOT NULL      -- the latest revision at that step
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
	totals          bytea,                 -- of each node, from which its requests are counted
	PRIMARY KEY (policy, generation, region)
);
