-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- The tiers that clients may have.
CREATE TABLE penstock.tiers (
	tier       text PRIMARY KEY CHECK (octet_length(tier) BETWEEN 1 AND 255),
	note       text NOT NULL DEFAULT '' CHECK (octet_length(note) <= 500),
	revision   bigint NOT NULL CHECK (revision > 0),
	updated_at timestamptz NOT NULL
);

-- The settings that operators have made for single clients. A client without settings has no row.
-- The revision is the number of the client's latest change.
CREATE TABLE penstock.clients (
	kind       text NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 300 AND position(':' IN kind) = 0),
	id         text NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 255),
	tier       text REFERENCES penstock.tiers,
	tenant     text CHECK (octet_length(tenant) BETWEEN 1 AND 255),
	note       text CHECK (octet_length(note) BETWEEN 1 AND 500),
	revision   bigint NOT NULL CHECK (revision > 0),
	updated_at timestamptz NOT NULL,
	PRIMARY KEY (kind, id)
);
CREATE INDEX ON penstock.clients (tier, kind, id) WHERE tier IS NOT NULL;

-- A client's own limits under a rule, or under every rule ('*').
CREATE TABLE penstock.overrides (
	kind   text NOT NULL,
	id     text NOT NULL,
	rule   text NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 255),
	limits text[] NOT NULL CHECK (cardinality(limits) >= 1 AND array_position(limits, NULL) IS NULL),
	until  timestamptz,
	reason text NOT NULL CHECK (octet_length(reason) <= 500),
	PRIMARY KEY (kind, id, rule),
	FOREIGN KEY (kind, id) REFERENCES penstock.clients ON DELETE CASCADE
);

CREATE TABLE penstock.blocks (
	kind   text NOT NULL,
	id     text NOT NULL,
	until  timestamptz,
	reason text NOT NULL CHECK (octet_length(reason) <= 500),
	PRIMARY KEY (kind, id),
	FOREIGN KEY (kind, id) REFERENCES penstock.clients ON DELETE CASCADE
);

CREATE TABLE penstock.exemptions (
	kind   text NOT NULL,
	id     text NOT NULL,
	until  timestamptz,
	reason text NOT NULL CHECK (octet_length(reason) <= 500),
	PRIMARY KEY (kind, id),
	FOREIGN KEY (kind, id) REFERENCES penstock.clients ON DELETE CASCADE
);

-- The audit trail, from which changes are published. Numbers have no gaps and rise in the order of
-- the commits. Each hash covers the previous hash and the fields.
CREATE TABLE penstock.changes (
	change  bigint PRIMARY KEY CHECK (change > 0),
	at      timestamptz NOT NULL,
	actor   text NOT NULL CHECK (octet_length(actor) BETWEEN 1 AND 500),
	origin  text NOT NULL CHECK (octet_length(origin) <= 500),
	what    text NOT NULL CHECK (what IN ('client', 'tier', 'token')),
	subject text NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 600),
	action  text NOT NULL CHECK (action <> ''),
	reason  text NOT NULL CHECK (octet_length(reason) <= 500),
	before  text,
	after   text,
	hash    bytea NOT NULL CHECK (octet_length(hash) = 32)
);
CREATE INDEX ON penstock.changes (what, subject, change DESC);

-- The latest entry of the audit trail. A transaction that changes anything locks this row first.
CREATE TABLE penstock.chain (
	one    boolean PRIMARY KEY DEFAULT true CHECK (one),
	change bigint NOT NULL,
	hash   bytea NOT NULL CHECK (octet_length(hash) = 32)
);
INSERT INTO penstock.chain (change, hash) VALUES (0, decode(repeat('00', 32), 'hex'));

-- The changes that are published in Redis. Only the process that holds the lock of the publisher
-- changes this row.
CREATE TABLE penstock.publication (
	one        boolean PRIMARY KEY DEFAULT true CHECK (one),
	change     bigint NOT NULL DEFAULT 0,     -- the latest change that Redis has
	generation text NOT NULL DEFAULT '',      -- of Redis then; '' if it never had all records
	position   text NOT NULL DEFAULT '',      -- up to which the history in Redis was read
	imported   boolean NOT NULL DEFAULT false -- the tables have what Redis had before
);
INSERT INTO penstock.publication DEFAULT VALUES;

-- Tokens of the API, by their SHA-256.
CREATE TABLE penstock.tokens (
	token      text PRIMARY KEY CHECK (token <> ''),
	hash       bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
	name       text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
	role       text NOT NULL CHECK (role IN ('viewer', 'support', 'editor', 'admin')),
	created_at timestamptz NOT NULL,
	created_by text NOT NULL,
	expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
	revoked_at timestamptz
);

-- +goose StatementBegin
CREATE FUNCTION penstock.append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the audit trail is append-only';
END $$;
-- +goose StatementEnd
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON penstock.changes
	FOR EACH STATEMENT EXECUTE FUNCTION penstock.append_only();

-- +goose StatementBegin
CREATE FUNCTION penstock.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NOTIFY penstock_changes;
	RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tell AFTER INSERT ON penstock.changes FOR EACH STATEMENT EXECUTE FUNCTION penstock.tell();
