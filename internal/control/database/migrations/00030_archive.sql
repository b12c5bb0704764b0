-- SPDX-License-Identifier: Apache-2.0
-- +goose Up

-- Whether months of events and usage are archived. If so, a month is dropped only when it is in the
-- archive.
CREATE TABLE penstock.archiving (
	one    boolean PRIMARY KEY DEFAULT true CHECK (one),
	wanted boolean NOT NULL DEFAULT false
);
INSERT INTO penstock.archiving DEFAULT VALUES;

-- A month of a table in the archive. The month is stale if rows changed after they were written to
-- the archive.
CREATE TABLE penstock.archives (
	partition   text PRIMARY KEY CHECK (partition ~ '^[a-z_]{1,50}_[0-9]{4}_[0-9]{2}$'),
	state       text NOT NULL DEFAULT 'writing' CHECK (state IN ('writing', 'written', 'verified', 'dropped', 'restored')),
	attempt     text NOT NULL,         -- each attempt writes objects with new names
	stale       boolean NOT NULL DEFAULT false,
	totals      jsonb,
	began_at    timestamptz NOT NULL,
	verified_at timestamptz,
	dropped_at  timestamptz,
	until       timestamptz,           -- when a restored month is dropped again
	CHECK ((state = 'restored') = (until IS NOT NULL))
);

-- The objects of a month. The column last has the key of the last row in an object. The next object
-- continues after that row.
CREATE TABLE penstock.archive_objects (
	partition text NOT NULL REFERENCES penstock.archives,
	number    int NOT NULL CHECK (number > 0),
	key       text NOT NULL UNIQUE,
	bytes     bigint NOT NULL,
	sha256    bytea NOT NULL CHECK (octet_length(sha256) = 32),
	digest    bytea NOT NULL CHECK (octet_length(digest) = 32),
	totals    jsonb NOT NULL,
	last      text[] NOT NULL,
	PRIMARY KEY (partition, number)
);
