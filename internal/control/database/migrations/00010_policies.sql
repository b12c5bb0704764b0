-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Policies, and the revisions of each that proxies enforce. The generation rises with each
-- publication.
CREATE TABLE penstock.policies (
	policy      text PRIMARY KEY CHECK (policy ~ '^[A-Za-z0-9._-]{1,64}$'),
	head        bigint NOT NULL CHECK (head > 0),   -- the latest revision
	generation  bigint NOT NULL DEFAULT 0,
	revision    bigint,                             -- in force on all nodes; NULL before the first publication
	candidate   bigint,                             -- in shadow, or in force on a share of the nodes
	step        text CHECK (step IN ('shadow', 'share')),
	share       int CHECK (share BETWEEN 1 AND 9999),           -- of 10,000 nodes
	denials_max int CHECK (denials_max BETWEEN 1 AND 9999),     -- of 10,000 requests
	CHECK ((candidate IS NULL) = (step IS NULL)),
	CHECK ((step = 'share') = (share IS NOT NULL) OR step IS NULL AND share IS NULL),
	CHECK (candidate IS NULL OR revision IS NOT NULL),
	CHECK (denials_max IS NULL OR share IS NOT NULL)
);

-- Each write of a policy is a revision. The settings are the document without its rules.
CREATE TABLE penstock.policy_revisions (
	policy     text NOT NULL REFERENCES penstock.policies,
	revision   bigint NOT NULL CHECK (revision > 0),
	version    text NOT NULL CHECK (version ~ '^[0-9a-f]{12}$'),
	settings   jsonb NOT NULL,
	change     bigint NOT NULL,
	PRIMARY KEY (policy, revision)
);
ALTER TABLE penstock.policies
	ADD FOREIGN KEY (policy, revision) REFERENCES penstock.policy_revisions,
	ADD FOREIGN KEY (policy, candidate) REFERENCES penstock.policy_revisions;

-- The rules of each revision. A column is NULL if the document does not have that field. The column
-- more has all fields without a column of their own.
CREATE TABLE penstock.rate_limit_rules (
	policy           text NOT NULL,
	revision         bigint NOT NULL,
	position         int NOT NULL CHECK (position >= 0),
	rule_name        text NOT NULL,
	priority         int NOT NULL,
	enabled          boolean,
	subject          text[],
	endpoints        text[],
	http_methods     text[],
	ip_ranges        text[],
	plan_tiers       text[],
	limits           text[],
	action           text,
	retry_after      text,
	more             jsonb NOT NULL,
	PRIMARY KEY (policy, revision, position),
	FOREIGN KEY (policy, revision) REFERENCES penstock.policy_revisions
);

CREATE VIEW penstock.rules_in_force AS
	SELECT r.* FROM penstock.rate_limit_rules r JOIN penstock.policies p ON p.policy = r.policy AND p.revision = r.revision;

-- +goose StatementBegin
CREATE FUNCTION penstock.revisions_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a revision of a policy does not change: write a new one through the API';
END $$;
-- +goose StatementEnd
CREATE TRIGGER revisions_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON penstock.policy_revisions
	FOR EACH STATEMENT EXECUTE FUNCTION penstock.revisions_stay();
CREATE TRIGGER revisions_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON penstock.rate_limit_rules
	FOR EACH STATEMENT EXECUTE FUNCTION penstock.revisions_stay();

ALTER TABLE penstock.changes DROP CONSTRAINT changes_what_check;
ALTER TABLE penstock.changes ADD CONSTRAINT changes_what_check CHECK (what ~ '^[a-z]{1,32}$');
